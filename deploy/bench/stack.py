"""A stack of one's own for a measurement: the launcher's, with targets for the load generator and what to record."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides
from deploy.bench.load.grpc_client import GrpcTarget
from deploy.bench.observe.processes import Memory, find_descendants, measure_memory
from deploy.launcher.private import private_stack
from deploy.launcher.progress import Progress


class OwnStack(msgspec.Struct, frozen=True, kw_only=True):
    """A stack that runs now."""

    target: GrpcTarget
    ops: GrpcTarget
    settings: dict[str, str]
    """``section.key`` to value, where they differ from the defaults; for the record of a result."""

    def measure_memory(self) -> Memory | None:
        """Of gateway, scheduler and worker together. The launcher is this process, which is the client too."""
        return measure_memory(find_descendants(os.getpid()))


@asynccontextmanager
async def run_own_stack(settings: Settings) -> AsyncIterator[OwnStack]:
    """Starts a stack by `settings`, with the private parts of its own, and stops it at the end.

    Raises what `private_stack` raises.
    """
    quiet = msgspec.structs.replace(settings.telemetry, log_level="warning")
    own = msgspec.structs.replace(settings, telemetry=quiet)
    async with private_stack(own, Progress(verbose=False)) as stack:
        yield OwnStack(
            target=GrpcTarget(address=str(stack.public)),
            ops=GrpcTarget(address=str(stack.ops[0])),
            settings=describe_settings(settings),
        )


def describe_settings(settings: Settings) -> dict[str, str]:
    """Those that differ from the defaults, by their path."""
    pairs = (override.partition("=") for override in to_toml_overrides(settings))
    return {path: value for path, _, value in pairs}
