"""`GetConfig`, `UpdateConfig` and `RollbackConfig`: the scheduling configuration of each replica, by revisions."""

import asyncio
import math
import time
from collections.abc import Callable

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from chairlift.ipc import front, operator
from chairlift.ipc.common import Reason
from chairlift.v1 import inference_pb2
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import ApiError, FieldViolation
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import Question, Replicas
from gateway.methods.ops_access import Veil, audit, check_comment
from gateway.methods.ops_changes import find_named, unreachable
from gateway.methods.ops_knobs import config_message, read_changes
from gateway.validation.violations import Violations, duration_ns, refuse_unknown_fields

_GUARD_SCALES = {
    pb.GUARD_METRIC_TTFT_P99_MS: 1_000_000,
    pb.GUARD_METRIC_ITL_P99_MS: 1_000_000,
    pb.GUARD_METRIC_QUEUE_P99_MS: 1_000_000,
    pb.GUARD_METRIC_ERROR_RATIO: 1_000_000,
    pb.GUARD_METRIC_PREEMPTIONS_PER_SECOND: 1_000,
}
"""From the contract's unit of each metric to the scheduler's whole numbers."""
_MAX_BOUND = 1e9


class _Answer(msgspec.Struct, frozen=True):
    """What one replica said."""

    link: ReplicaLink
    reply: operator.ConfigReply | front.QueryFailed | None
    """None when it does not answer."""


class GetConfigMethod:
    """Serves `GetConfig`."""

    def __init__(self, replicas: Replicas, veil: Veil) -> None:
        self._replicas = replicas
        self._veil = veil

    async def __call__(self, request: pb.GetConfigRequest, call: Call) -> pb.GetConfigResponse:
        """The revision in force of each replica, and its history. Raises ApiError for an unknown replica."""
        refuse_unknown_fields(request)
        links, with_history = self._replicas.find(request.replica_id), request.include_history
        answers = await _ask(self._replicas, links, lambda number: operator.ConfigQuery(number, with_history))
        is_seen = self._veil.is_transparent_to(call)
        return pb.GetConfigResponse(replicas=[_replica_config(answer, is_seen=is_seen) for answer in answers])


class UpdateConfigMethod:
    """Serves `UpdateConfig`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.UpdateConfigRequest, call: Call) -> pb.UpdateConfigResponse:
        """Changes knobs. Raises ApiError for a request that is wrong, and where every replica refuses it."""
        violations = Violations()
        violations.check_unknown_fields(request, "")
        changes = read_changes(request.config, request.update_mask, violations)
        guard = _read_guard(request.guard, violations) if request.HasField("guard") else None
        check_comment(request.comment, violations)
        violations.raise_if_any()
        change = operator.ConfigChange(
            0,
            changes,
            request.expected_revision if request.HasField("expected_revision") else None,
            guard,
            call.principal.name,
            request.comment,
            request.validate_only,
        )
        answers = await _ask(
            self._replicas,
            find_named(self._replicas, request.replica_id),
            lambda number: msgspec.structs.replace(change, query=number),
        )
        if not request.validate_only:
            _audit(call, "UpdateConfig", request.comment, answers, knobs=[name for name, _ in changes])
        _raise_if_refused(answers)
        return pb.UpdateConfigResponse(replicas=[_replica_config(answer, is_seen=True) for answer in answers])


class RollbackConfigMethod:
    """Serves `RollbackConfig`."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: pb.RollbackConfigRequest, call: Call) -> pb.RollbackConfigResponse:
        """Makes an earlier revision's values a new one. Raises ApiError as UpdateConfig does."""
        violations = Violations()
        violations.check_unknown_fields(request, "")
        check_comment(request.comment, violations)
        violations.raise_if_any()
        revision = request.revision if request.HasField("revision") else None
        expected = request.expected_revision if request.HasField("expected_revision") else None
        answers = await _ask(
            self._replicas,
            find_named(self._replicas, request.replica_id),
            lambda number: operator.ConfigRollback(number, revision, expected, call.principal.name, request.comment),
        )
        _audit(call, "RollbackConfig", request.comment, answers)
        _raise_if_refused(answers, "revision")
        return pb.RollbackConfigResponse(replicas=[_replica_config(answer, is_seen=True) for answer in answers])


