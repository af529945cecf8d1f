"""What of requests the caller on the operator's port may see, and the audit line that each change leaves."""

import hashlib
import secrets
from collections.abc import Iterable

import structlog

from chairlift.ipc import operator
from chairlift.ipc.operator import SequenceName
from chairlift.runtime.telemetry import AUDIT_EVENT
from chairlift.v1 import ops_pb2 as pb
from gateway.call import Call
from gateway.validation.violations import Violations

MAX_COMMENT_CHARS = 500


class Veil:
    """Hides ids and tenants from a viewer: each has an opaque name instead, the same while this process lives."""

    def __init__(self, *, is_lifted: bool) -> None:
        """`is_lifted`: the settings allow a viewer to see them."""
        self._is_lifted = is_lifted
        self._key = secrets.token_bytes(16)

    def is_transparent_to(self, call: Call) -> bool:
        """Whether the caller sees what is behind it."""
        return self._is_lifted or call.principal.may_see_requests

    def sequence(self, name: SequenceName, *, is_seen: bool) -> pb.SequenceRef:
        """A choice as the caller may see it."""
        if is_seen:
            return pb.SequenceRef(tenant=name.tenant, request_id=name.request_id, index=name.choice)
        return pb.SequenceRef(request_id=self._opaque(name.tenant, name.request_id), index=name.choice)

    def names(self, row: operator.RequestRow, *, is_seen: bool) -> tuple[str, str]:
        """Tenant and id of a request as the caller may see them."""
        if is_seen:
            return row.tenant, row.request_id
        return "", self._opaque(row.tenant, row.request_id)

    def _opaque(self, tenant: str, request_id: str) -> str:
        text = f"{tenant}\0{request_id}".encode()
        return f"#{hashlib.blake2b(text, digest_size=8, key=self._key).hexdigest()}"


def check_comment(comment: str, violations: Violations) -> None:
    """A comment goes into logs and histories."""
    limit = MAX_COMMENT_CHARS
    violations.check(len(comment) <= limit, "comment", f"may have at most {limit} characters", max_comment_chars=limit)


def audit(call: Call, method: str, comment: str, targets: Iterable[str], **facts: object) -> None:
    """Writes down who changed what; the log adds the time (UTC). Every level of the log lets it pass."""
    principal = call.principal
    structlog.get_logger().info(
        AUDIT_EVENT,
        method=method,
        who=principal.name,
        role=principal.role.value,
        peer=call.peer,
        comment=comment,
        targets=list(targets),
        **facts,
    )
