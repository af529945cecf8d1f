"""The three kinds of process as children of one supervisor: their settings, ports, sockets and order.

Each child gets the settings in force as ``--set`` arguments and none of them from its environment, so that what it
does is what the supervisor validated. Ports that were left at their defaults give way to free ones; those that an
operator chose are used or refused.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from chairlift.runtime.addresses import Address, parse_address
from chairlift.runtime.exposure import gateway_addresses
from chairlift.runtime.model_source import resolve_model
from chairlift.runtime.settings import GatewaySettings, SchedulerSettings, Settings, WorkerSettings
from chairlift.runtime.settings_loader import CONFIG_ENV, ENV_PREFIX
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.kinds import STAGES, command, stop_timeout_s, with_probe
from deploy.launcher.ports import HeldPort, PortError, find_free, is_free
from deploy.launcher.probe import ask_excused_losses
from deploy.launcher.run_folder import RunFolder

_ANY_PORT = Address("127.0.0.1", 0)


class Stack(msgspec.Struct, frozen=True):
    """What is about to run, and where."""

    settings: Settings
    public: Address
    ops: tuple[Address, ...]
    """Of each gateway."""
    children: tuple[ChildSpec, ...]
    probes: dict[str, Address]
    """HTTP port of each child by its name; follows restarts."""
    http: Address | None = None
    """OpenAI-compatible HTTP, of all gateways."""


@contextmanager
def prepare_stack(settings: Settings) -> Iterator[Stack]:
    """Takes the public ports and a run folder, which are given back at the end, and plans the children.

    What would end a child after a long load is found here: raises AddressError, PortError, RunFolderError,
    ModelNotFoundError.
    """
    resolve_model(settings.model.source, settings.model.revision)
    # The gateway's own rule, before the model is loaded.
    addresses = gateway_addresses(settings.gateway)
    with ExitStack() as held:
        public = _hold(held, addresses.public)
        http = None if addresses.http is None else _hold(held, addresses.http)
        folder = held.enter_context(RunFolder(settings.ipc.run_dir))
        yield _plan(_with_paths(settings, public, http, folder), public, http)


def _hold(held: ExitStack, address: Address) -> Address:
    port = HeldPort(address)
    held.callback(port.close)
    return port.address


def _with_paths(settings: Settings, public: Address, http: Address | None, folder: RunFolder) -> Settings:
    replace = msgspec.structs.replace
    return replace(
        settings,
        ipc=replace(settings.ipc, run_dir=str(folder.path)),
        gateway=replace(settings.gateway, listen=str(public), http_listen="" if http is None else str(http)),
    )


def _plan(settings: Settings, public: Address, http: Address | None) -> Stack:
    ports = _Ports({public.port} if http is None else {public.port, http.port})
    ops = ports.ops_addresses(settings)
    probes = ports.probe_addresses(settings)
    children = [_child("scheduler", "scheduler", settings, probes), _child("worker", "worker", settings, probes)]
    for index, own_ops in enumerate(ops):
        # A gateway adds its index to the operator port that it is given, as to its HTTP port (`with_probe`).
        gateway = msgspec.structs.replace(
            settings.gateway, index=index, ops_listen=str(own_ops.with_port(own_ops.port - index))
        )
        own = msgspec.structs.replace(settings, gateway=gateway)
        children.append(_child("gateway", _gateway_name(index, len(ops)), own, probes))
    return Stack(settings, public, tuple(ops), tuple(children), probes, http)


def _gateway_name(index: int, count: int) -> str:
    return "gateway" if count == 1 else f"gateway {index}"


def _child(kind: str, name: str, settings: Settings, probes: dict[str, Address]) -> ChildSpec:
    def prepare() -> Launch:
        others = {address.port for other, address in probes.items() if other != name}
        probe = probes[name] = find_free(probes[name], others)
        return Launch(command(kind, with_probe(kind, settings, probe)), _environment(), probe)

    async def count_excused() -> int | None:
        return await ask_excused_losses(probes["scheduler"])

    excused = count_excused if kind == "worker" else None
    return ChildSpec(name, *STAGES[kind], stop_timeout_s(kind, settings), prepare, excused)


def _environment() -> dict[str, str]:
    """This process's, without settings: children get them as arguments."""
    return {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith(ENV_PREFIX) and "__" in name) and name != CONFIG_ENV
    }


class _Ports:
    """Gives each listener a port, and none twice."""

    def __init__(self, taken: set[int]) -> None:
        self._taken = taken

    def ops_addresses(self, settings: Settings) -> Sequence[Address]:
        """Operator's address of each gateway. Raises AddressError, PortError."""
        return self._consecutive(
            "gateway.ops_listen",
            settings.gateway.ops_listen,
            GatewaySettings().ops_listen,
            settings.supervisor.gateways,
        )

    def probe_addresses(self, settings: Settings) -> dict[str, Address]:
        """HTTP address of each child by its name. Raises AddressError, PortError."""
        count = settings.supervisor.gateways
        scheduler, worker, gateway = settings.scheduler, settings.worker, settings.gateway
        return {
            "scheduler": self._one("scheduler", scheduler.metrics_listen, SchedulerSettings().metrics_listen),
            "worker": self._one("worker", worker.metrics_listen, WorkerSettings().metrics_listen),
        } | {
            _gateway_name(index, count): address
            for index, address in enumerate(
                self._consecutive(
                    "gateway.metrics_listen", gateway.metrics_listen, GatewaySettings().metrics_listen, count
                )
            )
        }

    def _one(self, section: str, chosen: str, default: str) -> Address:
        return self._consecutive(f"{section}.metrics_listen", chosen, default, 1)[0]

    def _consecutive(self, key: str, chosen: str, default: str, count: int) -> Sequence[Address]:
        """`count` addresses from `chosen` on; any free ones where it is the default or has port 0 or is empty."""
        first = parse_address(chosen, key) if chosen else _ANY_PORT
        addresses = []
        for index in range(count):
            wanted = first.with_port(first.port + index if first.port else 0)
            if chosen == default or not first.port:
                address = find_free(wanted, self._taken)
            elif wanted.port in self._taken or not is_free(wanted):
                raise PortError(f"{wanted}: the port is in use ({key})")
            else:
                address = wanted
            self._taken.add(address.port)
            addresses.append(address)
        return addresses