async def _ask(replicas: Replicas, links: list[ReplicaLink], make: Callable[[int], Question]) -> list[_Answer]:
    async def ask(link: ReplicaLink) -> _Answer:
        reply = await replicas.ask(link, make)
        return _Answer(link, reply if isinstance(reply, operator.ConfigReply | front.QueryFailed) else None)

    return list(await asyncio.gather(*map(ask, links)))


def _read_guard(guard: pb.Guard, violations: Violations) -> operator.Guard | None:
    violations.check_unknown_fields(guard, "guard")
    scale = _GUARD_SCALES.get(guard.metric)
    violations.check(scale is not None, "guard.metric", "is not one of the metrics that can be watched")
    # A share above 1 would never be passed: a guard that watches nothing.
    most = 1.0 if guard.metric == pb.GUARD_METRIC_ERROR_RATIO else _MAX_BOUND
    is_bound = math.isfinite(guard.bound) and 0 <= guard.bound <= most
    violations.check(is_bound, "guard.bound", f"must be 0 to {most:.0f}")
    window_ns = duration_ns(violations, guard.window, "guard.window", may_be_zero=False)
    if scale is None or not is_bound:
        return None
    return operator.Guard(guard.metric, round(guard.bound * scale), window_ns)


def _raise_if_refused(answers: list[_Answer], field: str = "") -> None:
    """Raises ApiError where no replica has taken the change and one says why; others' results are told one by one."""
    refusals = [answer.reply for answer in answers if isinstance(answer.reply, front.QueryFailed)]
    if refusals and not any(isinstance(answer.reply, operator.ConfigReply) for answer in answers):
        raise _error(refusals[0], field)


def _error(refusal: front.QueryFailed, field: str = "") -> ApiError:
    if refusal.reason != Reason.INVALID_REQUEST:
        return ApiError(refusal.reason, refusal.message, limits=refusal.limits)
    path = refusal.field if refusal.field.startswith("guard") else f"config.{refusal.field}"
    path = path if refusal.field else field or "config"
    violation = FieldViolation(path, refusal.message)
    return ApiError(refusal.reason, f"{path}: {refusal.message}", violations=(violation,), limits=refusal.limits)


def _audit(call: Call, method: str, comment: str, answers: list[_Answer], **facts: object) -> None:
    outcomes = {answer.link.replica_id: _outcome(answer) for answer in answers}
    audit(call, method, comment, outcomes, outcomes=outcomes, **facts)


def _outcome(answer: _Answer) -> str:
    match answer.reply:
        case operator.ConfigReply():
            return f"revision {answer.reply.revision}"
        case front.QueryFailed():
            return answer.reply.reason
        case None:
            return "unreachable"


# ---- answers ----


def _replica_config(answer: _Answer, *, is_seen: bool) -> pb.ReplicaConfig:
    name = answer.link.replica_id
    match answer.reply:
        case None:
            return pb.ReplicaConfig(replica_id=name, failure=unreachable())
        case front.QueryFailed():
            error = _error(answer.reply)
            return pb.ReplicaConfig(
                replica_id=name, failure=inference_pb2.Failure(reason=error.reason, message=error.message)
            )
        case operator.ConfigReply(_, number, knobs, age_ns, current, history):
            in_force = current or operator.ConfigRevision(number, knobs, age_ns, pb.CONFIG_ORIGIN_START)
            return pb.ReplicaConfig(
                replica_id=name,
                current=_revision(in_force, is_seen=is_seen),
                history=[_revision(one, is_seen=is_seen) for one in history],
            )


def _revision(revision: operator.ConfigRevision, *, is_seen: bool) -> pb.ConfigRevision:
    since = Timestamp()
    since.FromNanoseconds(time.time_ns() - revision.age_ns)
    return pb.ConfigRevision(
        revision=revision.number,
        config=config_message(revision.knobs, with_tenants=is_seen),
        changed=FieldMask(paths=revision.changed),
        origin=pb.ConfigOrigin.ValueType(revision.origin),
        actor=revision.actor,
        comment=revision.comment,
        time=since,
        guard=None if revision.guard is None else _guard(revision.guard),
    )


def _guard(guard: operator.Guard) -> pb.Guard:
    window = Duration()
    window.FromNanoseconds(guard.window_ns)
    metric = pb.GuardMetric.ValueType(guard.metric)
    return pb.Guard(metric=metric, bound=guard.bound / _GUARD_SCALES.get(metric, 1), window=window)
