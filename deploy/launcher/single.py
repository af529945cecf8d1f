"""One process kept running where others are started elsewhere: in its own container, or as a service of the machine.

The settings are the process's own: unlike in a whole stack, nothing of them is moved to a free port.
"""

import os
import sys

from chairlift.runtime.addresses import Address, AddressError, parse_address
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides
from deploy.launcher.child import ChildSpec, Launch

MODULES = {"gateway": "gateway", "scheduler": "scheduler_svc", "worker": "gpu_worker"}
"""By the name of the process."""


def plan_single(name: str, settings: Settings) -> ChildSpec:
    """The child `name`, one of MODULES. Raises AddressError where it has no HTTP port to be watched by."""
    probe = _probe(name, settings)
    arguments = [part for override in to_toml_overrides(settings) for part in ("--set", override)]
    launch = Launch((sys.executable, "-m", MODULES[name], *arguments), dict(os.environ), probe)
    return ChildSpec(name, 0, 0, _drain_s(name, settings) + settings.supervisor.stop_timeout_s, lambda: launch)


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
