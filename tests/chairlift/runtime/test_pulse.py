"""The pulse of a link: whose beat is answered, when one is sent unasked, when the other end counts as silent."""

import pytest

from chairlift.runtime.pulse import Pulse, idle_interval_s
from chairlift.runtime.settings import IpcSettings

SETTINGS = IpcSettings(heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0)


@pytest.mark.parametrize("interval_s", [SETTINGS.heartbeat_interval_s, idle_interval_s(SETTINGS)])
def test_an_end_that_is_beaten_to_never_beats_unasked(interval_s: float) -> None:
    """Each end once woke the other at times of its own: four wakes an interval instead of two."""
    pulse, now = Pulse(SETTINGS, 0.0), 0.0
    for _ in range(100):
        assert pulse.next_at(now) > now + interval_s
        now += interval_s
        assert not pulse.is_due(now)
        pulse.hear(now)
        assert pulse.is_answer_due(now)
        pulse.beat(now)


def test_an_end_that_hears_nothing_beats_all_the_same_until_the_other_counts_as_silent() -> None:
    pulse, now, beats, silent_at = Pulse(SETTINGS, 0.0), 0.0, list[float](), None
    while now < 4:
        now = pulse.next_at(now) + 1e-6
        if pulse.is_due(now):
            pulse.beat(now)
            beats.append(round(now, 3))
        if silent_at is None and pulse.is_silent(now):
            silent_at = round(now, 3)
    assert beats == [1.25, 2.5, 3.75, 5.0]
    assert silent_at == SETTINGS.heartbeat_timeout_s


def test_beats_that_come_in_a_burst_are_answered_once() -> None:
    pulse = Pulse(SETTINGS, 0.0)
    assert not pulse.is_answer_due(0.1)
    assert pulse.is_answer_due(0.3)
    pulse.beat(0.3)
    assert not pulse.is_answer_due(0.3)


@pytest.mark.parametrize(
    ("interval_s", "timeout_s", "idle_s"), [(0.5, 2.0, 1.0), (0.5, 10.0, 1.0), (0.5, 1.4, 0.7), (0.5, 0.6, 0.5)]
)
def test_fewer_beats_never_make_an_end_look_silent(interval_s: float, timeout_s: float, idle_s: float) -> None:
    settings = IpcSettings(heartbeat_interval_s=interval_s, heartbeat_timeout_s=timeout_s)
    assert idle_interval_s(settings) == idle_s
