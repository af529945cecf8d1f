"""Addresses that this gateway listens on, and the rule that keeps it from the world until that is wanted."""

import ipaddress

import msgspec

_MAX_PORT = 65_535


class AddressError(ValueError):
    """An address that cannot or must not be listened on. The message names the setting and says why."""


class ListenAddress(msgspec.Struct, frozen=True):
    """``host:port``; port 0 stands for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_listen(text: str, setting: str, offset: int = 0) -> ListenAddress:
    """The address of gateway number `offset` on this machine: its port is that much higher. Raises AddressError."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not is_bracketed) or not (port.isascii() and port.isdigit()):
        raise AddressError(f"{setting} = {text!r}: expected HOST:PORT")
    number = int(port) + (offset if int(port) else 0)
    if number > _MAX_PORT:
        raise AddressError(f"{setting} = {text!r}: the port must be a number up to {_MAX_PORT}")
    return ListenAddress(host[1:-1] if is_bracketed else host, number)


def check_exposure(address: ListenAddress, setting: str, *, allow_public: bool) -> ListenAddress:
    """`address` itself when it may be listened on without authentication. Raises AddressError."""
    if not allow_public and not _is_loopback(address.host):
        raise AddressError(
            f"{setting} = {address}: whoever reaches this address could use the server, which asks for no credentials "
            "(gateway.allow_insecure_public = true where the network itself is trusted)"
        )
    return address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
