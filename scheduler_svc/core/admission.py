"""The door: what is let in, and what is refused with which reason, limit and time for a retry.

A request that can never fit is refused here, so that whoever is in can always run, alone if need be. A request that an
earlier attempt had in already is not turned away for want of room.
"""

import msgspec

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from scheduler_svc.core import attachments, ends, prediction, prefix_use, validation
from scheduler_svc.core.ends import RETRY_NS
from scheduler_svc.core.request import Request, RequestKey
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.timers import TimerKind


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is not let in."""

    reason: Reason
    message: str
    field: str = ""
    limits: tuple[tuple[str, str], ...] = ()
    retry_after_ns: int | None = None


class OutputLimit(msgspec.Struct, frozen=True):
    """Output tokens that a choice may have, and what reaching that is called."""

    num_tokens: int
    reason: FinishReason


def submit(state: SchedulerState, gateway: int, message: front.Submit, now: int) -> None:
    """Lets a request in, attaches to it when it lives here already, or refuses it."""
    key = RequestKey(message.tenant, message.request_id)
    # Counted whatever becomes of it, so that under other knobs the same call has the same number.
    state.last_number += 1
    if message.handle in state.gateway(gateway).attachments:
        rejection: Rejection | None = _invalid(validation.Fault("", "the handle is in use"))
    else:
        known = attachments.find_kept(state, key, now)
        if known is not None and known.digest == message.digest and validation.is_base_handle(message.handle):
            attachments.attach_to(state, known, gateway, message.handle, now)
            return
        rejection = _id_in_use() if known is not None else _refuse(state, message, now)
    if rejection is None:
        request = _make_request(state, message, key, now)
        rejection = _refuse_for_time(state, request, message, now)
        if rejection is None:
            _let_in(state, gateway, message, request, now)
            return
    state.counters.refused += 1
    if state.guard_watch is not None:
        state.guard_watch.note_answer(is_bad=True)
    state.emit(gateway, _refused(message.handle, rejection))


def _refused(handle: int, rejection: Rejection) -> front.Refused:
    return front.Refused(
        handle=handle,
        reason=rejection.reason,
        message=rejection.message,
        field=rejection.field,
        limits=rejection.limits,
        retry_after_ns=rejection.retry_after_ns,
    )


def _invalid(fault: validation.Fault) -> Rejection:
    return Rejection(reason=Reason.INVALID_REQUEST, message=fault.message, field=fault.field)


def _id_in_use() -> Rejection:
    return Rejection(
        reason=Reason.REQUEST_ID_IN_USE,
        message="a request with this id and other fields lives here",
        field="request_id",
    )


def _refuse(state: SchedulerState, message: front.Submit, now: int) -> Rejection | None:
    worker = state.worker
    if worker is None or worker.is_abandoned:
        return Rejection(reason=Reason.NO_WORKER, message="no worker is up", retry_after_ns=RETRY_NS)
    if state.is_draining:
        return Rejection(reason=Reason.DRAINING, message="this replica is draining", retry_after_ns=RETRY_NS)
    fault = validation.find_fault(message, worker.geometry.vocab_size)
    if fault is not None:
        return _invalid(fault)
    limit = output_limit(state, len(message.prompt) // 4, message.max_tokens)
    if isinstance(limit, Rejection):
        return limit
    if any(len(packed) // 4 > limit.num_tokens for packed in message.emitted):
        return _invalid(validation.Fault("", "more tokens were emitted than the request may have"))
    if message.attempt > 1:
        return None
    return _refuse_for_room(state, message) or _refuse_for_quota(state, message.tenant, now)


def output_limit(state: SchedulerState, prompt_len: int, max_tokens: int | None) -> OutputLimit | Rejection:
    """How many output tokens fit behind a prompt; a Rejection when it or they never can.

    The last token of an output is never computed, so that a sequence may know one token more than memory holds.
    """
    geometry = state.geometry
    context = geometry.max_model_len
    capacity = geometry.num_blocks * geometry.block_size + 1
    wanted = prompt_len + (max_tokens or 1)
    if wanted > context:
        limits = (("max_model_len", str(context)), ("prompt_tokens", str(prompt_len)))
        field = "input" if prompt_len >= context else "stopping.max_tokens"
        text = f"{wanted} tokens of prompt and output are more than the context length, {context}"
        return Rejection(reason=Reason.CONTEXT_LENGTH_EXCEEDED, message=text, field=field, limits=limits)
    if wanted > capacity:
        limits = (("kv_capacity_tokens", str(capacity - 1)), ("prompt_tokens", str(prompt_len)))
        field = "input" if prompt_len >= capacity else "stopping.max_tokens"
        text = f"{wanted} tokens of prompt and output are more than the KV cache can ever hold, {capacity - 1}"
        return Rejection(reason=Reason.KV_CAPACITY_EXCEEDED, message=text, field=field, limits=limits)
    if max_tokens is None:
        return OutputLimit(min(context, capacity) - prompt_len, FinishReason.CONTEXT_LIMIT)
    return OutputLimit(max_tokens, FinishReason.LENGTH)


def _refuse_for_room(state: SchedulerState, message: front.Submit) -> Rejection | None:
    config = state.config
    if state.num_queued_requests >= config.max_num_queued_reqs:
        return Rejection(
            reason=Reason.QUEUE_FULL,
            message=f"{state.num_queued_requests} requests wait already",
            limits=(("max_num_queued_reqs", str(config.max_num_queued_reqs)),),
            retry_after_ns=RETRY_NS,
        )
    num_tokens = state.queue.num_tokens
    # A prompt above the bound by itself goes in where none waits: told to come again, it would for ever.
    if num_tokens and num_tokens + len(message.prompt) // 4 > config.max_num_queued_tokens:
        return Rejection(
            reason=Reason.QUEUE_FULL,
            message=f"{num_tokens} prompt tokens wait already",
            limits=(("max_num_queued_tokens", str(config.max_num_queued_tokens)),),
            retry_after_ns=RETRY_NS,
        )
    return None


def _refuse_for_quota(state: SchedulerState, name: str, now: int) -> Rejection | None:
    """A tenant's own limits; they tell nothing of anyone else."""
    tenant = state.tenants.get(name, now)
    limit = tenant.knobs.max_num_queued_reqs
    if limit is not None and tenant.num_queued_requests >= limit:
        return Rejection(
            reason=Reason.TENANT_QUOTA_EXCEEDED,
            message=f"{tenant.num_queued_requests} requests of yours wait already",
            limits=(("tenant_max_num_queued_reqs", str(limit)),),
            retry_after_ns=RETRY_NS,
        )
    wait_ns = tenant.bucket_wait_ns(now, state.confirmed.step)
    if wait_ns > 0:
        return Rejection(
            reason=Reason.TENANT_QUOTA_EXCEEDED,
            message="your rate of tokens is used up",
            limits=(("tenant_token_rate", str(tenant.knobs.token_rate)),),
            retry_after_ns=wait_ns,
        )
    return None


