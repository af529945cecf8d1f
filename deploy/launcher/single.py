"""One process kept running where others are started elsewhere: in its own container, or as a service of the machine.

The settings are the process's own: unlike in a whole stack, nothing of them is moved to a free port.
"""

import os
from collections.abc import Awaitable, Callable

from chairlift.runtime.addresses import Address, AddressError, parse_address
from chairlift.runtime.settings import Settings
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.kinds import command, stop_timeout_s
from deploy.launcher.probe import ask_excused_losses


def plan_single(name: str, settings: Settings) -> ChildSpec:
    """The child `name`, a kind of process. Raises AddressError where it has no HTTP port to be watched by."""
    probe = _probe(name, settings)
    launch = Launch(command(name, settings), dict(os.environ), probe)
    return ChildSpec(name, 0, 0, stop_timeout_s(name, settings), lambda: launch, _excused(name, settings))


def _excused(name: str, settings: Settings) -> Callable[[], Awaitable[int | None]] | None:
    """Whom a worker's supervisor asks which ends do not count."""
    scheduler = scheduler_probe(settings) if name == "worker" else None
    return None if scheduler is None else lambda: ask_excused_losses(scheduler)


def scheduler_probe(settings: Settings) -> Address | None:
    """The scheduler's HTTP port: that of ``scheduler.metrics_listen``, on the host to which the worker connects.

    None where the settings say that it has none. Raises AddressError.
    """
    if not settings.scheduler.metrics_listen:
        return None
    listen = parse_address(settings.scheduler.metrics_listen, "scheduler.metrics_listen").for_clients()
    endpoint = settings.ipc.worker_endpoint or ""
    if not endpoint.startswith("tcp://"):
        return listen
    host = parse_address(endpoint.removeprefix("tcp://"), "ipc.worker_endpoint").for_clients().host
    return Address(host, listen.port)


def _probe(name: str, settings: Settings) -> Address:
    key = f"{name}.metrics_listen"
    listen: str = getattr(settings, name).metrics_listen
    if not listen:
        raise AddressError(f"{key} is empty: the process is watched through its HTTP port")
    return parse_address(listen, key, settings.gateway.index if name == "gateway" else 0).for_clients()
