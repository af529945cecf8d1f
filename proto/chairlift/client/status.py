"""Turns a gRPC status with google.rpc details into a typed error."""

from collections.abc import Iterable
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from chairlift.client.errors import ERRORS_BY_CODE, ChairliftError, FieldViolation, QuotaViolation

DOMAIN = "chairlift"
_DETAILS_KEY = "grpc-status-details-bin"

Metadata = Iterable[tuple[str, str | bytes]]


class _Details(NamedTuple):
    info: error_details_pb2.ErrorInfo
    retry: error_details_pb2.RetryInfo
    bad_request: error_details_pb2.BadRequest
    quota: error_details_pb2.QuotaFailure


def error_from_status(code: grpc.StatusCode, message: str | None, trailing: Metadata | None) -> ChairliftError:
    """The typed error of a call that did not end with OK.

    Details of another domain than ours, and details that cannot be read, count as absent.
    """
    details = _read_details(trailing or ())
    error_type = ERRORS_BY_CODE.get(code.name, ChairliftError)
    error = error_type(
        message or code.name,
        reason=details.info.reason,
        metadata=dict(details.info.metadata),
        retry_delay_s=_seconds(details.retry),
        field_violations=tuple(
            FieldViolation(item.field, item.description) for item in details.bad_request.field_violations
        ),
        quota_violations=tuple(QuotaViolation(item.subject, item.description) for item in details.quota.violations),
    )
    error.code = code.name
    return error


def _seconds(retry: error_details_pb2.RetryInfo) -> float | None:
    if not retry.HasField("retry_delay"):
        return None
    return float(retry.retry_delay.seconds) + float(retry.retry_delay.nanos) / 1e9


def _read_details(trailing: Metadata) -> _Details:
    details = _Details(
        error_details_pb2.ErrorInfo(),
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.QuotaFailure(),
    )
    encoded = next((value for key, value in trailing if key == _DETAILS_KEY), None)
    if not isinstance(encoded, bytes):
        return details
    try:
        for packed in status_pb2.Status.FromString(encoded).details:
            for target in details:
                packed.Unpack(target)  # fills the one whose type it is, and leaves the others
    except DecodeError:
        return details
    return details if details.info.domain == DOMAIN else details._replace(info=error_details_pb2.ErrorInfo())
