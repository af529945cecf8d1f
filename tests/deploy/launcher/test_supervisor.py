"""The supervisor with stand-in children: order, restarts, giving up, ends that a restart does not help."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from chairlift.runtime.settings import SupervisorSettings
from deploy.launcher.child import ChildProcess
from deploy.launcher.supervisor import StackError, Supervisor

SETTINGS = SupervisorSettings(max_restarts=2, restart_backoff_s=0.0, start_timeout_s=60.0)


@asynccontextmanager
async def supervised(stand_ins: Any, *specs: Any, settings: SupervisorSettings = SETTINGS) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(specs, settings, stand_ins.progress)
    try:
        yield supervisor
    finally:
        await supervisor.stop()
    assert stand_ins.alive() == []


async def test_stages_start_and_stop_in_their_order(stand_ins: Any) -> None:
    specs = [
        stand_ins.spec("gateway", start_stage=1, stop_stage=0),
        stand_ins.spec("scheduler", start_stage=0, stop_stage=1),
        stand_ins.spec("worker", start_stage=0, stop_stage=2),
    ]
    async with supervised(stand_ins, *specs) as supervisor:
        await supervisor.start()
    events = stand_ins.events()
    assert sorted(events[:2]) == ["scheduler start", "worker start"]
    assert events[2:] == ["gateway start", "gateway end", "scheduler end", "worker end"]


async def test_child_that_dies_is_started_again(stand_ins: Any) -> None:
    async with supervised(stand_ins, stand_ins.spec("worker", "crash-once")) as supervisor:
        await supervisor.start()
        assert stand_ins.events() == ["worker start", "worker start"]
    assert "worker: killed by SIGKILL; restart in 0 s" in stand_ins.output.getvalue()


async def test_ready_child_that_is_killed_is_started_again(stand_ins: Any, wait_until: Callable[..., None]) -> None:
    async with supervised(stand_ins, stand_ins.spec("worker"), stand_ins.spec("scheduler")) as supervisor:
        await supervisor.start()
        victim = stand_ins.pids()[stand_ins.events().index("worker start")]
        os.kill(victim, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: stand_ins.events().count("worker start") == 2, "a restart")
        assert stand_ins.events().count("scheduler start") == 1


async def test_child_that_stands_still_is_replaced(stand_ins: Any, wait_until: Callable[..., None]) -> None:
    """A stopped process answers nothing, holds its connections open, and never ends by itself.

    Its riders wait meanwhile: it must not take the time of a process that is merely slow.
    """
    impatient = msgspec.structs.replace(SETTINGS, stopped_timeout_s=0.4)
    specs = [stand_ins.spec("worker"), stand_ins.spec("scheduler")]
    async with supervised(stand_ins, *specs, settings=impatient) as supervisor:
        await supervisor.start()
        victim = stand_ins.pids()[stand_ins.events().index("worker start")]
        os.kill(victim, signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: stand_ins.events().count("worker start") == 2, "a restart")
        assert victim not in stand_ins.alive()
        assert stand_ins.events().count("scheduler start") == 1
    hung = r"worker: hangs, not live for \d\.\d s \(stopped\): killed \(supervisor.stopped"
    assert re.search(hung, stand_ins.output.getvalue())


async def test_child_that_stands_still_for_a_moment_stays(stand_ins: Any, wait_until: Callable[..., None]) -> None:
    """And the next time that it stands still is seen as well."""
    impatient = msgspec.structs.replace(SETTINGS, stopped_timeout_s=5.0)
    async with supervised(stand_ins, stand_ins.spec("worker"), settings=impatient) as supervisor:
        await supervisor.start()
        (child,) = supervisor._running.values()
        (victim,) = stand_ins.pids()
        for _ in range(3):
            os.kill(victim, signal.SIGSTOP)
            assert await asyncio.wait_for(child.wait_stopped(), 30)
            assert child.is_stopped
            os.kill(victim, signal.SIGCONT)
            await asyncio.to_thread(wait_until, lambda: not child.is_stopped, "that it goes on")
        assert stand_ins.pids() == [victim]
        os.kill(victim, signal.SIGKILL)
        assert not await asyncio.wait_for(child.wait_stopped(), 30)
        await asyncio.to_thread(wait_until, lambda: stand_ins.events().count("worker start") == 2, "a restart")


async def test_child_that_stood_still_with_its_supervisor_stays(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """All processes of a paused machine were replaced where the supervisor went on first."""
    impatient = msgspec.structs.replace(SETTINGS, stopped_timeout_s=1.0)
    num_looks = 0

    def look(child: ChildProcess) -> bool:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 1:
            time.sleep(1.5)  # blocks the supervisor's loop
        elif num_looks == 3:
            os.kill(child.pid, signal.SIGCONT)
        return num_looks < 3

    monkeypatch.setattr(ChildProcess, "is_stopped", property(look))
    async with supervised(stand_ins, stand_ins.spec("worker"), settings=impatient) as supervisor:
        await supervisor.start()
        (victim,) = stand_ins.pids()
        os.kill(victim, signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: num_looks == 3, "three looks")
        os.kill(victim, signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: stand_ins.events().count("worker start") == 2, "a restart")
    assert "worker end" in stand_ins.events()
    assert "hangs" not in stand_ins.output.getvalue()


async def test_child_whose_loop_does_not_turn_is_replaced(stand_ins: Any, wait_until: Callable[..., None]) -> None:
    """Its HTTP thread goes on answering: health must follow progress, not mere life."""
    impatient = msgspec.structs.replace(SETTINGS, hang_timeout_s=0.5)
    async with supervised(stand_ins, stand_ins.spec("worker"), settings=impatient) as supervisor:
        await supervisor.start()
        os.kill(stand_ins.pids()[0], signal.SIGUSR1)
        await asyncio.to_thread(wait_until, lambda: stand_ins.events().count("worker start") == 2, "a restart")
    assert "(loop has not turned for" in stand_ins.output.getvalue()


async def test_crash_loop_gives_up_loudly(stand_ins: Any) -> None:
    async with supervised(stand_ins, stand_ins.spec("worker", "crash"), stand_ins.spec("scheduler")) as supervisor:
        with pytest.raises(StackError, match="after 2 restarts within 120 s: giving up") as caught:
            await supervisor.start()
        assert caught.value.exit_code == 1
        assert stand_ins.events().count("worker start") == 3


async def test_ends_that_a_request_brought_about_do_not_count(stand_ins: Any, wait_until: Callable[..., None]) -> None:
    """Two are allowed, and a scheduler knows only when the fourth worker comes that it was a request's fault."""
    num_told = 0

    async def count_excused() -> int | None:
        return num_told if len(stand_ins.pids()) > 3 else None

    spec = msgspec.structs.replace(stand_ins.spec("worker"), count_excused=count_excused)
    async with supervised(stand_ins, spec) as supervisor:
        await supervisor.start()
        for number in range(1, 7):
            num_told = number // 3 * 3
            await _kill_ready(stand_ins, wait_until, number)
    assert "giving up" not in stand_ins.output.getvalue()


