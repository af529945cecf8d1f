"""The account of iterations for whoever watches: built from the state, kept beside it, part of no decision.

Exists only while somebody watches. Bounded in all directions: so many iterations a second, so long lists of who came
and went, so many accounts that wait to be taken; an iteration that is left out leaves a gap in their numbers.
"""

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from chairlift.ipc import operator
from chairlift.ipc.common import FinishReason
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.steps import Step

if TYPE_CHECKING:
    from scheduler_svc.core.state import SchedulerState

MAX_NOTED = 1024
"""Boardings, departures and displacements that one account tells; later ones are left out."""
MAX_READY = 64
_MAX_DRAFTS = 4
"""Plans in flight, and those that never had a result."""
_NS_A_RIDER = 100_000
"""Each rider in an account puts the next one off by so much: naming a large batch takes a small share of time."""


class WatchOptions(msgspec.Struct, frozen=True):
    """What is wanted."""

    min_interval_ns: int
    include_riders: bool


class _Draft(msgspec.Struct):
    """An iteration that is planned and has no result yet."""

    planned_ns: int
    iteration: operator.Iteration
    plan_ns: int = 0
    is_timed: bool = False


class IterationWatch:
    """See the module. The core notes, the shell takes."""

    def __init__(self, options: WatchOptions) -> None:
        self.options = options
        self._due_ns = 0
        self._interval_ns = 0
        self._boarded: list[operator.SequenceName] = []
        self._departed: list[operator.Departure] = []
        self._displaced: list[operator.Displacement] = []
        self._drafts: dict[int, _Draft] = {}
        self._ready: deque[tuple[int, operator.Iteration]] = deque(maxlen=MAX_READY)

    # ---- what the core notes ----

    def note_boarded(self, sequence: Sequence) -> None:
        """It has a seat from the plan that is being made on."""
        if len(self._boarded) < MAX_NOTED:
            self._boarded.append(name_of(sequence))

    def note_departed(self, sequence: Sequence, reason: FinishReason) -> None:
        """It has ended, and had a seat before."""
        if len(self._departed) < MAX_NOTED:
            self._departed.append(operator.Departure(name_of(sequence), reason))

    def note_displaced(self, sequence: Sequence, *, is_swapped: bool) -> None:
        """It has to wait for another seat."""
        if len(self._displaced) < MAX_NOTED:
            self._displaced.append(operator.Displacement(name_of(sequence), is_swapped))

    def planned(self, state: "SchedulerState", step: Step, worker_epoch: int, now: int) -> None:
        """A plan is sealed; the account is drafted unless it comes too soon after the last."""
        # Two at once are let pass: overlap makes two plans in one wake.
        if self._due_ns - now > self._interval_ns:
            return
        riders = self._riders(state, step)
        self._interval_ns = max(self.options.min_interval_ns, _NS_A_RIDER * len(riders))
        self._due_ns = max(self._due_ns, now) + self._interval_ns
        if len(self._drafts) >= _MAX_DRAFTS:
            del self._drafts[next(iter(self._drafts))]
        self._drafts[step.number] = _Draft(now, self._account(state, step, worker_epoch, riders))
        self._boarded, self._departed, self._displaced = [], [], []

    def _account(
        self, state: "SchedulerState", step: Step, worker_epoch: int, riders: tuple[operator.Rider, ...]
    ) -> operator.Iteration:
        """What is known when the plan is made; the rest is 0."""
        return operator.Iteration(
            number=0,
            worker_epoch=worker_epoch,
            step=step.number,
            age_ns=0,
            num_tokens=step.num_decodes + step.shape.num_prefill_tokens,
            num_prefill_tokens=step.shape.num_prefill_tokens,
            token_budget=step.token_budget,
            num_seqs=step.num_decodes + len(step.chunks),
            max_num_seqs=state.max_num_seqs,
            num_waiting=len(state.queue),
            blocks=_blocks(state),
            plan_ns=0,
            device_ns=0,
            total_ns=0,
            num_discarded_rows=0,
            config_revision=state.revisions.current.number,
            boarded=tuple(self._boarded),
            departed=tuple(self._departed),
            displaced=tuple(self._displaced),
            riders=riders,
        )

    def _riders(self, state: "SchedulerState", step: Step) -> tuple[operator.Rider, ...]:
        if not self.options.include_riders:
            return ()
        riders = [operator.Rider(name_of(sequence), 1, True) for sequence in state.batch.column]
        samplers = set(map(id, step.samplers))
        riders += [
            operator.Rider(name_of(chunk.sequence), chunk.num_tokens, id(chunk.sequence) in samplers)
            for chunk in step.chunks
        ]
        return tuple(riders)

    def completed(self, step: int, number: int, device_ns: int, num_discarded_rows: int, now: int) -> None:
        """A step has its result; it is the `number`th of this life."""
        draft = self._drafts.pop(step, None)
        if draft is None:
            return
        iteration = msgspec.structs.replace(
            draft.iteration,
            number=number,
            plan_ns=draft.plan_ns,
            device_ns=device_ns,
            total_ns=now - draft.planned_ns,
            num_discarded_rows=num_discarded_rows,
        )
        self._ready.append((draft.planned_ns, iteration))

    # ---- what the shell does ----

    def time_plans(self, elapsed_ns: int) -> None:
        """The plans made since the last call took so long, all together."""
        untimed = [draft for draft in self._drafts.values() if not draft.is_timed]
        for draft in untimed:
            draft.plan_ns, draft.is_timed = elapsed_ns // len(untimed), True

    def take(self, now: int) -> list[operator.Iteration]:
        """Completed iterations that were not taken before, in order."""
        taken = [msgspec.structs.replace(iteration, age_ns=now - planned) for planned, iteration in self._ready]
        self._ready.clear()
        return taken


def name_of(sequence: Sequence) -> operator.SequenceName:
    """Names a choice for operators."""
    key = sequence.request.key
    return operator.SequenceName(key.tenant, key.request_id, sequence.choice)


def _blocks(state: "SchedulerState") -> operator.Blocks:
    pool, host = state.pool, state.host_pool
    return operator.Blocks(
        total=pool.num_blocks,
        free=pool.num_blank,
        cached=pool.num_cached,
        used=pool.num_used,
        block_size=state.geometry.block_size,
        host_total=host.num_blocks,
        host_used=host.num_blocks - host.num_free,
    )
