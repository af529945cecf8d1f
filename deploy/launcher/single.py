"""One process kept running where others are started elsewhere: in its own container, or as a service of the machine.

The settings are the process's own: unlike in a whole stack, nothing of them is moved to a free port.
"""

import os
import sys
from collections.abc import Awaitable, Callable

from chairlift.runtime.addresses import Address, AddressError, parse_address
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.probe import ask_excused_losses

MODULES = {"gateway": "gateway", "scheduler": "scheduler_svc", "worker": "gpu_worker"}
"""By the name of the process."""


def plan_single(name: str, settings: Settings) -> ChildSpec:
    """The child `name`, one of MODULES. Raises AddressError where it has no HTTP port to be watched by."""
    probe = _probe(name, settings)
    arguments = [part for override in to_toml_overrides(settings) for part in ("--set", override)]
    launch = Launch((sys.executable, "-m", MODULES[name], *arguments), dict(os.environ), probe)
    stop_timeout_s = _drain_s(name, settings) + settings.supervisor.stop_timeout_s
    return ChildSpec(name, 0, 0, stop_timeout_s, lambda: launch, _excused(name, settings))


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


def _drain_s(name: str, settings: Settings) -> float:
    match name:
        case "gateway":
            return settings.gateway.drain_timeout_s
        case "scheduler":
            return settings.scheduler.drain_timeout_s
        case _:
            return 0.0
