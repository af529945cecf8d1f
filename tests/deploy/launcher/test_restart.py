"""How often a child is started again, and which of its ends do not count."""

from chairlift.runtime.settings import SupervisorSettings
from deploy.launcher.restart import VERDICT_DEATHS, RestartBudget
from scheduler_svc.core.probation import MAX_DEATHS

SETTINGS = SupervisorSettings(max_restarts=3, restart_window_s=100.0, restart_backoff_s=1.0, max_restart_backoff_s=3.0)


def test_pauses_double_up_to_their_bound_and_then_it_gives_up() -> None:
    budget = RestartBudget(SETTINGS)
    assert [budget.next_pause(float(second)) for second in range(4)] == [1.0, 2.0, 3.0, None]
    assert budget.next_pause(101.5) is not None


def test_excused_ends_make_room_once() -> None:
    """A request that killed the worker three times is gone: the worker is as good as before."""
    budget = RestartBudget(SETTINGS)
    for second in range(3):
        budget.next_pause(float(second))
    assert not budget.excuse(0)
    assert budget.next_pause(3.0) is None
    assert budget.excuse(3)
    assert not budget.excuse(3)
    assert [budget.next_pause(4.0) for _ in range(4)] == [1.0, 2.0, 3.0, None]


def test_a_count_that_begins_anew_is_another_schedulers() -> None:
    budget = RestartBudget(SETTINGS)
    for second in range(3):
        budget.next_pause(float(second))
    assert budget.excuse(2)
    assert not budget.excuse(0)
    assert budget.excuse(1)
    assert budget.num_recent == 0


def test_a_verdict_has_as_many_restarts_as_it_takes_and_no_more() -> None:
    budget = RestartBudget(SETTINGS)
    assert VERDICT_DEATHS == MAX_DEATHS
    pauses = [budget.next_pause(float(second), VERDICT_DEATHS) for second in range(3 + VERDICT_DEATHS + 1)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None
    assert budget.next_pause(10.0) is None


def test_who_wants_no_restart_gets_none() -> None:
    assert RestartBudget(SupervisorSettings(max_restarts=0)).next_pause(0.0, VERDICT_DEATHS) is None