def _make_request(state: SchedulerState, message: front.Submit, key: RequestKey, now: int) -> Request:
    """The request, known to nobody yet."""
    request = Request(state.last_number, key, state.tenants.get(key.tenant, now), message, now)
    limit = output_limit(state, request.prompt_len, message.max_tokens)
    assert isinstance(limit, OutputLimit)
    request.output_limit, request.limit_reason = limit.num_tokens, limit.reason
    if request.queue_deadline_ns is None and state.config.queue_timeout_ns is not None:
        request.queue_deadline_ns = now + state.config.queue_timeout_ns
    owner = None if state.config.share_prefix_across_tenants else key.tenant
    request.prefix_root = state.hashes.root(owner, message.cache_salt)
    prefix_use.hash_prompt(state, request)
    request.add_choices(message.n, message.emitted)
    return request


def _refuse_for_time(state: SchedulerState, request: Request, message: front.Submit, now: int) -> Rejection | None:
    """Predicts the first token; refuses a request that would miss its objective or its deadline anyhow."""
    first = request.sequences[0]
    num_cached = len(prefix_use.find_blocks(state, first)) * state.hashes.block_size
    num_ahead = state.queue.num_ahead(first, now)
    costs = state.cost_model.costs
    if costs is not None:
        request.prefill_ns = int((first.num_known - num_cached) * costs.prefill_token)
    foretold = prediction.foretell(state, num_ahead, first.num_known - num_cached, now)
    request.foretold = foretold
    objective = request.ttft_slo_ns or state.config.ttft_slo_ns
    bounds = [bound for bound in (objective, message.deadline_in_ns) if bound is not None]
    if foretold is None or message.attempt > 1 or not bounds or foretold.ttft_ns <= min(bounds):
        return None
    predicted = foretold.ttft_ns
    limit_ms = min(bounds) // 1_000_000
    return Rejection(
        reason=Reason.TTFT_SLO_UNREACHABLE,
        message=f"the first token is expected in {predicted // 1_000_000} ms, later than wanted ({limit_ms} ms)",
        field="scheduling.ttft_slo" if objective == min(bounds) else "",
        limits=(("ttft_slo_ms", str(limit_ms)), ("predicted_ttft_ms", str(predicted // 1_000_000))),
        retry_after_ns=min(max(predicted - min(bounds), RETRY_NS // 10), 60 * RETRY_NS),
    )


def _let_in(state: SchedulerState, gateway: int, message: front.Submit, request: Request, now: int) -> None:
    key, tenant = request.key, request.tenant
    state.tenants.enter(tenant)
    state.requests[key] = request
    state.by_number[request.number] = request
    state.num_queued_requests += 1
    tenant.num_queued_requests += 1
    state.counters.accepted += 1
    attachments.bind(state, request, gateway, message.handle)
    for choice in message.ended:
        ends.end_before(state, request.sequences[choice], now)
    request.num_unended -= len(message.ended)
    waiting = [sequence for sequence in request.sequences if not sequence.is_ended]
    for sequence in waiting:
        state.queue.add(sequence, now)
    request.waits.begin(state.clock, now)
    if request.deadline_ns is not None:
        state.timers.set(request.deadline_ns, TimerKind.DEADLINE, request.number)
    if request.queue_deadline_ns is not None:
        state.timers.set(request.queue_deadline_ns, TimerKind.QUEUE_TIMEOUT, request.number)
    position = state.queue.num_ahead(waiting[0], now)
    told_ns = None if request.foretold is None else request.foretold.ttft_ns
    state.emit(gateway, front.Accepted(message.handle, request.number, position, told_ns))
    for sequence in waiting:
        # An earlier attempt may have emitted a choice's last token, and died before it could say so.
        cause = ends.cause_in_outputs(state, sequence)
        if cause is not None:
            ends.end_sequence(state, sequence, cause, now)
