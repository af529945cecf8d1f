"""A replica's processes on hosts of their own, so to say: a namespace each, real links, and rules that hurt them.

A gateway's host is the hub, where this process is. Scheduler and worker have a namespace each; ``front`` joins hub and
scheduler, ``device`` scheduler and worker, and a wire for probes joins the hub and each of them. All rules lie on the
scheduler's end of a link, where both directions pass.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from chairlift.runtime.addresses import Address
from deploy.bench.chaos.faults import Fault, FaultKind, Link
from deploy.bench.chaos.loopback import LoopbackPorts
from deploy.bench.chaos.namespaces import Namespace, NamespaceError, Namespaces, own_namespaces
from deploy.bench.chaos.network import Ends, FaultyLink, Place, ReplicaPlace
from deploy.launcher.ports import is_free

_PORTS = {Link.FRONT: 5701, Link.DEVICE: 5702}
_PROBE_PORT = 5703
_TCP_RESET = ("-j", "REJECT", "--reject-with", "tcp-reset")
_FRAME_BITS = 1514 * 8
_BUCKET_BYTES, _QUEUE_BYTES = 1600, 1 << 20

Rule = tuple[str, ...]


def rules_for(fault: Fault, interface: str) -> tuple[Rule, ...]:
    """What iptables is told, without ``-A`` or ``-D``, at the scheduler's end of the link.

    An answer of REJECT is a packet that leaves, and must not meet the rule for those itself.
    """
    arriving, leaving = ("INPUT", "-i", interface), ("OUTPUT", "-o", interface)
    resets_own_end = (*leaving, "-p", "tcp", "!", "--tcp-flags", "RST", "RST", *_TCP_RESET)
    match fault.kind:
        case FaultKind.LINK_RESET:
            return (*arriving, "-p", "tcp", *_TCP_RESET), resets_own_end
        case FaultKind.LINK_PARTITION if fault.is_half_open:
            return (*arriving, "-j", "DROP"), resets_own_end
        case FaultKind.LINK_PARTITION:
            return (*arriving, "-j", "DROP"), (*leaving, "-j", "DROP")
        case _:
            return ()


def delay_discipline(delay_s: float, *, has_netem: bool) -> tuple[str, ...]:
    """What tc is told. Without netem a narrow link stands for a long one: a full frame takes `delay_s` to pass."""
    if has_netem:
        return "netem", "delay", f"{delay_s * 1000:.0f}ms"
    rate = max(1, round(_FRAME_BITS / delay_s))
    return "tbf", "rate", f"{rate}bit", "burst", str(_BUCKET_BYTES), "limit", str(_QUEUE_BYTES)


class Wire:
    """A link between two namespaces, as a `FaultyLink`."""

    def __init__(self, scheduler: Namespace, interface: str, other: Namespace, other_interface: str) -> None:
        self._scheduler = scheduler
        self._interface = interface
        self._ends = ((scheduler, interface), (other, other_interface))
        self._num_delays = 0
        self.has_netem = True

    async def begin(self, fault: Fault) -> None:
        """See `FaultyLink`. Raises NamespaceError."""
        for rule in rules_for(fault, self._interface):
            await self._scheduler.run("iptables", "-w", "-A", *rule)
        if fault.kind is FaultKind.LINK_DELAY:
            self._num_delays += 1
            discipline = delay_discipline(fault.delay_s, has_netem=self.has_netem)
            for namespace, interface in self._ends:
                await namespace.run("tc", "qdisc", "replace", "dev", interface, "root", *discipline)

    async def end(self, fault: Fault) -> None:
        """See `FaultyLink`. Raises NamespaceError."""
        for rule in rules_for(fault, self._interface):
            await self._scheduler.run("iptables", "-w", "-D", *rule)
        if fault.kind is FaultKind.LINK_DELAY:
            self._num_delays -= 1
            if self._num_delays == 0:
                for namespace, interface in self._ends:
                    await namespace.run("tc", "qdisc", "del", "dev", interface, "root")

    async def try_out(self) -> None:
        """Every kind once, before anything runs. Raises NamespaceError where this kernel lacks one of them."""
        delay = Fault(at_s=0.0, kind=FaultKind.LINK_DELAY, target="", delay_s=0.01)
        try:
            await self.begin(delay)
        except NamespaceError:
            self.has_netem, self._num_delays = False, 0
            await self.begin(delay)
        await self.end(delay)
        for kind in (FaultKind.LINK_RESET, FaultKind.LINK_PARTITION):
            fault = Fault(at_s=0.0, kind=kind, target="")
            await self.begin(fault)
            await self.end(fault)


class WiredNetwork:
    """See `Network`."""

    def __init__(self, namespaces: Namespaces) -> None:
        self.namespaces = namespaces
        self._ports = LoopbackPorts()
        self._bound: list[tuple[Namespace, Address]] = []
        self.links: dict[str, FaultyLink] = {}
        self.conditions = ""

    def take_local(self) -> Address:
        """See `Network`."""
        return self._ports.take()

    async def add_replica(self, replica: int) -> ReplicaPlace:
        """See `Network`. Raises NamespaceError."""
        hub, connect = self.namespaces.hub, self.namespaces.connect
        scheduler, worker = await self.namespaces.add(), await self.namespaces.add()
        front, _ = await connect(scheduler, "front", hub, f"front{replica}")
        device, _ = await connect(scheduler, "device", worker, "device")
        probes = [
            await connect(one, "probe", hub, f"{name}{replica}")
            for name, one in (("scheduler", scheduler), ("worker", worker))
        ]
        await self._add_link(f"{Link.FRONT} {replica}", Wire(scheduler, "front", hub, f"front{replica}"))
        await self._add_link(f"{Link.DEVICE} {replica}", Wire(scheduler, "device", worker, "device"))
        bound = {link: Address(host, _PORTS[link]) for link, host in ((Link.FRONT, front), (Link.DEVICE, device))}
        at_scheduler, at_worker = (Address(host, _PROBE_PORT) for host, _ in probes)
        self._bound += [(scheduler, address) for address in (*bound.values(), at_scheduler)]
        self._bound.append((worker, at_worker))
        return ReplicaPlace(
            {link: Ends(address, address) for link, address in bound.items()},
            Place(at_scheduler, scheduler.prefix),
            Place(at_worker, worker.prefix),
        )

    async def _add_link(self, name: str, wire: Wire) -> None:
        await wire.try_out()
        self.links[name] = wire
        delay = "delays by netem" if wire.has_netem else "for a delay a narrow link (tbf), as this kernel has no netem"
        self.conditions = f"links between network namespaces; resets and cuts by iptables, {delay}"

    def count_listening(self) -> int:
        """See `Network`."""
        return self._ports.count_listening() + sum(
            not namespace.call(partial(is_free, address)) for namespace, address in self._bound
        )


@asynccontextmanager
async def wired_network() -> AsyncIterator[WiredNetwork]:
    """One that is gone with the block, or with this process. Moves the calling thread, which must be the main one.

    Raises NamespaceError.
    """
    with own_namespaces() as namespaces:
        await namespaces.hub.run("ip", "link", "set", "lo", "up")
        yield WiredNetwork(namespaces)
