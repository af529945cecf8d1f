"""What must hold after every event, checked from scratch. For tests and for replay with checks: slow on purpose.

Each check is one of ARCHITECTURE.md's invariants; a failure is a bug of ours and raises AssertionError.
"""

from collections import Counter

from scheduler_svc.core.core import Core
from scheduler_svc.core.request import Request
from scheduler_svc.core.seats import passed
from scheduler_svc.core.sequence import Sequence, SequenceState
from scheduler_svc.core.state import SchedulerState


def check(core: Core, now: int) -> None:
    """Asserts every invariant of the core's state at `now`."""
    state = core.state
    sequences = [one for request in state.requests.values() for one in request.sequences]
    _check_blocks(state, sequences)
    _check_states(state, sequences)
    _check_queue(state, sequences)
    _check_budgets(state)
    _check_counts(state, sequences)
    _check_columns(state)
    _check_tenants(state, sequences)
    _check_requests(state)
    _check_waits(state, now)


def check_progress(core: Core) -> None:
    """After a Tick: if something can run and nothing is in flight, a plan was made."""
    state = core.state
    if not state.is_worker_up or state.in_flight:
        return
    assert not state.batch.rows, "sequences have seats and nothing is in flight"
    if state.config.batching == "continuous":
        assert len(state.queue) == 0, "sequences wait for an idle device"


def _check_blocks(state: SchedulerState, sequences: list[Sequence]) -> None:
    """Blocks free, used and cached make up the total, and each count is right."""
    users = Counter(block for one in sequences for block in one.blocks)
    state.pool.check(dict(users))
    host = Counter(block for one in sequences for block in one.host_blocks or ())
    assert all(count == 1 for count in host.values()), "a host block holds two sequences"
    assert sum(host.values()) + state.host_pool.num_free == state.host_pool.num_blocks, "host blocks are lost"
    assert all((one.host_blocks is not None) == (one.state is SequenceState.SWAPPED) for one in sequences)
    pool = state.pool
    assert pool.num_blank + pool.num_cached + pool.num_used == pool.num_blocks


def _check_states(state: SchedulerState, sequences: list[Sequence]) -> None:
    """A sequence is in exactly one state, and its row, blocks and place say the same."""
    for one in sequences:
        is_running = one.state is SequenceState.RUNNING
        assert (one.row is not None) == is_running, f"{one.state.name} with row {one.row}"
        assert (len(one.blocks) > 0) == is_running, f"{one.state.name} with {len(one.blocks)} blocks"
        assert (one.end is not None) == one.is_ended
        if is_running:
            assert one.row is not None
            assert state.batch.rows[one.row] is one
            is_decoding = one.base is not None
            is_joining = one in state.batch.joining
            is_catching_up = one in state.batch.catching_up
            is_last = one.ending_step == state.batch.planned + 1
            assert is_decoding + is_joining + is_catching_up <= 1
            assert is_decoding or is_joining or is_catching_up or is_last, "a seated sequence that nobody plans for"
        if one.is_finishing:
            assert any(one in step.finals for step in state.in_flight), "a finishing sequence awaits no result"
    assert len(state.batch.rows) + state.batch.num_free_rows == state.batch.num_rows


def _check_queue(state: SchedulerState, sequences: list[Sequence]) -> None:
    """Exactly the waiting sequences are in the queue, each once, in the policy's order."""
    waiting = [one for one in sequences if one.is_waiting]
    queued = list(state.queue)
    assert len(queued) == len(waiting) == len(state.queue)
    assert {id(one) for one in queued} == {id(one) for one in waiting}
    assert state.queue.num_tokens == sum(one.request.queue_cost(one) for one in waiting)
    assert state.queue.num_preempted == sum(one.has_run for one in waiting)
    assert state.num_queued_requests == sum(one.first_boarded_ns is None for one in state.requests.values())


def _check_budgets(state: SchedulerState) -> None:
    assert len(state.in_flight) <= 2
    for step in state.in_flight:
        num_tokens = step.num_decodes + sum(chunk.num_tokens for chunk in step.chunks)
        assert 0 < num_tokens <= state.geometry.max_num_batched_tokens


