"""`chairlift drain`: stops a server from admitting requests, and waits until it is empty if you like."""

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError
from deploy.cli.operator import OperatorPort, add_operator_flags, operator_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chairlift.v1.ops_pb2 import TargetResult

_POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom, for how long, and back."""
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--replica", metavar="ID", help="only this replica")
    target.add_argument("--gateway", metavar="ID", help="only this gateway, which is the one called")
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="when what is left is ended (default: its drain_timeout_s)"
    )
    parser.add_argument("--undo", action="store_true", help="let it admit again")
    parser.add_argument("--wait", action="store_true", help="return when nothing is left in it")
    parser.add_argument("--comment", default="", metavar="TEXT", help="why, for the audit line")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_operator_flags(parser)
    parser.epilog = (
        "Without --replica and --gateway: every replica that the gateway knows, and the gateway itself. "
        "Another gateway is told by its own port (--ops-target), also to admit again."
    )


def run(arguments: argparse.Namespace) -> int:
    """Drains, or lets on."""
    from chairlift.v1.ops_pb2 import DrainRequest, UndrainRequest

    if arguments.undo and (arguments.wait or arguments.deadline is not None):
        raise CommandError("--undo goes without --wait and --deadline", ExitCode.USAGE)
    target: dict[str, Any] = {"all": True}
    if arguments.replica or arguments.gateway:
        target = {"replica_id": arguments.replica} if arguments.replica else {"gateway_id": arguments.gateway}
    with operator_port(arguments) as port:
        if arguments.undo:
            undrain = UndrainRequest(comment=arguments.comment, **target)
            return _tell(port.call(port.stub.Undrain, undrain).results, "admits again", as_json=arguments.json)
        drain = DrainRequest(comment=arguments.comment, **target)
        if arguments.deadline is not None:
            drain.deadline.FromNanoseconds(round(arguments.deadline * 1e9))
        exit_code = _tell(port.call(port.stub.Drain, drain).results, "admits no more", as_json=arguments.json)
        if arguments.wait and exit_code == ExitCode.OK:
            _wait(port, target)
    return exit_code


def _tell(results: "Iterable[TargetResult]", outcome: str, *, as_json: bool) -> int:
    told = [
        {
            "target": result.replica_id or result.gateway_id,
            "outcome": f"{result.failure.reason}: {result.failure.message}" if result.HasField("failure") else outcome,
            "is_done": not result.HasField("failure"),
        }
        for result in results
    ]
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        for one in told:
            print(f"{one['target']}: {one['outcome']}")
    return ExitCode.OK if all(one["is_done"] for one in told) else ExitCode.FAILED


def _wait(port: OperatorPort, target: "Mapping[str, Any]") -> None:
    """Until nothing runs and waits in it. Raises CommandError where nobody can tell."""
    from chairlift.v1.ops_pb2 import REPLICA_STATE_UNREACHABLE, GetLoadRequest

    while True:
        load = port.call(port.stub.GetLoad, GetLoadRequest(replica_id=target.get("replica_id", "")))
        replicas = [] if "gateway_id" in target else load.replicas
        if any(one.state == REPLICA_STATE_UNREACHABLE for one in replicas):
            raise CommandError("a replica does not answer any more: what is left in it is not known")
        left = sum(one.num_running + one.num_waiting for one in replicas)
        left += 0 if "replica_id" in target else load.gateway.open_streams
        if not left:
            return
        time.sleep(_POLL_S)
