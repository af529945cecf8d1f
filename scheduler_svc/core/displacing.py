"""Lets running sequences give way to a waiting one of higher standing, where the policy has such a thing.

Only as many as are needed, and only if that is enough; never one that this plan has given work already. Without it a
higher class would wait for a lower one (priority inversion).
"""

from itertools import islice

from scheduler_svc.core import seats
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step


def make_room(
    state: SchedulerState, step: Step, head: Sequence, num_blocks: int, now: int, *, needs_seat: bool
) -> None:
    """Preempts for `head` until so many more blocks, and a seat, are free; nobody if that cannot be."""
    running = [one for one in state.batch.rows.values() if one.last_step != step.number]
    victims: list[Sequence] = []
    while num_blocks > 0 or (needs_seat and not victims):
        victim = state.queue.displaced_by(head, running, now)
        if victim is None:
            state.vain_search.remember(state, head, now)
            return
        running.remove(victim)
        victims.append(victim)
        num_blocks -= sum(state.pool.count(block) == 1 for block in victim.blocks)
    for victim in victims:
        seats.preempt(state, victim, now)


def first_candidate(state: SchedulerState, now: int) -> Sequence | None:
    """Who would board next."""
    return next(islice(state.queue.candidates(now), 1), None)
