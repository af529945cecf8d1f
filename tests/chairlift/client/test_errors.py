"""Every kind of status becomes its own exception, with all that the server told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from chairlift.client import (
    AbortedError,
    AlreadyExistsError,
    AsyncClient,
    ChairliftError,
    DeadlineExceededError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    QuotaViolation,
    RequestCancelledError,
    ResourceExhaustedError,
    RetryPolicy,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from chairlift.v1 import inference_pb2 as pb

ONCE = RetryPolicy(max_attempts=1)
TABLE = [
    (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError),
    (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
    (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
    (grpc.StatusCode.NOT_FOUND, NotFoundError),
    (grpc.StatusCode.ALREADY_EXISTS, AlreadyExistsError),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhaustedError),
    (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
    (grpc.StatusCode.ABORTED, AbortedError),
    (grpc.StatusCode.CANCELLED, RequestCancelledError),
    (grpc.StatusCode.OUT_OF_RANGE, OutOfRangeError),
    (grpc.StatusCode.UNAVAILABLE, UnavailableError),
    (grpc.StatusCode.UNIMPLEMENTED, UnimplementedError),
    (grpc.StatusCode.INTERNAL, InternalError),
    (grpc.StatusCode.UNKNOWN, ChairliftError),
]


@pytest.mark.parametrize(("code", "error_type"), TABLE)
async def test_each_row_of_the_table_has_its_class(
    server: Any, code: grpc.StatusCode, error_type: type[ChairliftError]
) -> None:
    async def refuse(_request: Any, context: Any) -> Any:
        await server.fail(context, code, "SOME_REASON", message="why", max_prompt_tokens="9")

    server.on_call = refuse
    async with AsyncClient(server.target, retry=ONCE) as client:
        with pytest.raises(ChairliftError) as caught:
            await client.get_model()
    error = caught.value
    assert type(error) is error_type
    assert (error.code, error.reason, error.message) == (code.name, "SOME_REASON", "why")
    assert error.metadata == {"max_prompt_tokens": "9"}
    assert str(error) == "SOME_REASON: why"


async def test_details_of_each_type_come_through(server: Any) -> None:
    bad_request = error_details_pb2.BadRequest()
    bad_request.field_violations.add(field="sampling.top_p", description="above 0, at most 1")
    quota = error_details_pb2.QuotaFailure()
    quota.violations.add(subject="tenant:a", description="100 requests a minute")
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))

    async def refuse(_request: Any, context: Any) -> AsyncIterator[Any]:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        await server.fail(context, code, "TENANT_QUOTA_EXCEEDED", bad_request, quota, retry)
        yield pb.GenerationEvent()

    server.on_generate = refuse
    async with AsyncClient(server.target, retry=ONCE) as client:
        with pytest.raises(ResourceExhaustedError, match=r"sampling\.top_p: above 0, at most 1") as caught:
            await client.generate("x")
    error = caught.value
    assert error.field_violations == (FieldViolation("sampling.top_p", "above 0, at most 1"),)
    assert error.quota_violations == (QuotaViolation("tenant:a", "100 requests a minute"),)
    assert error.retry_delay_s == 1.5
    assert error.request_id == server.requests[0].request_id


def test_a_violation_that_the_message_tells_already_is_not_told_twice() -> None:
    violation = FieldViolation("sampling.n", "at most 4")
    assert str(InvalidArgumentError("sampling.n: at most 4", reason="BAD", field_violations=(violation,))) == (
        "BAD: sampling.n: at most 4"
    )


async def test_a_status_without_details_keeps_its_message(server: Any) -> None:
    async def refuse(_request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.INTERNAL, "proxy says no")

    server.on_call = refuse
    async with AsyncClient(server.target) as client:
        with pytest.raises(InternalError, match="INTERNAL: proxy says no") as caught:
            await client.explain("x")
    assert (caught.value.reason, caught.value.metadata, caught.value.retry_delay_s) == ("", {}, None)


async def test_unreadable_details_do_not_hide_the_error(server: Any) -> None:
    async def refuse(_request: Any, context: Any) -> Any:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        await context.abort(grpc.StatusCode.NOT_FOUND, "gone")

    server.on_call = refuse
    async with AsyncClient(server.target) as client:
        with pytest.raises(NotFoundError, match="gone"):
            await client.get_model()


@pytest.mark.parametrize(
    ("reason", "code", "error_type"),
    [
        (pb.FINISH_REASON_CANCELLED, grpc.StatusCode.CANCELLED, RequestCancelledError),
        (pb.FINISH_REASON_DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (pb.FINISH_REASON_ERROR, grpc.StatusCode.UNAVAILABLE, UnavailableError),
    ],
)
async def test_a_choice_that_failed_raises_and_leaves_what_it_had(
    server: Any, reason: Any, code: grpc.StatusCode, error_type: type[ChairliftError]
) -> None:
    async def fail_late(request: Any, context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "so far")
        yield server.finished(1, reason=reason, failure=pb.Failure(reason="WHY", message="because", retryable=True))
        await server.fail(context, code, "WHY")

    server.on_generate = fail_late
    async with AsyncClient(server.target) as client:
        with pytest.raises(error_type) as caught:
            await client.generate("x")
    partial = caught.value.partial
    assert partial is not None
    assert partial.text == "so far"
    assert partial.choices[0].failure is not None
    assert partial.choices[0].failure.reason == "WHY"
    assert len(server.requests) == 1, "the request itself ended: nothing to repeat"


async def test_the_clients_own_deadline(server: Any) -> None:
    async def stall(request: Any, _context: Any) -> AsyncIterator[Any]:
        yield server.accepted(request)
        yield server.delta(0, "so far")
        await asyncio.Event().wait()

    server.on_generate = stall
    async with AsyncClient(server.target, timeout=60) as client:
        with pytest.raises(DeadlineExceededError) as caught:
            await client.generate("x", timeout=1.0)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "so far"


async def test_nobody_listens() -> None:
    async with AsyncClient("127.0.0.1:1", retry=RetryPolicy(max_attempts=2, initial_backoff_s=0.01)) as client:
        with pytest.raises(UnavailableError, match="UNAVAILABLE: ") as caught:
            await client.generate("x")
    assert caught.value.reason == ""
