"""How often a child is started again, and which of its ends do not count."""

from chairlift.runtime.settings import SupervisorSettings
from deploy.launcher.restart import RestartBudget

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
