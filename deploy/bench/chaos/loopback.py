"""Loopback as the network of a stack: every link goes through a proxy that can misbehave."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chairlift.runtime.addresses import Address
from deploy.bench.chaos.faults import Fault, FaultKind, Link
from deploy.bench.chaos.network import Ends, FaultyLink, Place, ReplicaPlace
from deploy.bench.chaos.proxy import FaultProxy
from deploy.launcher.ports import find_free, is_free

LOOPBACK = Address("127.0.0.1", 0)


class LoopbackPorts:
    """Free ports of loopback, none twice."""

    def __init__(self) -> None:
        self._taken: list[Address] = []

    def take(self) -> Address:
        """One more."""
        address = find_free(LOOPBACK, {one.port for one in self._taken})
        self._taken.append(address)
        return address

    def count_listening(self) -> int:
        """Of those taken."""
        return sum(not is_free(address) for address in self._taken)


class ProxiedLink:
    """A link through a proxy of this process."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy

    async def begin(self, fault: Fault) -> None:
        """See `FaultyLink`."""
        match fault.kind:
            case FaultKind.LINK_RESET:
                self._proxy.reset()
            case FaultKind.LINK_DELAY:
                self._proxy.delay_s = fault.delay_s
            case _ if fault.is_half_open:
                self._proxy.half_open()
            case _:
                self._proxy.partition()

    async def end(self, fault: Fault) -> None:
        """See `FaultyLink`."""
        match fault.kind:
            case FaultKind.LINK_DELAY:
                self._proxy.delay_s = 0.0
            case FaultKind.LINK_PARTITION:
                self._proxy.heal()
            case _:
                pass  # a reset is over at once


class ProxyNetwork:
    """See `Network`."""

    conditions = "links on loopback, through proxies that delay, reset and cut"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ports = LoopbackPorts()
        self._proxies: list[FaultProxy] = []
        self.links: dict[str, FaultyLink] = {}

    def take_local(self) -> Address:
        """See `Network`."""
        return self._ports.take()

    async def add_replica(self, replica: int) -> ReplicaPlace:
        """See `Network`."""
        ends = {}
        for link in Link:
            bound = self._ports.take()
            proxy = FaultProxy(bound, self._seed * 100 + len(self._proxies))
            self._proxies.append(proxy)
            ends[link] = Ends(bound, await proxy.start())
            self.links[f"{link} {replica}"] = ProxiedLink(proxy)
        return ReplicaPlace(ends, Place(self._ports.take()), Place(self._ports.take()))

    def count_listening(self) -> int:
        """See `Network`."""
        return self._ports.count_listening()

    async def close(self) -> None:
        """Ends every proxy."""
        for proxy in self._proxies:
            await proxy.close()


@asynccontextmanager
async def proxy_network(seed: int) -> AsyncIterator[ProxyNetwork]:
    """One whose proxies end with the block; `seed` says how they cut what they delay."""
    network = ProxyNetwork(seed)
    try:
        yield network
    finally:
        await network.close()
