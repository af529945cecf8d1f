"""The pulse of a link: who beats when, whose beat is answered, when the other end counts as silent."""

import pytest

from chairlift.runtime.pulse import Pulse, Rhythm, can_rest
from chairlift.runtime.settings import IpcSettings

SETTINGS = IpcSettings(heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0, idle_heartbeat_interval_s=10.0)
MS = 1_000_000
INTERVAL, TIMEOUT, REST = 500 * MS, 2000 * MS, 10_000 * MS


def _rested(now: int = 0) -> Rhythm:
    """A rhythm that rests from `now` on."""
    rhythm = Rhythm(SETTINGS, now)
    rhythm.beat(now - INTERVAL, may_rest=True)
    assert rhythm.beat(now, may_rest=True) > INTERVAL
    return rhythm


# ---- the end that beats ----


def test_beats_come_as_usual_until_one_has_told_that_nothing_happens() -> None:
    rhythm, now, told = Rhythm(SETTINGS, 0), 0, []
    for may_rest in (False, True, True):
        told.append(rhythm.beat(now, may_rest=may_rest))
        assert rhythm.next_beat == now + (told[-1] or INTERVAL)
        now = rhythm.next_beat
    assert told == [0, REST - INTERVAL, REST]


@pytest.mark.parametrize("at", [0, 1, 9_400 * MS, 9_600 * MS, 9_999 * MS, 123_456 * MS])
def test_a_rest_ends_at_a_round_time_and_is_longer_than_the_usual_interval(at: int) -> None:
    """Processes that each wake at times of their own find cold caches each time."""
    rhythm = _rested(at)
    assert rhythm.next_beat % REST == 0
    assert INTERVAL <= rhythm.next_beat - at < REST + INTERVAL


def test_whatever_happens_ends_the_rest_of_both_ends() -> None:
    """A peer that hangs while nobody asks for it was noticed as late as its beat; one that has work, as ever."""
    rhythm = _rested()
    assert rhythm.silent_at(MS) == REST + TIMEOUT
    assert rhythm.disturb(300 * MS)
    assert rhythm.next_beat == 300 * MS + INTERVAL
    assert rhythm.silent_at(300 * MS) == 300 * MS + TIMEOUT
    assert not rhythm.disturb(301 * MS), "there is no rest to end"
    assert rhythm.beat(rhythm.next_beat, may_rest=True) == 0, "the beat that tells of it does not begin a rest"


def test_a_peer_that_does_not_answer_the_beat_after_a_rest_is_as_silent_as_any() -> None:
    rhythm = _rested()
    silent_at = rhythm.silent_at(MS)
    rhythm.beat(REST, may_rest=True)
    assert silent_at == REST + TIMEOUT
    assert rhythm.silent_at(REST + MS) == 2 * REST + TIMEOUT


def test_an_end_that_stood_still_knows() -> None:
    rhythm = _rested()
    assert rhythm.own_stall_ns(REST + MS) <= 0
    assert rhythm.own_stall_ns(REST + 5000 * MS) == 4000 * MS


def test_a_peer_of_version_1_0_is_not_made_to_wait() -> None:
    assert [can_rest(minor) for minor in (0, 1, 2)] == [False, True, True]


def test_a_rest_no_longer_than_the_interval_is_none() -> None:
    rhythm = Rhythm(IpcSettings(heartbeat_interval_s=0.5, idle_heartbeat_interval_s=0.1), 0)
    assert [rhythm.beat(now, may_rest=True) for now in (0, INTERVAL, 2 * INTERVAL)] == [0, 0, 0]


# ---- the end that answers ----


@pytest.mark.parametrize("rest_s", [0.5, 10.0])
def test_an_end_that_is_beaten_to_never_beats_unasked(rest_s: float) -> None:
    """Each end once woke the other at times of its own: four wakes an interval instead of two."""
    pulse, now = Pulse(SETTINGS, 0.0), 0.0
    for _ in range(100):
        assert pulse.is_answer_due(now + 0.5)
        pulse.hear(now)
        pulse.rest(now, round(rest_s * 1e9))
        pulse.beat(now)
        assert pulse.next_at(now) > now + rest_s
        now += rest_s
        assert not pulse.is_due(now)
        assert not pulse.is_silent(now)


@pytest.mark.parametrize("rest_s", [0.0, 10.0])
def test_an_end_that_hears_nothing_beats_all_the_same_until_the_other_counts_as_silent(rest_s: float) -> None:
    pulse, now, beats, silent_at = Pulse(SETTINGS, 0.0), 0.0, list[float](), None
    pulse.rest(0.0, round(rest_s * 1e9))
    while now < rest_s + 2.4:
        now = pulse.next_at(now) + 1e-6
        if pulse.is_due(now):
            pulse.beat(now)
            beats.append(round(now - rest_s, 3))
        if silent_at is None and pulse.is_silent(now):
            silent_at = round(now - rest_s, 3)
    assert beats == [0.625, 1.25, 1.875, 2.5]
    assert silent_at == SETTINGS.heartbeat_timeout_s


def test_who_says_something_may_soon_expect_an_answer() -> None:
    """A request that is sent to a scheduler that hangs must not wait for the end of its rest."""
    pulse = Pulse(SETTINGS, 0.0)
    pulse.rest(0.0, REST)
    assert pulse.silence_s(3.0) <= 0
    assert pulse.end_rest(3.0)
    assert pulse.silence_s(4.0) == 1.0
    assert not pulse.is_silent(5.0)
    assert pulse.is_silent(5.1)
    assert not pulse.end_rest(5.1), "there is no rest to end"


def test_a_rest_that_nobody_can_mean_is_not_believed() -> None:
    """A damaged frame would keep a dead peer for ever."""
    pulse = Pulse(SETTINGS, 0.0)
    for told in (1 << 62, -(1 << 62)):
        pulse.rest(0.0, told)
        assert pulse.is_silent(62.1)


def test_beats_that_come_in_a_burst_are_answered_once() -> None:
    pulse = Pulse(SETTINGS, 0.0)
    assert not pulse.is_answer_due(0.1)
    assert pulse.is_answer_due(0.3)
    pulse.beat(0.3)
    assert not pulse.is_answer_due(0.3)


def test_a_beat_that_begins_a_rest_is_answered_whatever_was_said_just_before() -> None:
    """A scheduler that woke a little late heard a worker's unasked beat first, and then told of its rest: nobody
    answered, and after the time-out it took a healthy worker for lost, which heard of it at the end of the rest only.
    """
    rhythm, pulse = Rhythm(SETTINGS, 0), Pulse(SETTINGS, 0.0)
    rhythm.beat(0, may_rest=True)
    pulse.beat(0.625)
    late = 650 * MS
    silent_at = rhythm.silent_at(late)
    pulse.rest(0.65, rhythm.beat(late, may_rest=True))
    assert silent_at < rhythm.next_beat, "what was heard before does not last"
    assert pulse.is_answer_due(0.65)
    assert rhythm.silent_at(late) == rhythm.next_beat + TIMEOUT, "the answer does"
