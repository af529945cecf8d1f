"""Runs a supervisor in the foreground: until a signal asks it to stop, or it gives up."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from chairlift.runtime.process import ExitCode
from deploy.launcher.progress import Progress
from deploy.launcher.supervisor import StackError, Supervisor


class _Stop:
    """What the signals have asked for so far."""

    def __init__(self, supervisor: Supervisor, progress: Progress) -> None:
        self.requested = asyncio.Event()
        self.is_immediate = False
        self._supervisor = supervisor
        self._progress = progress

    def on_signal(self, number: signal.Signals) -> None:
        """The first one drains; an impatient Ctrl-C after it ends everything at once."""
        if not self.requested.is_set():
            self._progress.say(f"{number.name}: draining (Ctrl-C again ends at once)")
            self.requested.set()
        elif number is signal.SIGINT:
            self.is_immediate = True
            self._supervisor.kill()


async def run_until_stopped(supervisor: Supervisor, progress: Progress, on_ready: Callable[[], Awaitable[None]]) -> int:
    """Starts everything, calls `on_ready` once all is ready, and returns the exit code after the last child's end."""
    stop = _Stop(supervisor, progress)
    with _signals_go_to(stop):
        running = asyncio.create_task(_start_and_watch(supervisor, on_ready))
        stopping = asyncio.create_task(stop.requested.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        exit_code = int(ExitCode.OK)
        try:
            if running.done():
                running.result()
        except StackError as error:
            progress.say(str(error))
            exit_code = error.exit_code
        finally:
            running.cancel()
            stopping.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)
            await supervisor.stop()
        if stop.is_immediate:
            return 128 + signal.SIGINT
        return exit_code


async def _start_and_watch(supervisor: Supervisor, on_ready: Callable[[], Awaitable[None]]) -> None:
    """Ends by StackError only."""
    await supervisor.start()
    await on_ready()
    raise await supervisor.wait_failed()


@contextmanager
def _signals_go_to(stop: _Stop) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means: stay
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
