"""When a step counts as stuck. Times are made up."""

from gpu_worker.heartbeat import StepInWork, StepWatch

INTERVAL = 250
PATIENCE = 10_000


def looks(watch: StepWatch, step: StepInWork, start: int, end: int) -> int | None:
    """The watcher looks at every interval; the time at which it finds the step stuck."""
    return next((now for now in range(start, end, INTERVAL) if watch.is_stuck(step, now)), None)


def test_a_step_is_stuck_once_its_patience_is_over() -> None:
    step = StepInWork(since_ns=1_000_100, patience_ns=PATIENCE)
    found = looks(StepWatch(INTERVAL), step, 1_000_200, 1_020_000)
    assert found is not None
    assert PATIENCE < found - step.since_ns <= PATIENCE + INTERVAL


def test_time_in_which_the_watcher_stood_still_too_does_not_count() -> None:
    watch, step = StepWatch(INTERVAL), StepInWork(since_ns=1_000_100, patience_ns=PATIENCE)
    assert looks(watch, step, 1_000_200, 1_005_000) is None
    woken = 1_005_000 + 40_000
    assert looks(watch, step, woken, woken + 4_000) is None
    found = looks(watch, step, woken + 4_000, woken + 20_000)
    assert found is not None
    assert abs(found - (step.since_ns + 40_000 + PATIENCE)) <= 3 * INTERVAL


def test_a_pause_is_forgiven_to_the_step_that_it_met_alone() -> None:
    watch = StepWatch(INTERVAL)
    assert not watch.is_stuck(StepInWork(1_000_000, PATIENCE), 1_050_000)
    later = StepInWork(1_060_000, PATIENCE)
    found = looks(watch, later, 1_060_100, 1_090_000)
    assert found is not None
    assert PATIENCE < found - later.since_ns <= PATIENCE + INTERVAL