async def test_a_worker_that_dies_by_itself_is_given_up_although_a_verdict_was_awaited(
    stand_ins: Any, wait_until: Callable[..., None]
) -> None:
    """Answers that do not come in time are no news: they must not let an old verdict count again."""
    answers = iter([3, None, 3, None, 3])

    async def count_excused() -> int | None:
        return next(answers)

    settings = msgspec.structs.replace(SETTINGS, max_restarts=1)
    spec = msgspec.structs.replace(stand_ins.spec("worker"), count_excused=count_excused)
    async with supervised(stand_ins, spec, settings=settings) as supervisor:
        await supervisor.start()
        # One in the budget, which the first answer frees; then one, and three for a verdict that does not come.
        for number in range(1, 6):
            await _kill_ready(stand_ins, wait_until, number)
        os.kill(stand_ins.pids()[-1], signal.SIGKILL)
        async with asyncio.timeout(30):
            error = await supervisor.wait_failed()
    assert "after 4 restarts within 120 s: giving up" in str(error)


async def _kill_ready(stand_ins: Any, wait_until: Callable[..., None], number: int) -> None:
    """Kills life number `number` of the only child, and waits until the next is ready."""
    os.kill(stand_ins.pids()[-1], signal.SIGKILL)

    def is_next_ready() -> bool:
        return bool(stand_ins.output.getvalue().count("worker: ready") > number)

    await asyncio.to_thread(wait_until, is_next_ready, "a restart")


@pytest.mark.parametrize("code", [2, 3])
async def test_settings_or_model_error_ends_with_its_code_and_no_restart(stand_ins: Any, code: int) -> None:
    """A model that cannot be loaded must not be loaded five times, and no gateway may open a port for it."""
    specs = [stand_ins.spec("gateway", start_stage=1), stand_ins.spec("worker", f"exit:{code}")]
    async with supervised(stand_ins, *specs) as supervisor:
        with pytest.raises(StackError, match=f"worker exited with code {code}") as caught:
            await supervisor.start()
        assert caught.value.exit_code == code
    assert stand_ins.events() == ["worker start"]


async def test_child_that_never_becomes_ready_is_named_at_the_time_out(stand_ins: Any) -> None:
    impatient = SupervisorSettings(start_timeout_s=2.0)
    specs = [stand_ins.spec("scheduler"), stand_ins.spec("worker", "loading")]
    async with supervised(stand_ins, *specs, settings=impatient) as supervisor:
        with pytest.raises(StackError, match=r"not ready within 2 s \(supervisor.start_timeout_s\): worker$"):
            await supervisor.start()
    assert "worker: loading weights (" in stand_ins.output.getvalue()


async def test_child_that_does_not_drain_is_killed_after_its_time(stand_ins: Any) -> None:
    async with supervised(stand_ins, stand_ins.spec("worker", "stubborn", stop_timeout_s=0.1)) as supervisor:
        await supervisor.start()
    assert "worker: did not end within 0.1 s; killed" in stand_ins.output.getvalue()


async def test_what_a_child_started_ends_with_it(stand_ins: Any, wait_until: Callable[..., None]) -> None:
    supervisor = Supervisor([stand_ins.spec("worker", "family")], SETTINGS, stand_ins.progress)
    await supervisor.start()
    assert len(stand_ins.alive()) == 2
    await supervisor.stop()
    wait_until(lambda: stand_ins.alive() == [], "the end of the child's own child")
