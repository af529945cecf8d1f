"""TCP addresses as settings name them: how they are read, and the rule that keeps servers from the world until told."""

import ipaddress

import msgspec

_MAX_PORT = 65_535
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised here, not bound


class AddressError(ValueError):
    """Not an address, or one that the settings do not allow. The message names the setting and says why."""


class Address(msgspec.Struct, frozen=True):
    """A TCP address. Port 0 stands for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback_host(self.host)

    def with_port(self, port: int) -> "Address":
        """The same host with another port."""
        return Address(self.host, port)

    def for_clients(self) -> "Address":
        """Where a client on this machine reaches a server that listens here: wildcards become loopback."""
        return Address(_LOOPBACK_OF.get(self.host, self.host), self.port)


def is_loopback_host(host: str) -> bool:
    """Whether `host`, a name or an IP address without brackets, can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str, setting: str, offset: int = 0) -> Address:
    """``host:port`` or ``[host]:port`` as the value of `setting`. Raises AddressError.

    With `offset`, that of number `offset` among equal processes of one machine: its port is so much higher, unless 0.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not is_bracketed):
        raise AddressError(f"{setting} = {text!r}: expected HOST:PORT")
    if not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT - offset:
        raise AddressError(f"{setting} = {text!r}: the port must be a number up to {_MAX_PORT - offset}")
    return Address(host[1:-1] if is_bracketed else host, int(port) + (offset if int(port) else 0))


def check_exposure(address: Address, setting: str, *, allow_public: bool) -> Address:
    """`address` itself when it may be listened on without authentication. Raises AddressError."""
    if not allow_public and not address.is_loopback:
        raise AddressError(
            f"{setting} = {address}: whoever reaches this address could use the server, which asks for no credentials "
            "(gateway.allow_insecure_public = true where the network itself is trusted)"
        )
    return address
