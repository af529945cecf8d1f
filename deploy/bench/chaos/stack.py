"""The stack under test: several replicas and gateways on this machine, every link one that can misbehave.

Made of the launcher's own parts (children, supervisor, held port), so that what recovers here is what recovers there.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from chairlift.runtime.addresses import Address
from chairlift.runtime.settings import Settings
from deploy.bench.chaos.faults import Link
from deploy.bench.chaos.loopback import LOOPBACK
from deploy.bench.chaos.network import FaultyLink, Network, Place, ReplicaPlace
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.kinds import STAGES, command, stop_timeout_s, with_probe
from deploy.launcher.ports import HeldPort
from deploy.launcher.run_folder import RunFolder

FAULT_FILE_ENV = "CHAIRLIFT_FAULT_FILE"
"""Of `gpu_worker.faults`, which nothing here may import."""


class StackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted."""

    settings: Settings
    num_replicas: int
    num_gateways: int
    ipc: Mapping[str, Mapping[str, str]] = {}
    """Settings of ``[ipc]`` that one kind of process has for itself, by its section."""

    def of(self, section: str, **ipc: str) -> Settings:
        """The settings of that kind of process, with `ipc` on top."""
        # Plaintext travels on links that nobody else can reach: loopback, or namespaces of the run's own.
        values = {"allow_plaintext": True, **self.ipc.get(section, {}), **ipc}
        return msgspec.structs.replace(self.settings, ipc=msgspec.structs.replace(self.settings.ipc, **values))


class ChaosStack(msgspec.Struct, frozen=True):
    """What runs, and where it can be hurt."""

    public: Address
    ops: tuple[Address, ...]
    """Of each gateway."""
    children: tuple[ChildSpec, ...]
    links: Mapping[str, FaultyLink]
    """``front 0``, ``device 0`` and so on."""
    fault_files: dict[str, Path]
    """Of each worker by its name."""
    folder: Path


@asynccontextmanager
async def chaos_stack(plan: StackPlan, network: Network) -> AsyncIterator[ChaosStack]:
    """Plans the stack on `network`; starts no process. Raises PortError, RunFolderError, BenchError."""
    with _held_port() as public, RunFolder(None) as folder:
        yield await _plan(plan, network, public.address, folder.path)


@contextmanager
def _held_port() -> Iterator[HeldPort]:
    port = HeldPort(LOOPBACK)
    try:
        yield port
    finally:
        port.close()


async def _plan(plan: StackPlan, network: Network, public: Address, folder: Path) -> ChaosStack:
    children: list[ChildSpec] = []
    files: dict[str, Path] = {}
    fronts: list[str] = []
    for replica in range(plan.num_replicas):
        place = await network.add_replica(replica)
        fronts.append(f"tcp://{place.ends[Link.FRONT].connect}")
        file = files[f"worker {replica}"] = folder / f"fault-{replica}"
        children += _replica(plan, replica, folder, place, file)
    ops = tuple(network.take_local() for _ in range(plan.num_gateways))
    for index, address in enumerate(ops):
        own = _of_gateway(plan.of("gateway", run_dir=str(folder)), index, public, address, tuple(fronts))
        children.append(_child("gateway", index, own, Place(network.take_local()), {}))
    return ChaosStack(public, ops, tuple(children), network.links, files, folder)


def _replica(plan: StackPlan, replica: int, folder: Path, place: ReplicaPlace, fault_file: Path) -> list[ChildSpec]:
    front, device = place.ends[Link.FRONT], place.ends[Link.DEVICE]
    of_scheduler = plan.of(
        "scheduler",
        run_dir=str(folder),
        gateway_endpoint=f"tcp://{front.bind}",
        worker_endpoint=f"tcp://{device.bind}",
    )
    named = msgspec.structs.replace(of_scheduler.scheduler, replica_id=f"replica-{replica}")
    of_scheduler = msgspec.structs.replace(of_scheduler, scheduler=named)
    of_worker = plan.of("worker", run_dir=str(folder), worker_endpoint=f"tcp://{device.connect}")
    environment = {FAULT_FILE_ENV: str(fault_file)}
    return [
        _child("scheduler", replica, of_scheduler, place.scheduler, {}),
        _child("worker", replica, of_worker, place.worker, environment),
    ]


def _of_gateway(settings: Settings, index: int, public: Address, ops: Address, fronts: tuple[str, ...]) -> Settings:
    gateway = msgspec.structs.replace(
        settings.gateway,
        index=index,
        listen=str(public),
        ops_listen=str(ops.with_port(ops.port - index)),
        replicas=fronts,
    )
    return msgspec.structs.replace(settings, gateway=gateway)


def _child(kind: str, index: int, settings: Settings, place: Place, environment: dict[str, str]) -> ChildSpec:
    argv = (*place.prefix, *command(kind, with_probe(kind, settings, place.probe)))

    def prepare() -> Launch:
        return Launch(argv, {**os.environ, **environment}, place.probe)

    return ChildSpec(f"{kind} {index}", *STAGES[kind], stop_timeout_s(kind, settings), prepare)
