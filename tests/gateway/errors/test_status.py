"""The status table and what it puts on the wire."""

import grpc
import pytest
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from chairlift.ipc.common import Reason
from gateway.errors.api_error import ApiError, FieldViolation, GatewayReason
from gateway.errors.status import MAX_STATUS_BYTES, to_wire
from gateway.errors.table import STATUS_RULES, status_rule

_RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


def _status(error: ApiError) -> status_pb2.Status:
    packed = dict(to_wire(error, "abc").trailing)["grpc-status-details-bin"]
    assert isinstance(packed, bytes)
    return status_pb2.Status.FromString(packed)


def _infos(status: status_pb2.Status) -> list[details.ErrorInfo]:
    found = []
    for detail in status.details:
        info = details.ErrorInfo()
        if detail.Unpack(info):
            found.append(info)
    return found


def test_every_reason_has_a_row() -> None:
    assert STATUS_RULES.keys() == {*map(str, Reason), *map(str, GatewayReason)}


@pytest.mark.parametrize("reason", sorted(STATUS_RULES))
def test_every_row_tells_its_reason_once_and_its_kind(reason: str) -> None:
    violation = FieldViolation("a.b", "is wrong")
    error = ApiError(reason, "message", violations=(violation,), limits=(("limit", "5"),))
    wire, status, rule = to_wire(error, "abc"), _status(error), STATUS_RULES[reason]
    assert (wire.code, status.code, status.message) == (rule.code, rule.code.value[0], "message")
    (info,) = _infos(status)
    assert (info.reason, info.domain, info.metadata["limit"]) == (reason, "chairlift", "5")
    assert (info.metadata["trace_id"] if rule.code is grpc.StatusCode.INTERNAL else "abc") == "abc"
    kinds = [detail.type_url.rpartition(".")[2] for detail in status.details]
    assert len(set(kinds)) == len(kinds)
    assert ("BadRequest" in kinds) == rule.names_fields
    assert ("QuotaFailure" in kinds) == rule.is_quota
    pushback = dict(wire.trailing).get("grpc-retry-pushback-ms")
    assert (pushback is not None) == (rule.code in _RETRYABLE)
    assert ("RetryInfo" in kinds) == (pushback not in (None, "-1"))


@pytest.mark.parametrize(
    ("can_retry", "code"), [(True, grpc.StatusCode.UNAVAILABLE), (False, grpc.StatusCode.INTERNAL)]
)
def test_a_reason_of_a_newer_scheduler_is_passed_on(can_retry: bool, code: grpc.StatusCode) -> None:
    assert status_rule("FROM_THE_FUTURE", can_retry=can_retry).code is code
    error = ApiError("FROM_THE_FUTURE", "m", retry_after_s=2.0 if can_retry else None)
    assert to_wire(error).code is code
    assert _infos(_status(error))[0].reason == "FROM_THE_FUTURE"


_LONG = st.builds(lambda text, times: text * times, st.text(max_size=4), st.integers(0, 400))


@given(
    message=_LONG,
    field=_LONG,
    description=_LONG,
    count=st.integers(0, 40),
    limits=st.lists(st.tuples(_LONG, _LONG), max_size=20),
    reason=st.sampled_from(sorted(STATUS_RULES)),
)
def test_a_status_is_bounded_whatever_is_in_it(
    message: str, field: str, description: str, count: int, limits: list[tuple[str, str]], reason: str
) -> None:
    violations = (FieldViolation(field, description),) * count
    error = ApiError(reason, message, violations=violations, limits=tuple(limits), retry_after_s=1.0)
    wire = to_wire(error, "abc")
    packed = dict(wire.trailing)["grpc-status-details-bin"]
    assert len(packed) + len(wire.message.encode()) <= MAX_STATUS_BYTES
    status = _status(error)
    assert len(_infos(status)) == 1
    for detail in status.details:
        bad = details.BadRequest()
        if detail.Unpack(bad):
            assert len(bad.field_violations) <= 8
