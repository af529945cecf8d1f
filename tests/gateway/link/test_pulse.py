"""The pulse of a link: whose beat is answered, when one is sent unasked, when the other end counts as silent."""

from chairlift.runtime.settings import IpcSettings
from gateway.link.pulse import Pulse

SETTINGS = IpcSettings(heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0)


def test_an_end_that_is_beaten_to_never_beats_unasked() -> None:
    """Each end once woke the other at times of its own: four wakes an interval instead of two."""
    pulse, now = Pulse(SETTINGS, 0.0), 0.0
    for _ in range(100):
        assert pulse.next_at() > now + SETTINGS.heartbeat_interval_s
        now += SETTINGS.heartbeat_interval_s
        assert not pulse.is_due(now)
        pulse.hear(now)
        assert pulse.is_answer_due(now)
        pulse.beat(now)


def test_an_end_that_hears_nothing_beats_all_the_same_until_the_other_counts_as_silent() -> None:
    pulse, beats = Pulse(SETTINGS, 0.0), []
    while not pulse.is_silent(now := pulse.next_at() + 1e-6):
        assert pulse.is_due(now)
        pulse.beat(now)
        beats.append(now)
    assert [round(at, 3) for at in beats] == [0.625, 1.25, 1.875]
    assert round(now, 3) == SETTINGS.heartbeat_timeout_s


def test_beats_that_come_in_a_burst_are_answered_once() -> None:
    pulse = Pulse(SETTINGS, 0.0)
    assert not pulse.is_answer_due(0.1)
    assert pulse.is_answer_due(0.3)
    pulse.beat(0.3)
    assert not pulse.is_answer_due(0.3)
