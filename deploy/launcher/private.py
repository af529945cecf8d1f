"""A stack of one's own, on free ports of this machine, for as long as a block of code runs."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from chairlift.runtime.settings import Settings
from deploy.launcher.progress import Progress
from deploy.launcher.stack import Stack, prepare_stack
from deploy.launcher.supervisor import StackError, Supervisor


@asynccontextmanager
async def private_stack(settings: Settings, progress: Progress) -> AsyncIterator[Stack]:
    """A stack that is ready, and gone when the block has ended. Only in the main thread.

    Where `settings` name addresses, replicas, endpoints or credentials, loopback, free ports and a folder of its own
    are used instead; it has as many gateways as they say. SIGTERM cancels the block, and so does a stack that cannot be
    kept running. Raises StackError, PortError, RunFolderError, ModelNotFoundError.
    """
    block = asyncio.current_task()
    assert block is not None
    loop = asyncio.get_running_loop()
    with prepare_stack(_on_free_ports(settings)) as stack:
        supervisor = Supervisor(stack.children, settings.supervisor, progress)
        watching = asyncio.create_task(supervisor.wait_failed())
        loop.add_signal_handler(signal.SIGTERM, block.cancel)
        try:
            await supervisor.start()
            watching.add_done_callback(lambda task: None if task.cancelled() else block.cancel())
            yield stack
        except asyncio.CancelledError:
            failure = _failure(watching)
            if failure is None:
                raise
            block.uncancel()
            raise failure from None
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            watching.cancel()
            await supervisor.stop()


def _on_free_ports(settings: Settings) -> Settings:
    replace = msgspec.structs.replace
    loopback = "127.0.0.1:0"
    return replace(
        settings,
        ipc=replace(settings.ipc, run_dir=None, gateway_endpoint=None, worker_endpoint=None),
        gateway=replace(
            settings.gateway,
            listen=loopback,
            ops_listen=loopback,
            metrics_listen=loopback,
            replicas=(),
            index=0,
            auth_file=None,
            tls_cert_file=None,
            tls_key_file=None,
            tls_client_ca_file=None,
            ops_tls_client_ca_file=None,
        ),
        scheduler=replace(settings.scheduler, metrics_listen=loopback),
        worker=replace(settings.worker, metrics_listen=loopback),
    )


def _failure(watching: "asyncio.Task[StackError]") -> StackError | None:
    return watching.result() if watching.done() and not watching.cancelled() else None
