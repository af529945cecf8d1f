"""The stack under test: several replicas and gateways on this machine, every link over a proxy that can misbehave.

Made of the launcher's own parts (children, supervisor, held port), so that what recovers here is what recovers there.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from chairlift.runtime.addresses import Address
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides
from deploy.bench.chaos.faults import Link
from deploy.bench.chaos.proxy import FaultProxy
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.ports import HeldPort, find_free
from deploy.launcher.run_folder import RunFolder

LOOPBACK = Address("127.0.0.1", 0)
FAULT_FILE_ENV = "CHAIRLIFT_FAULT_FILE"
"""Of `gpu_worker.faults`, which nothing here may import."""


class ChaosStack(msgspec.Struct, frozen=True):
    """What runs, and where it can be hurt."""

    public: Address
    ops: tuple[Address, ...]
    """Of each gateway."""
    children: tuple[ChildSpec, ...]
    links: dict[str, FaultProxy]
    """``front 0``, ``device 0`` and so on."""
    fault_files: dict[str, Path]
    """Of each worker by its name."""
    folder: Path
    ports: tuple[Address, ...]
    """Every address that must be free again at the end."""


@asynccontextmanager
async def chaos_stack(settings: Settings, num_replicas: int, num_gateways: int, seed: int) -> AsyncIterator[ChaosStack]:
    """Plans the stack and opens its proxies; starts no process. Raises PortError, RunFolderError."""
    with _held_port() as public, RunFolder(None) as folder:
        links: dict[str, FaultProxy] = {}
        try:
            yield await _plan(settings, num_replicas, num_gateways, seed, public.address, folder.path, links)
        finally:
            for proxy in links.values():
                await proxy.close()


@contextmanager
def _held_port() -> Iterator[HeldPort]:
    port = HeldPort(LOOPBACK)
    try:
        yield port
    finally:
        port.close()


async def _plan(
    settings: Settings,
    num_replicas: int,
    num_gateways: int,
    seed: int,
    public: Address,
    folder: Path,
    links: dict[str, FaultProxy],
) -> ChaosStack:
    ports = _Ports({public.port})
    children: list[ChildSpec] = []
    files: dict[str, Path] = {}
    fronts: list[str] = []
    for replica in range(num_replicas):
        ends = {link: ports.take() for link in Link}
        entries = {}
        for number, (link, address) in enumerate(ends.items()):
            proxy = links[f"{link} {replica}"] = FaultProxy(address, seed * 100 + 2 * replica + number)
            entries[link] = await proxy.start()
        fronts.append(f"tcp://{entries[Link.FRONT]}")
        files[f"worker {replica}"] = folder / f"fault-{replica}"
        own = _of_replica(settings, replica, folder, ends)
        children.append(_child("scheduler", replica, own, ports.take(), {}, (0, 1)))
        own = _with_ipc(own, worker_endpoint=f"tcp://{entries[Link.DEVICE]}")
        environment = {FAULT_FILE_ENV: str(files[f"worker {replica}"])}
        children.append(_child("worker", replica, own, ports.take(), environment, (0, 2)))
    ops = tuple(ports.take() for _ in range(num_gateways))
    for index, address in enumerate(ops):
        own = _of_gateway(settings, index, folder, public, address, tuple(fronts))
        children.append(_child("gateway", index, own, ports.take(), {}, (1, 0)))
    return ChaosStack(public, ops, tuple(children), links, files, folder, tuple(ports.taken))


def _of_replica(settings: Settings, replica: int, folder: Path, ends: dict[Link, Address]) -> Settings:
    scheduler = msgspec.structs.replace(settings.scheduler, replica_id=f"replica-{replica}")
    own = msgspec.structs.replace(settings, scheduler=scheduler)
    return _with_ipc(
        own,
        run_dir=str(folder),
        gateway_endpoint=f"tcp://{ends[Link.FRONT]}",
        worker_endpoint=f"tcp://{ends[Link.DEVICE]}",
    )


def _of_gateway(
    settings: Settings, index: int, folder: Path, public: Address, ops: Address, fronts: tuple[str, ...]
) -> Settings:
    gateway = msgspec.structs.replace(
        settings.gateway,
        index=index,
        listen=str(public),
        ops_listen=str(ops.with_port(ops.port - index)),
        replicas=fronts,
    )
    return _with_ipc(msgspec.structs.replace(settings, gateway=gateway), run_dir=str(folder))


def _with_ipc(settings: Settings, **values: str) -> Settings:
    return msgspec.structs.replace(settings, ipc=msgspec.structs.replace(settings.ipc, **values))


_MODULES = {"scheduler": "scheduler_svc", "worker": "gpu_worker", "gateway": "gateway"}


def _child(
    section: str, index: int, settings: Settings, probe: Address, environment: dict[str, str], stages: tuple[int, int]
) -> ChildSpec:
    # A gateway adds its index to the port that it is given.
    listen = probe.with_port(probe.port - index) if section == "gateway" else probe
    values = msgspec.structs.replace(getattr(settings, section), metrics_listen=str(listen))
    own = msgspec.structs.replace(settings, **{section: values})
    arguments = [part for override in to_toml_overrides(own) for part in ("--set", override)]
    drain_s = getattr(values, "drain_timeout_s", 0.0)

    def prepare() -> Launch:
        return Launch((sys.executable, "-m", _MODULES[section], *arguments), {**os.environ, **environment}, probe)

    return ChildSpec(f"{section} {index}", *stages, drain_s + settings.supervisor.stop_timeout_s, prepare)


class _Ports:
    """Free ports of loopback, none twice."""

    def __init__(self, taken: set[int]) -> None:
        self._numbers = taken
        self.taken: list[Address] = []

    def take(self) -> Address:
        """One more."""
        address = find_free(LOOPBACK, self._numbers)
        self._numbers.add(address.port)
        self.taken.append(address)
        return address
