"""A stack of one's own for a measurement: the launcher's, with targets for the load generator and what to record."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides
from deploy.bench.load.grpc_client import GrpcTarget
from deploy.bench.observe.processes import Memory, find_descendants, measure_memory
from deploy.bench.tenants import own_credentials
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
async def run_own_stack(settings: Settings, tenants: Sequence[str] = ()) -> AsyncIterator[OwnStack]:
    """Starts a stack by `settings`, with the private parts of its own, and stops it at the end.

    With `tenants` it authenticates its callers, and the targets carry their tokens. Raises what `private_stack` raises.
    """
    quiet = msgspec.structs.replace(settings.telemetry, log_level="warning")
    own = msgspec.structs.replace(settings, telemetry=quiet)
    with own_credentials(own, tenants) as credentials:
        async with private_stack(credentials.settings, Progress(verbose=False)) as stack:
            target = GrpcTarget(
                address=str(stack.public), api_key=credentials.api_key, tenant_keys=credentials.tenant_keys
            )
            yield OwnStack(
                target=target,
                ops=GrpcTarget(address=str(stack.ops[0]), api_key=credentials.api_key),
                settings=describe_settings(settings),
            )


def describe_settings(settings: Settings) -> dict[str, str]:
    """Those that differ from the defaults, by their path."""
    pairs = (override.partition("=") for override in to_toml_overrides(settings))
    return {path: value for path, _, value in pairs}
