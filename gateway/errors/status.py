"""Builds what goes over the wire for an error: code, message, google.rpc details, trailing metadata.

Everything together stays small enough that no proxy or client trips over it: beyond 8 KiB of metadata a client sees
another code than the one that was sent.
"""

import grpc
import msgspec
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details_pb2
from google.rpc import status_pb2

from gateway.errors.api_error import ApiError
from gateway.errors.table import StatusRule, status_rule

DOMAIN = "chairlift"
MAX_STATUS_BYTES = 4096
_MAX_MESSAGE_CHARS = 400
_MAX_VIOLATIONS = 8
_MAX_FIELD_CHARS = 120
_MAX_DESCRIPTION_CHARS = 160
_MAX_LIMITS = 12
_MAX_LIMIT_CHARS = 80

Metadata = tuple[tuple[str, str | bytes], ...]


class WireStatus(msgspec.Struct, frozen=True):
    """An error, ready to be sent."""

    code: grpc.StatusCode
    message: str
    trailing: Metadata
    """Details, and the pause before a retry."""


def to_wire(error: ApiError, trace_id: str = "") -> WireStatus:
    """The status of `error`; `trace_id` is told where the fault is ours."""
    rule = status_rule(error.reason, can_retry=error.retry_after_s is not None)
    message = _shorten(error.message, _MAX_MESSAGE_CHARS)
    info = _error_info(error)
    if rule.code is grpc.StatusCode.INTERNAL and trace_id:
        info.metadata["trace_id"] = trace_id
    retry_s = error.retry_after_s if error.retry_after_s is not None else rule.default_retry_s
    details: list[Message] = [info]
    if retry_s is not None:
        details.append(details_pb2.RetryInfo(retry_delay=_duration(retry_s)))
    details += _kind_details(error, rule)
    encoded = _encode(rule.code, message, details)
    trailing: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", encoded)]
    if retry_s is not None:
        trailing.append(("grpc-retry-pushback-ms", str(round(retry_s * 1000))))
    elif rule.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
        trailing.append(("grpc-retry-pushback-ms", "-1"))
    return WireStatus(rule.code, message, tuple(trailing))


def _error_info(error: ApiError) -> details_pb2.ErrorInfo:
    info = details_pb2.ErrorInfo(reason=error.reason[:63], domain=DOMAIN)
    for name, value in error.limits[:_MAX_LIMITS]:
        info.metadata[_shorten(name, _MAX_LIMIT_CHARS)] = _shorten(value, _MAX_LIMIT_CHARS)
    return info


def _kind_details(error: ApiError, rule: StatusRule) -> list[Message]:
    if rule.names_fields and error.violations:
        violations = [
            details_pb2.BadRequest.FieldViolation(
                field=_shorten(violation.field, _MAX_FIELD_CHARS),
                description=_shorten(violation.description, _MAX_DESCRIPTION_CHARS),
            )
            for violation in error.violations[:_MAX_VIOLATIONS]
        ]
        return [details_pb2.BadRequest(field_violations=violations)]
    if rule.is_quota:
        subjects = [name for name, _ in error.limits[:_MAX_VIOLATIONS]] or [error.reason.lower()]
        description = _shorten(error.message, _MAX_DESCRIPTION_CHARS)
        return [
            details_pb2.QuotaFailure(
                violations=[
                    details_pb2.QuotaFailure.Violation(
                        subject=_shorten(subject, _MAX_FIELD_CHARS), description=description
                    )
                    for subject in subjects
                ]
            )
        ]
    return []


def _encode(code: grpc.StatusCode, message: str, details: list[Message]) -> bytes:
    """google.rpc.Status within the bound: ErrorInfo always goes, with the limits that fit; the rest as room is."""
    status = status_pb2.Status(code=code.value[0], message=message)
    room = MAX_STATUS_BYTES - len(message.encode()) - status.ByteSize()
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        while isinstance(detail, details_pb2.ErrorInfo) and packed.ByteSize() + 4 > room and detail.metadata:
            del detail.metadata[max(detail.metadata, key=lambda name: len(detail.metadata[name].encode()))]
            packed.Pack(detail)
        size = packed.ByteSize() + 4
        if size <= room:
            status.details.append(packed)
            room -= size
    return bytes(status.SerializeToString())


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(max(0, round(seconds * 1e9)))
    return duration


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
