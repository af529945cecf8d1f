"""The three kinds of process as whoever starts them needs to know them: module, place in the order, command line.

A kind has the name of its section of the settings. Who starts how many of them, and where, is for others to say.
"""

import sys

import msgspec

from chairlift.runtime.addresses import Address
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides

MODULES = {"gateway": "gateway", "scheduler": "scheduler_svc", "worker": "gpu_worker"}
STAGES = {"gateway": (1, 0), "scheduler": (0, 1), "worker": (0, 2)}
"""When it starts and when it is asked to end, among the other kinds of its stack."""


def command(kind: str, settings: Settings) -> tuple[str, ...]:
    """Starts a process that has `settings`, whatever its environment says of them."""
    arguments = [part for override in to_toml_overrides(settings) for part in ("--set", override)]
    return (sys.executable, "-m", MODULES[kind], *arguments)


def with_probe(kind: str, settings: Settings, probe: Address) -> Settings:
    """`settings` of a process of that kind whose HTTP port is to be at `probe`."""
    # A gateway adds its index to the ports that it is given: what it is handed makes the sum come out right.
    offset = settings.gateway.index if kind == "gateway" else 0
    listen = str(probe.with_port(probe.port - offset))
    section = msgspec.structs.replace(getattr(settings, kind), metrics_listen=listen)
    return msgspec.structs.replace(settings, **{kind: section})


def stop_timeout_s(kind: str, settings: Settings) -> float:
    """How long it may take from SIGTERM to its end: its own drain, and what the supervisor grants to all."""
    drain_s: float = getattr(getattr(settings, kind), "drain_timeout_s", 0.0)
    return drain_s + settings.supervisor.stop_timeout_s
