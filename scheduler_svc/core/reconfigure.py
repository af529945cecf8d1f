"""Changes of the knobs while requests run: validated whole, numbered, taken back on demand or by a guard.

A change holds from the next plan on. Riders are not killed: with fewer seats, those that are taken are given back one
by one.
"""

from chairlift.ipc.common import Reason
from scheduler_svc.core import ends, events
from scheduler_svc.core.config import find_conflict
from scheduler_svc.core.effects import ConfigRefused, ConfigRevised
from scheduler_svc.core.guard import GuardWatch
from scheduler_svc.core.policies.catalogue import make_policy
from scheduler_svc.core.revisions import Origin, Revision, Revisions
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.timers import TimerKind
from scheduler_svc.core.units import guard_bound


def change(state: SchedulerState, event: events.ConfigChanged, now: int) -> None:
    """Puts new knobs in force, or says why not."""
    refused = find_refusal(state.revisions, event)
    if refused is not None:
        state.effects.append(refused)
        return
    revision = state.revisions.add(event.config, Origin.UPDATE, now, event.comment, event.guard, actor=event.actor)
    _put_in_force(state, revision, now)


def roll_back(state: SchedulerState, event: events.ConfigRolledBack, now: int) -> None:
    """Makes the values of an earlier revision (None: of the one before) a new one."""
    refused = _other_revision(state.revisions, event.expected_revision)
    if refused is not None:
        state.effects.append(refused)
        return
    earlier = state.revisions.find(event.revision)
    if earlier is None:
        state.effects.append(ConfigRefused(Reason.INVALID_REQUEST, "no such revision is known"))
        return
    revision = state.revisions.add(
        earlier.config, Origin.ROLLBACK, now, event.comment, restores=earlier.number, actor=event.actor
    )
    _put_in_force(state, revision, now)


def find_refusal(revisions: Revisions, event: events.ConfigChanged) -> ConfigRefused | None:
    """Why a change would not be taken; None where it would. Changes nothing."""
    refused = _other_revision(revisions, event.expected_revision)
    if refused is not None:
        return refused
    conflict, guard = find_conflict(event.config), event.guard
    if conflict is not None:
        return ConfigRefused(Reason.INVALID_REQUEST, conflict)
    if guard is not None and (guard.window_ns < 1 or guard.bound < 0):
        return ConfigRefused(Reason.INVALID_REQUEST, "a guard needs a window, and a bound of 0 or more")
    return None


def _other_revision(revisions: Revisions, expected: int | None) -> ConfigRefused | None:
    current = revisions.current.number
    if expected is None or expected == current:
        return None
    return ConfigRefused(Reason.WRONG_REVISION, f"revision {current} is in force, not {expected}")


def _put_in_force(state: SchedulerState, revision: Revision, now: int) -> None:
    config = revision.config
    state.config = config
    state.tenants.configure(config, now, state.confirmed.step)
    state.queue.change_policy(make_policy(config, state.confirmed), now)
    state.blocked.clear()
    ends.bound_ended(state)
    state.guard_watch = None
    if revision.guard is not None:
        state.guard_watch = GuardWatch(revision.guard, revision.number, now)
        state.timers.set(state.guard_watch.next_check_ns(now), TimerKind.GUARD, 0)
    state.effects.append(ConfigRevised(revision))


def check_guard(state: SchedulerState, now: int) -> None:
    """Looks whether the change under watch has to be taken back, and when to look again."""
    watch = state.guard_watch
    if watch is None:
        return
    if watch.is_passed(now):
        earlier = state.revisions.find(None)
        assert earlier is not None, "what is watched is a change"
        metric, bound = guard_bound(watch.guard)
        comment = f"{metric} passed {bound} under revision {watch.revision}"
        revision = state.revisions.add(earlier.config, Origin.GUARD, now, comment, restores=earlier.number)
        _put_in_force(state, revision, now)
    elif now < watch.ends_ns:
        state.timers.set(watch.next_check_ns(now), TimerKind.GUARD, 0)
    else:
        state.guard_watch = None
