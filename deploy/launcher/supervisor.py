"""Keeps a set of child processes running: start in stages, restart with back-off, give up loudly, drain in order.

A child that has ended is started again, and so is one that hangs: it is killed when for too long it has not shown that
its loop turns (`LifeSign`).

Knows children by `ChildSpec` only, not what they do. Everything runs on one event loop in the main thread: the kernel
ties the children's lives to the thread that started them.
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence

from chairlift.runtime.process import ExitCode
from chairlift.runtime.round_times import until_round_time
from chairlift.runtime.settings import SupervisorSettings
from deploy.launcher.child import ChildProcess, ChildSpec, can_restart_help, describe_end
from deploy.launcher.liveness import Liveness, Silence
from deploy.launcher.probe import ask_live, ask_ready
from deploy.launcher.progress import Progress
from deploy.launcher.restart import VERDICT_DEATHS, RestartBudget

PROBE_INTERVAL_S = 0.1
LIVENESS_INTERVAL_S = 5.0
SILENCE_INTERVAL_S = 1.0
"""While a child shows no sign of life."""
STOPPED_INTERVAL_S = 0.2


class StackError(Exception):
    """The children cannot be kept running. `exit_code` is what the supervisor should end with."""

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Supervisor:
    """Runs children from `start` to `stop`. Not reusable."""

    def __init__(self, specs: Sequence[ChildSpec], settings: SupervisorSettings, progress: Progress) -> None:
        self._specs = specs
        self._settings = settings
        self._progress = progress
        self._keepers: list[asyncio.Task[None]] = []
        self._running: dict[str, ChildProcess] = {}
        self._liveness: dict[str, Liveness] = {}
        self._ready = {spec.name: asyncio.Event() for spec in specs}
        self._failure: asyncio.Future[StackError] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Starts every child, stage by stage, and returns when all are ready. Raises StackError."""
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                for stage in sorted({spec.start_stage for spec in self._specs}):
                    await self._start_stage([spec for spec in self._specs if spec.start_stage == stage])
        except TimeoutError:
            waiting = ", ".join(name for name, ready in self._ready.items() if not ready.is_set())
            raise StackError(
                f"not ready within {self._settings.start_timeout_s:g} s (supervisor.start_timeout_s): {waiting}"
            ) from None

    async def wait_failed(self) -> StackError:
        """Returns when a child cannot be kept running: why."""
        return await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """Drains and ends every child, stage by stage. Afterwards none is left."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for stage in sorted({spec.stop_stage for spec in self._specs}):
            await self._stop_stage([child for child in self._running.values() if child.spec.stop_stage == stage])

    def kill(self) -> None:
        """Ends every child at once; a `stop` that waits for them then returns."""
        for child in self._running.values():
            child.kill()

    async def _start_stage(self, specs: Sequence[ChildSpec]) -> None:
        for spec in specs:
            keeper = asyncio.create_task(self._keep(spec), name=f"keep {spec.name}")
            keeper.add_done_callback(self._on_task_done)
            self._keepers.append(keeper)
        all_ready = asyncio.create_task(self._wait_ready(specs))
        try:
            await asyncio.wait((all_ready, self._failure), return_when=asyncio.FIRST_COMPLETED)
        finally:
            all_ready.cancel()
        if self._failure.done():
            raise self._failure.result()

    async def _wait_ready(self, specs: Sequence[ChildSpec]) -> None:
        for spec in specs:
            await self._ready[spec.name].wait()

    async def _keep(self, spec: ChildSpec) -> None:
        """One child's whole life: ends by cancellation, or by StackError."""
        budget = RestartBudget(self._settings)
        while True:
            child = await self._launch(spec)
            watching = (self._watch_ready(child), self._watch_live(child), self._watch_stopped(child))
            watchers = [self._watch(spec, one) for one in watching]
            try:
                code = await child.wait()
            finally:
                for watcher in watchers:
                    watcher.cancel()
            del self._running[spec.name]
            self._ready[spec.name].clear()
            if not child.was_ready and not can_restart_help(code):
                raise StackError(f"{spec.name} {describe_end(code)}; its message is above", code)
            pause = await self._next_pause(child, budget)
            if pause is None:
                raise StackError(
                    f"{spec.name} {describe_end(code)}, after {budget.num_recent} restarts within "
                    f"{self._settings.restart_window_s:g} s: giving up"
                )
            self._progress.restarting(spec.name, describe_end(code), pause)
            await asyncio.sleep(pause)

    async def _next_pause(self, ended: ChildProcess, budget: RestartBudget) -> float | None:
        """Seconds before the next start, or None to give up.

        Ends that a request brought about do not count, but that is known only when the next worker comes: one that
        was ready is given the restarts that such a verdict takes.
        """
        pause = budget.next_pause(time.monotonic())
        count_excused = ended.spec.count_excused
        if pause is not None or count_excused is None:
            return pause
        total = await count_excused()
        if total is not None:
            budget.excuse(total)
        return budget.next_pause(time.monotonic(), VERDICT_DEATHS if ended.was_ready else 0)

    def _watch(self, spec: ChildSpec, watching: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        watcher = asyncio.create_task(watching, name=f"watch {spec.name}")
        watcher.add_done_callback(self._on_task_done)
        return watcher

    async def _launch(self, spec: ChildSpec) -> ChildProcess:
        try:
            child = await ChildProcess.start(spec)
        except (OSError, ValueError) as error:
            raise StackError(f"{spec.name} cannot be started: {error}") from error
        self._running[spec.name] = child
        self._progress.started(spec.name, child.pid)
        return child

    async def _watch_ready(self, child: ChildProcess) -> None:
        """Returns when `child` says that it is ready, and has told about its progress until then."""
        while not (answer := await ask_ready(child.launch.probe)).is_yes:
            self._progress.loading(child.spec.name, answer.reason)
            await asyncio.sleep(PROBE_INTERVAL_S)
        child.was_ready = True
        self._progress.ready(child.spec.name)
        self._ready[child.spec.name].set()

    async def _watch_live(self, child: ChildProcess) -> None:
        """Returns when `child` hangs, and has killed it."""
        liveness = self._liveness[child.spec.name] = Liveness(self._settings)
        most_s = self._settings.hang_timeout_s / 4
        while True:
            now = time.monotonic()
            is_live = child.lives_until > now
            silence = liveness.note(
                now, is_live=is_live, was_ready=child.was_ready, are_most_silent=self._are_most_silent()
            )
            if silence is not None:
                # What it says of itself, for the log.
                answer = await ask_live(child.launch.probe)
                self._progress.hung(child.spec.name, silence, answer.reason)
                child.kill()
                return
            pause_s = min(most_s, LIVENESS_INTERVAL_S if is_live else SILENCE_INTERVAL_S)
            # At the same times for all children: one wake for all of them.
            await asyncio.sleep(until_round_time(now, pause_s))

    def _are_most_silent(self) -> bool:
        """Of three children or more that were ready."""
        ready = [
            self._liveness[name] for name, one in self._running.items() if one.was_ready and name in self._liveness
        ]
        return len(ready) > 2 and 2 * sum(one.is_silent for one in ready) > len(ready)

    async def _watch_stopped(self, child: ChildProcess) -> None:
        """Returns when `child` was stopped from outside for too long, and has killed it: its peers wait meanwhile."""
        limit_s = self._settings.stopped_timeout_s
        pause_s = min(STOPPED_INTERVAL_S, limit_s / 2)
        while await child.wait_stopped():
            since = time.monotonic()
            # Looks are counted: while this process stood still with the child, as a paused machine's do, it made none.
            for _ in range(math.ceil(limit_s / pause_s)):
                await asyncio.sleep(pause_s)
                if not child.is_stopped:
                    break
            else:
                silence = Silence(time.monotonic() - since, "supervisor.stopped_timeout_s")
                self._progress.hung(child.spec.name, silence, "stopped")
                child.kill()
                return

    async def _stop_stage(self, children: Sequence[ChildProcess]) -> None:
        for child in children:
            child.terminate()
        await asyncio.gather(*(self._wait_or_kill(child) for child in children))

    async def _wait_or_kill(self, child: ChildProcess) -> None:
        try:
            async with asyncio.timeout(child.spec.stop_timeout_s):
                await child.wait()
        except TimeoutError:
            self._progress.killing(child.spec.name, child.spec.stop_timeout_s)
            child.kill()
            await child.wait()
        del self._running[child.spec.name]

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        """A keeper never returns, and neither task may fail unseen."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            failure = error if isinstance(error, StackError) else StackError(f"{task.get_name()}: {error!r}")
            self._failure.set_result(failure)
