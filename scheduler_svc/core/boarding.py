"""Who boards: the queue's candidates against seats, this step's token budget and free KV blocks.

A candidate that memory has no room for lets smaller ones behind it pass, for a bounded time. Choices of one request
board on each other's prompt: the first computes it, the others share its full blocks and copy the last, partial one,
since they will write to it.
"""

import enum
from array import array
from collections.abc import Iterable

from chairlift.ipc.common import WaitReason
from scheduler_svc.core import displacing, prefix_use, static_batch, swapping
from scheduler_svc.core.chunks import add_chunk, chunk_size
from scheduler_svc.core.seats import take_seat
from scheduler_svc.core.sequence import Sequence, SequenceState
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.steps import Step

MAX_PASSED_OVER = 64
"""Candidates without room that one plan looks at."""


class Refusal(enum.Enum):
    """Why a candidate does not board in this plan."""

    NO_BLOCKS = enum.auto()
    NO_BUDGET = enum.auto()
    NOT_YET = enum.auto()
    """A plan in flight still holds it, or it gave way in this very plan, or a sibling computes its prompt."""


class _Prefix:
    """What a boarding sequence need not compute: shared blocks, one to copy where the last is partial, or host blocks
    behind the shared ones to copy back."""

    __slots__ = ("blocks", "computed", "copied", "num_swapped")

    def __init__(
        self, blocks: "list[int] | array[int]", computed: int, copied: int | None = None, num_swapped: int = 0
    ) -> None:
        self.blocks = blocks
        self.computed = computed
        self.copied = copied
        self.num_swapped = num_swapped


def board(state: SchedulerState, step: Step, budget: int, now: int) -> None:
    """Seats candidates until something runs out, and notes what those wait for who are left, or come now."""
    if state.probation.is_on:
        _board_suspects(state, step, budget, now)
        return
    seats = state.max_num_seqs - len(state.batch.rows)
    if not state.queue.num_candidates:
        reason = WaitReason.SEATS if seats <= 0 else WaitReason.TOKEN_BUDGET
    elif budget <= 0:
        reason = WaitReason.TOKEN_BUDGET
    elif state.config.batching == "static":
        reason = _board_from(state, step, static_batch.candidates(state, now), seats, budget, now)
    else:
        if seats == 0:
            head = displacing.first_candidate(state, now)
            budget += 0 if head is None else _displace(state, step, head, budget, now, needs_seat=True)
            seats = state.max_num_seqs - len(state.batch.rows)
        reason = WaitReason.SEATS
        if seats > 0:
            reason = _board_from(state, step, state.queue.candidates(now), seats, budget, now)
    state.clock.turn(reason, now)


def _board_from(
    state: SchedulerState, step: Step, candidates: Iterable[Sequence], seats: int, budget: int, now: int
) -> WaitReason:
    """Boards in order; returns what those left over wait for."""
    num_passed_over = 0
    blocked = state.blocked
    for sequence in candidates:
        if seats == 0:
            return WaitReason.SEATS
        if budget <= 0:
            return WaitReason.TOKEN_BUDGET
        if num_passed_over == 0 and blocked.is_unchanged(state, sequence):
            return WaitReason.KV_BLOCKS
        boarded = try_board(state, step, sequence, budget, now)
        if boarded is Refusal.NO_BLOCKS and num_passed_over == 0 and state.config.batching != "static":
            budget += _displace(state, step, sequence, budget, now, needs_seat=False)
            boarded = try_board(state, step, sequence, budget, now)
        if isinstance(boarded, int):
            seats -= 1
            budget -= boarded
        elif boarded is Refusal.NO_BUDGET:
            return WaitReason.TOKEN_BUDGET
        elif boarded is Refusal.NO_BLOCKS:
            num_passed_over += 1
            if not blocked.may_be_passed(state, sequence, now, is_head=num_passed_over == 1):
                return WaitReason.KV_BLOCKS
            if num_passed_over == MAX_PASSED_OVER:
                break
    if num_passed_over:
        blocked.remember(state)
        return WaitReason.KV_BLOCKS
    is_full = seats <= 0 or state.config.batching == "static"
    return WaitReason.SEATS if is_full else WaitReason.TOKEN_BUDGET


def _board_suspects(state: SchedulerState, step: Step, budget: int, now: int) -> None:
    for sequence in state.probation.under_test:
        if budget > 0 and sequence.is_waiting and len(state.batch.rows) < state.max_num_seqs:
            boarded = try_board(state, step, sequence, budget, now)
            if isinstance(boarded, int):
                budget -= boarded