def _check_counts(state: SchedulerState, sequences: list[Sequence]) -> None:
    """computed <= scheduled <= known, with samples in flight; the table covers what is scheduled."""
    for one in sequences:
        known = one.num_known + state.confirmed.num_pending(one)
        scheduled = state.batch.num_scheduled(one)
        in_flight = _num_samples_in_flight(state, one)
        assert one.computed <= scheduled <= known + in_flight, f"{one.computed} {scheduled} {known} {in_flight}"
        num_outputs = known - one.request.prompt_len
        assert one.is_ended or num_outputs + in_flight <= one.request.output_limit
        if one.row is not None:
            assert len(one.blocks) * state.geometry.block_size >= scheduled


def _num_samples_in_flight(state: SchedulerState, sequence: Sequence) -> int:
    """Of a sequence's tokens that plans in flight sample: by walking the layouts forward from the confirmed one."""
    is_in_column = sequence.confirmed_at is not None
    count = 0
    for step in state.in_flight:
        count += is_in_column + (sequence in step.samplers)
        if step.transition is not None:
            is_in_column = is_in_column and sequence not in step.transition.left
            is_in_column = is_in_column or sequence in step.transition.joined
    return count


def _check_columns(state: SchedulerState) -> None:
    """Who is in the confirmed column stands where it says; each gateway's part of it names the right offsets."""
    confirmed = state.confirmed
    for position, one in enumerate(confirmed.members):
        assert one.confirmed_at == position
    assert confirmed.num_ghosts == sum(one.is_ended for one in confirmed.members)
    if state.in_flight:
        assert state.in_flight[0].number == confirmed.step + 1
        assert state.in_flight[0].num_decodes == len(confirmed.members)
    for gateway in state.gateways.values():
        gateway.column.check(
            handle_of=lambda one: one.request.handle + one.choice,
            offset_of=lambda one: len(one.outputs) + confirmed.num_pending(one),
        )
    live = [one for one in confirmed.members if not one.is_ended and one.request.gateway is not None]
    assert all(one.column_index is not None for one in live), "a decoding sequence sends to nobody"
    assert sum(len(gateway.column) for gateway in state.gateways.values()) == len(live)


def _check_tenants(state: SchedulerState, sequences: list[Sequence]) -> None:
    """Each tenant's account is the sum over its sequences, and its limit of seats holds."""
    offered = Counter(id(one.request.tenant) for one in state.queue.candidates(0))
    for tenant in state.tenants:
        own = [one for one in sequences if one.request.tenant is tenant]
        requests = [request for request in state.requests.values() if request.tenant is tenant]
        assert tenant.num_requests == len(requests)
        assert tenant.num_queued_requests == sum(one.first_boarded_ns is None for one in requests)
        assert tenant.num_seated == sum(one.row is not None for one in own)
        assert tenant.num_offered == offered[id(tenant)]
        assert tenant.pending_input == sum(one.pending_input for one in own)
        assert tenant.num_rows == sum(one.request.tenant is tenant for one in state.confirmed.members)
        free = tenant.num_free_offers()
        num_parked = sum(one.is_waiting for one in own) - tenant.num_offered
        assert free is None or free <= 0 or num_parked == 0, "parked though the tenant has seats left"


def _check_requests(state: SchedulerState) -> None:
    for key, request in state.requests.items():
        assert request.key == key
        assert request.num_unended == sum(not one.is_ended for one in request.sequences) > 0
        _check_attachment(state, request)
    for request in state.ended.values():
        assert request.is_ended
        assert all(one.end is not None for one in request.sequences)
    assert len(state.ended) <= state.config.max_ended_requests_kept
    assert len(state.by_number) == len(state.requests) + len(state.ended)


def _check_attachment(state: SchedulerState, request: Request) -> None:
    """A living request has somebody attached, or a time until which somebody may."""
    if request.gateway is None:
        assert request.detached_until_ns is not None
    else:
        assert state.gateways[request.gateway].attachments[request.handle] is request


def _check_waits(state: SchedulerState, now: int) -> None:
    """Waits by reason sum to the time in which no choice had a seat."""
    for request in state.requests.values():
        states = [one.state for one in request.sequences]
        is_seated = SequenceState.RUNNING in states or SequenceState.FINISHING in states
        assert request.waits.is_waiting == (not is_seated)
        waits = request.waits.by_reason(state.clock, now, passed(state, request, now))
        assert all(wait >= 0 for wait in waits)
        if request.first_boarded_ns is None:
            assert sum(waits) == now - request.received_ns
