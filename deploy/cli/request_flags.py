"""Flags of commands that talk to a server: where it is, who asks, how tokens are chosen and when to stop."""

import argparse
import os
from pathlib import Path
from typing import Any, TypedDict

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError

TARGET_ENV = "CHAIRLIFT_TARGET"
TOKEN_ENV = "CHAIRLIFT_TOKEN"  # noqa: S105 - the variable's name
DEFAULT_MAX_TOKENS = 256

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("max-tokens", int, f"most output tokens (default {DEFAULT_MAX_TOKENS}; 0: as far as the server allows)"),
    ("min-tokens", int, "fewest output tokens before the end is allowed"),
    ("temperature", float, "0 is greedy (default 1)"),
    ("top-p", float, "sample from the smallest set with this probability"),
    ("top-k", int, "sample from this many most likely tokens"),
    ("min-p", float, "sample from tokens at least this likely relative to the first"),
    ("repetition-penalty", float, "divides logits of tokens seen before"),
    ("presence-penalty", float, "subtracted for tokens in the output"),
    ("frequency-penalty", float, "subtracted for each time a token is in the output"),
    ("seed", int, "the same seed gives the same tokens"),
    ("priority", int, "larger goes first"),
    ("timeout", float, "seconds until the deadline"),
)


class ConnectionOptions(TypedDict):
    """Keyword arguments of the clients."""

    target: str
    token: str | None
    tls: Any


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """``--target`` and credentials."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--target", metavar="HOST:PORT", help=f"server to ask (default: ${TARGET_ENV}, or this machine's)"
    )
    add_credential_flags(group, TOKEN_ENV)


def add_credential_flags(group: argparse._ArgumentGroup, token_env: str) -> None:
    """A token and TLS."""
    group.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"holds the bearer token (default: ${token_env})"
    )
    group.add_argument("--tls", action="store_true", help="use TLS with the system's roots")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="use TLS with these roots")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate that proves this client")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")


def chosen_target(arguments: argparse.Namespace) -> str | None:
    """The server that was named by flag or environment, if any."""
    target: str | None = arguments.target or os.environ.get(TARGET_ENV)
    return target


def connection_options(arguments: argparse.Namespace, target: str, token_env: str = TOKEN_ENV) -> ConnectionOptions:
    """What the clients need to reach `target`. Raises CommandError for a file that cannot be read."""
    from chairlift.client import Tls

    token = os.environ.get(token_env) or None
    try:
        if arguments.token_file is not None:
            token = arguments.token_file.read_text().strip()
        is_by_files = arguments.tls_ca or arguments.tls_cert
        tls = Tls(ca=arguments.tls_ca, cert=arguments.tls_cert, key=arguments.tls_key)
        if is_by_files:
            tls.credentials()
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", ExitCode.USAGE) from None
    return ConnectionOptions(target=target, token=token, tls=tls if is_by_files else arguments.tls)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """The most used fields of a request, by their names in the contract."""
    group = parser.add_argument_group("request")
    for name, kind, text in _NUMBERS:
        group.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="end at this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="go on when the model would end")
    group.add_argument("--served-model", metavar="NAME", help="model to ask for, where the server has several")


def request_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `generate` and `stream` that were given as flags."""
    options: dict[str, Any] = {}
    for name, _, _ in _NUMBERS:
        key = name.replace("-", "_")
        value = getattr(arguments, key)
        if value is not None:
            options[key] = value
    if options.setdefault("max_tokens", DEFAULT_MAX_TOKENS) == 0:
        del options["max_tokens"]
    if arguments.stop:
        options["stop"] = arguments.stop
    if arguments.ignore_eos:
        options["ignore_eos"] = True
    if arguments.served_model:
        options["model"] = arguments.served_model
    return options