def _displace(state: SchedulerState, step: Step, head: Sequence, budget: int, now: int, *, needs_seat: bool) -> int:
    """Lets riders of lower standing give way, if `head` can board in this plan then; returns the tokens they leave."""
    is_elsewhere = state.batch.is_held(head, state.confirmed.step) or head.gave_way_step == step.number
    if is_elsewhere or state.vain_search.is_same(state, head, now):
        return 0
    prefix = _prefix(state, head, step)
    if prefix is None or chunk_size(state, head.num_known - prefix.computed, budget + 1) == 0:
        return 0
    num_decodes = state.batch.num_decodes
    displacing.make_room(state, step, head, _num_missing(state, head, prefix), now, needs_seat=needs_seat)
    return num_decodes - state.batch.num_decodes


def try_board(state: SchedulerState, step: Step, sequence: Sequence, budget: int, now: int) -> int | Refusal:
    """Seats the sequence with blocks for all tokens it knows; returns the tokens that it computes in this step."""
    if state.batch.is_held(sequence, state.confirmed.step) or sequence.gave_way_step == step.number:
        return Refusal.NOT_YET
    prefix = _prefix(state, sequence, step)
    if prefix is None:
        return Refusal.NOT_YET
    count = chunk_size(state, sequence.num_known - prefix.computed, budget)
    if count == 0:
        return Refusal.NO_BUDGET
    if _num_missing(state, sequence, prefix) > 0:
        return Refusal.NO_BLOCKS
    for block in prefix.blocks:
        state.pool.share(block)
    blocks = array("I", prefix.blocks)
    blocks.extend(state.pool.take_many(state.num_blocks_for(sequence.num_known) - len(blocks)))
    if prefix.copied is not None:
        step.copies.extend((prefix.copied, blocks[len(prefix.blocks)]))
    if prefix.num_swapped:
        swapping.swap_in(sequence, step, blocks, len(prefix.blocks), prefix.num_swapped)
    take_seat(state, sequence, blocks, prefix.computed, step.number, now)
    swapping.drop_copy(state, sequence, step)
    sequence.num_indexed = len(prefix.blocks)
    step.boarded.append(sequence)
    add_chunk(state, step, sequence, count)
    return count


def _num_missing(state: SchedulerState, sequence: Sequence, prefix: _Prefix) -> int:
    """Blocks that would have to become free for it to board; not above 0 when there is room."""
    num_new = state.num_blocks_for(sequence.num_known) - len(prefix.blocks)
    num_revived = sum(map(state.pool.is_cached, prefix.blocks))
    return num_new + num_revived + _headroom(state, sequence) - state.pool.num_obtainable


def _headroom(state: SchedulerState, sequence: Sequence) -> int:
    """Blocks that must stay free. Hysteresis: who gave way comes back only when every rider could grow by a block."""
    num_running = len(state.batch.rows)
    if num_running == 0 or state.probation.is_on:
        return 0
    if sequence.has_run:
        return max(state.watermark, num_running + 1)
    return state.watermark


def _prefix(state: SchedulerState, sequence: Sequence, step: Step) -> _Prefix | None:
    """The longest prefix that it need not compute; None when a sibling is about to compute more of it."""
    found = prefix_use.find_blocks(state, sequence)
    prefix = _Prefix(found, len(found) * state.hashes.block_size)
    if sequence.host_blocks is not None and sequence.swapped_tokens > prefix.computed:
        num_swapped = len(sequence.host_blocks) - len(found)
        return _Prefix(found, sequence.swapped_tokens, num_swapped=num_swapped)
    request = sequence.request
    shared = request.prompt_len - 1
    if len(request.sequences) == 1 or prefix.computed >= shared:
        return prefix
    must_wait = False
    for sibling in request.sequences:
        if sibling.state is SequenceState.RUNNING:
            # A copy runs before the step computes: what it copies must have been planned earlier.
            if sibling.last_step != step.number and state.batch.num_scheduled(sibling) >= shared:
                return _from_sibling(state, sibling, shared)
            must_wait = True
    return None if must_wait else prefix


def _from_sibling(state: SchedulerState, sibling: Sequence, shared: int) -> _Prefix:
    num_full, num_rest = divmod(shared, state.hashes.block_size)
    return _Prefix(sibling.blocks[:num_full], shared, sibling.blocks[num_full] if num_rest else None)
