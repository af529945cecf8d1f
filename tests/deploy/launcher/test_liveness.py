"""When silence is a hang: after its time, counted from the first probe that failed, and later while a child loads."""

from chairlift.runtime.settings import SupervisorSettings
from deploy.launcher.liveness import Liveness, Silence

SETTINGS = SupervisorSettings(hang_timeout_s=20.0, start_timeout_s=600.0)


def test_a_process_that_answers_now_and_then_is_left_alone() -> None:
    """A slow step on a busy CPU misses many probes, and none for long."""
    liveness = Liveness(SETTINGS)
    for second in range(200):
        assert liveness.note(second, is_live=second % 19 == 0, was_ready=True) is None


def test_silence_counts_from_the_first_probe_that_failed() -> None:
    """A supervisor that stood still for an hour must not find every child dead."""
    liveness = Liveness(SETTINGS)
    assert liveness.note(0.0, is_live=True, was_ready=True) is None
    assert liveness.note(3600.0, is_live=False, was_ready=True) is None
    assert liveness.note(3619.0, is_live=False, was_ready=True) is None
    assert liveness.note(3620.0, is_live=False, was_ready=True) == Silence(20.0, "supervisor.hang_timeout_s")


def test_a_process_that_was_never_ready_has_the_time_of_a_start() -> None:
    liveness = Liveness(SETTINGS)
    assert liveness.note(0.0, is_live=False, was_ready=False) is None
    assert liveness.note(599.0, is_live=False, was_ready=False) is None
    assert liveness.note(600.0, is_live=False, was_ready=False) == Silence(600.0, "supervisor.start_timeout_s")


def test_silence_of_most_is_the_machines() -> None:
    """A host that gives nobody a turn must not have every model loaded again on top."""
    liveness = Liveness(SETTINGS)
    assert liveness.note(0.0, is_live=False, was_ready=True, are_most_silent=True) is None
    assert liveness.is_silent
    assert liveness.note(99.0, is_live=False, was_ready=True, are_most_silent=True) is None
    assert liveness.note(100.0, is_live=False, was_ready=True, are_most_silent=True) is not None
    assert liveness.note(25.0, is_live=False, was_ready=True, are_most_silent=False) is not None
