"""``python -m gpu_worker``: the worker process alone.

Imports torch only after settings are read and the threads are chosen, since OpenMP looks at its environment once.
"""

import os
import sys
from collections.abc import Sequence

from chairlift.runtime.lean_memory import limit_arenas
from chairlift.runtime.model_source import ModelNotFoundError, resolve_model
from chairlift.runtime.process import ExitCode, StopSignal, die_with_parent, stop_on_signals
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import parse_settings
from chairlift.runtime.sockets import EndpointError
from chairlift.runtime.telemetry import configure_logging, give_up
from chairlift.runtime.tracing import open_tracing
from gpu_worker.threads import ThreadPlan, plan_threads, prepare_openmp


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT; the exit code says why it ended."""
    die_with_parent()
    settings = parse_settings(argv, "gpu_worker")
    configure_logging(settings.telemetry, "worker")
    worker = settings.worker
    threads = plan_threads(worker.num_threads, worker.thread_spin_us, worker.pin_threads)
    prepare_openmp(os.environ, threads.num_threads)
    limit_arenas()
    with stop_on_signals() as stop:
        return _run(settings, threads, stop)


def _run(settings: Settings, threads: ThreadPlan, stop: StopSignal) -> int:
    import torch

    from gpu_worker.faults import FaultInjector
    from gpu_worker.kv_cache import KvCacheSizeError
    from gpu_worker.loading.errors import ModelLoadError
    from gpu_worker.loading.loader import open_model
    from gpu_worker.memory import DeviceMemoryError
    from gpu_worker.service import StopRequestedError, WorkerService
    from gpu_worker.sizes import UnusableSettingsError
    from gpu_worker.warm_up import WarmUpError

    torch.set_num_threads(threads.num_threads)
    try:
        files = open_model(resolve_model(settings.model.source, settings.model.revision))
        faults = FaultInjector.from_environ(os.environ)
        service = WorkerService(settings, files.config, faults, open_tracing("worker"))
    except (ModelNotFoundError, ModelLoadError) as error:
        return give_up(ExitCode.MODEL, "model_cannot_be_loaded", error)
    except (UnusableSettingsError, EndpointError, OSError, ValueError) as error:
        return give_up(ExitCode.USAGE, "worker_cannot_start", error)
    try:
        engine = service.load(files, threads, stop)
        # Lets go of the mapped files: their pages would count as this process's memory.
        del files
        return service.run(engine, stop)
    except StopRequestedError:
        return ExitCode.OK
    except UnusableSettingsError as error:
        return give_up(ExitCode.USAGE, "worker_cannot_start", error)
    except (ModelLoadError, KvCacheSizeError, DeviceMemoryError, WarmUpError, torch.OutOfMemoryError) as error:
        return give_up(ExitCode.MODEL, "model_cannot_be_served", error)
    finally:
        service.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
