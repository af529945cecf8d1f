"""What a stack under test needs of the network that it runs on, however that network is made."""

from typing import Protocol

import msgspec

from chairlift.runtime.addresses import Address
from deploy.bench.chaos.faults import Fault, Link


class FaultyLink(Protocol):
    """A link that can be hurt while others go on. Faults of it may overlap."""

    async def begin(self, fault: Fault) -> None:
        """`fault` (LINK_DELAY, LINK_RESET or LINK_PARTITION) sets in."""

    async def end(self, fault: Fault) -> None:
        """And is over. What it kept back goes on."""


class Ends(msgspec.Struct, frozen=True):
    """Addresses of a link."""

    bind: Address
    """Where its scheduler listens."""
    connect: Address
    """Where the other side reaches it."""


class Place(msgspec.Struct, frozen=True):
    """Where a process runs."""

    probe: Address
    """For its HTTP port; the supervisor reaches it whatever happens to links."""
    prefix: tuple[str, ...] = ()
    """What a command line begins with to run there."""


class ReplicaPlace(msgspec.Struct, frozen=True):
    """Of one replica."""

    ends: dict[Link, Ends]
    scheduler: Place
    worker: Place


class Network(Protocol):
    """Gateways, clients and the supervisor share one host; each replica has links of its own."""

    links: dict[str, FaultyLink]
    """``front 0``, ``device 0`` and so on."""
    conditions: str
    """How links are made and hurt, for the report."""

    def take_local(self) -> Address:
        """One more free address on the gateways' host."""
        ...

    async def add_replica(self, replica: int) -> ReplicaPlace:
        """Places for one more, and its links. Raises BenchError."""
        ...

    def count_listening(self) -> int:
        """Of all addresses given out: those that something listens on now."""
        ...
