"""A stack of one's own for a measurement: started by the launcher, on free ports of loopback, gone afterwards."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import to_toml_overrides
from deploy.bench.load.grpc_client import GrpcTarget
from deploy.bench.observe.processes import Memory, find_descendants, measure_memory
from deploy.launcher.progress import Progress
from deploy.launcher.stack import prepare_stack
from deploy.launcher.supervisor import Supervisor

ANY_PORT = "127.0.0.1:0"


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
    """Starts gateway, scheduler and worker by `settings` on free ports, and stops them at the end.

    Only in the main thread. Raises StackError, AddressError and RunFolderError.
    """
    private = _make_private(settings)
    with prepare_stack(private) as stack:
        supervisor = Supervisor(stack.children, stack.settings.supervisor, Progress(verbose=False))
        try:
            await supervisor.start()
            yield OwnStack(
                target=GrpcTarget(address=str(stack.public.for_clients())),
                ops=GrpcTarget(address=str(stack.ops[0].for_clients())),
                settings=describe_settings(settings),
            )
        finally:
            await supervisor.stop()


def describe_settings(settings: Settings) -> dict[str, str]:
    """Those that differ from the defaults, by their path."""
    pairs = (override.partition("=") for override in to_toml_overrides(settings))
    return {path: value for path, _, value in pairs}


def _make_private(settings: Settings) -> Settings:
    replace = msgspec.structs.replace
    return replace(
        settings,
        gateway=replace(
            settings.gateway, listen=ANY_PORT, ops_listen=ANY_PORT, metrics_listen=ANY_PORT, replicas=(), index=0
        ),
        scheduler=replace(settings.scheduler, metrics_listen=ANY_PORT),
        worker=replace(settings.worker, metrics_listen=ANY_PORT),
        telemetry=replace(settings.telemetry, log_level="warning"),
        ipc=replace(settings.ipc, run_dir=None, gateway_endpoint=None, worker_endpoint=None),
    )
