"""Ports that children listen on: finding free ones, holding the public one.

A port is held by sockets that are bound with SO_REUSEPORT and never listen: gateways of the same user can share it,
another program cannot take it while models load or a gateway restarts, and no connection ever reaches the holder.
"""

import errno
import socket
from collections.abc import Collection

from chairlift.runtime.addresses import Address

_HOPELESS = frozenset({errno.EACCES, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class PortError(ValueError):
    """A port that cannot be had, on this host or now. The message names the address and says why."""


def is_free(address: Address) -> bool:
    """Whether a server could listen there now. Raises PortError where none ever could."""
    try:
        for one in _bind(address, reuse_port=False):
            one.close()
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno in _HOPELESS:
            raise PortError(f"{address}: {error.strerror}") from None
        return False
    return True


def find_free(address: Address, taken: Collection[int] = ()) -> Address:
    """`address` itself when it is free and not in `taken`, else a free port on the same host."""
    if address.port and address.port not in taken and is_free(address):
        return address
    while True:
        sockets = _bind(address.with_port(0), reuse_port=False)
        port = int(sockets[0].getsockname()[1])
        for one in sockets:
            one.close()
        if port not in taken:
            return address.with_port(port)


class HeldPort:
    """The public port, held from before the model loads until the end."""

    def __init__(self, address: Address) -> None:
        """Takes the port. Raises PortError when another program has it, or this host cannot have it."""
        if address.port and not is_free(address):
            raise PortError(f"{address}: the port is in use by another program")
        try:
            self._sockets = _bind(address, reuse_port=True)
        except OSError as error:
            raise PortError(f"{address}: {error.strerror}") from None
        self.address = address.with_port(int(self._sockets[0].getsockname()[1]))

    def close(self) -> None:
        """Lets go of it."""
        for one in self._sockets:
            one.close()


def _bind(address: Address, *, reuse_port: bool) -> list[socket.socket]:
    """One bound socket for each address that the host's name stands for. Raises OSError."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, where in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            # Never both: two sockets with SO_REUSEADDR that do not listen could be bound to one port.
            option = socket.SO_REUSEPORT if reuse_port else socket.SO_REUSEADDR
            one.setsockopt(socket.SOL_SOCKET, option, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((where[0], port, *where[2:]))
            port = int(one.getsockname()[1])
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
