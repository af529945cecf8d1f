"""How commands reach the operator's port of a gateway: flags, one channel, typed errors."""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError
from deploy.cli.request_flags import add_credential_flags, connection_options

if TYPE_CHECKING:
    from chairlift.v1.ops_pb2_grpc import OpsServiceStub

OPS_TARGET_ENV = "CHAIRLIFT_OPS_TARGET"
OPS_TOKEN_ENV = "CHAIRLIFT_OPS_TOKEN"  # noqa: S105 - the variable's name
DEFAULT_OPS_TARGET = "127.0.0.1:50052"
_TIMEOUT_S = 30.0

T = TypeVar("T")


def add_operator_flags(parser: argparse.ArgumentParser) -> None:
    """``--ops-target`` and credentials."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--ops-target",
        metavar="HOST:PORT",
        help=f"operator's port of a gateway (default: ${OPS_TARGET_ENV}, or {DEFAULT_OPS_TARGET})",
    )
    add_credential_flags(group, OPS_TOKEN_ENV)


def add_change_flags(parser: argparse.ArgumentParser) -> None:
    """``--replica`` and ``--comment`` of a command that changes something, beside those of the operator's port."""
    parser.add_argument("--replica", default="all", metavar="ID", help="only this replica (default: all)")
    parser.add_argument("--comment", default="", metavar="TEXT", help="why, for the audit line and the history")
    add_operator_flags(parser)


class OperatorPort:
    """An open connection to the operator's port."""

    def __init__(self, stub: "OpsServiceStub", target: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self.stub = stub
        self.target = target
        self.metadata = metadata

    def call(self, method: "Callable[..., T]", request: Any) -> T:
        """The answer of a unary method. Raises CommandError."""
        with self.errors():
            return method(request, timeout=_TIMEOUT_S, metadata=self.metadata)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what gRPC raises into CommandError. A request that was refused is a usage error."""
        import grpc

        from chairlift.client.blocking_generation import error_from
        from chairlift.client.errors import InvalidArgumentError, UnavailableError

        try:
            yield
        except grpc.RpcError as failure:
            error = error_from(failure)
            if isinstance(error, UnavailableError) and not error.reason:
                hint = "is the server up, and is this its operator's port?"
                raise CommandError(f"no gateway answers at {self.target} ({hint})") from error
            exit_code = ExitCode.USAGE if isinstance(error, InvalidArgumentError) else ExitCode.FAILED
            raise CommandError(str(error), exit_code) from error


@contextmanager
def operator_port(arguments: argparse.Namespace) -> Iterator[OperatorPort]:
    """A connection by the flags. Raises CommandError."""
    import grpc

    from chairlift.client.connection import KEEPALIVE_S, make_connection
    from chairlift.v1 import ops_pb2_grpc

    target = arguments.ops_target or os.environ.get(OPS_TARGET_ENV) or DEFAULT_OPS_TARGET
    options = connection_options(arguments, target, OPS_TOKEN_ENV)
    try:
        connection = make_connection(target, options["token"], options["tls"], KEEPALIVE_S, allow_plaintext_token=False)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    channel_options = connection.options[0]
    if connection.tls is None:
        channel = grpc.insecure_channel(target, options=channel_options)
    else:
        channel = grpc.secure_channel(target, connection.tls.credentials(), options=channel_options)
    with channel:
        yield OperatorPort(ops_pb2_grpc.OpsServiceStub(channel), target, connection.metadata)
