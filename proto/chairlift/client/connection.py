"""How to reach the servers: targets, TLS, credentials, channel options.

Keepalive agrees with the gateway's: a client that pings more often than `gateway.min_client_ping_interval_s` is cut
off with ``too_many_pings``.
"""

from collections.abc import Sequence
from pathlib import Path

import grpc
import msgspec

from chairlift.runtime.addresses import is_loopback_host

DEFAULT_TARGET = "127.0.0.1:50051"
KEEPALIVE_S = 30.0
CANCEL_TIMEOUT_S = 5.0
"""Of the Cancel that goes out when a generation is left: nobody waits long for a server that is not there."""
DRAINING = "DRAINING"
MAX_LEFT_CHANNELS = 8
"""Channels to gateways that drained, kept for the streams on them."""
_MAX_RECEIVE_BYTES = 64 << 20

ChannelOptions = tuple[tuple[str, int | str], ...]


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS by files. Without `ca` the system's roots are used; `cert` and `key` prove the client (mTLS)."""

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None
    """Name in the server's certificate, where it differs from the target's host."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises OSError when a file cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca), private_key=_read(self.key), certificate_chain=_read(self.cert)
        )


class Token:
    """A bearer token, or the file that holds it now: what rotates is read for each call. Shows itself to nobody."""

    def __init__(self, token: str | Path | None) -> None:
        self._token = token

    @property
    def is_given(self) -> bool:
        """Whether there is one."""
        return self._token is not None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Sent with a call. Raises OSError when the file cannot be read."""
        if self._token is None:
            return ()
        token = self._token.read_text().strip() if isinstance(self._token, Path) else self._token
        return (("authorization", f"Bearer {token}"),)

    def __repr__(self) -> str:
        return "Token(…)" if self.is_given else "Token()"


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that both clients need to open channels."""

    targets: tuple[str, ...]
    tls: Tls | None
    options: tuple[ChannelOptions, ...]
    """Of each target."""
    token: Token

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Sent with a call. Raises OSError when the token's file cannot be read."""
        return self.token.metadata()


def make_connection(
    target: str | Sequence[str],
    token: str | Path | None,
    tls: Tls | bool,
    keepalive_s: float,
    *,
    allow_plaintext_token: bool,
) -> Connection:
    """Raises ValueError for no target, or for a token that would cross a network in clear text."""
    targets = (target,) if isinstance(target, str) else tuple(target)
    if not targets:
        raise ValueError("no target given")
    chosen = (Tls() if tls else None) if isinstance(tls, bool) else tls
    if token is not None and chosen is None and not allow_plaintext_token:
        for one in targets:
            if not is_loopback(one):
                raise ValueError(f"the token would travel to {one} in clear text: use tls, or allow_plaintext_token")
    return Connection(
        targets=targets,
        tls=chosen,
        options=tuple(_channel_options(one, chosen, keepalive_s) for one in targets),
        token=Token(token),
    )


def is_loopback(target: str) -> bool:
    """Whether `target` can only be on this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    return is_loopback_host(target.rpartition(":")[0].strip("[]"))


def _channel_options(target: str, tls: Tls | None, keepalive_s: float) -> ChannelOptions:
    options: list[tuple[str, int | str]] = [
        ("grpc.keepalive_time_ms", round(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
        # A gateway that restarts is back within a second; gRPC's own pauses grow to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 200),
        # The time that a connection may take to come about, in spite of its name: far and busy hosts need some.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # A connection of one's own: the way from a gateway that drains to another behind the same address is a new one.
        ("grpc.use_local_subchannel_pool", 1),
        # Repeats are decided in one place, `recovery`, which sees deadlines and other targets.
        ("grpc.enable_retries", 0),
    ]
    if is_loopback(target):
        options.append(("grpc.enable_http_proxy", 0))
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return tuple(options)


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
