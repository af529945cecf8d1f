"""A GenerateRequest, checked whole."""

import hashlib

import msgspec
from google.protobuf.message import Message

from chairlift.v1 import inference_pb2 as pb
from gateway.validation.limits import MAX_SALT_BYTES, RequestLimits
from gateway.validation.prompt import check_prompt
from gateway.validation.sampling import check_max_tokens, check_num_choices, check_sampling, check_stop_rules
from gateway.validation.spec import GenerateSpec
from gateway.validation.violations import Violations, duration_ns

_MAX_REQUEST_ID_CHARS = 64
_DIGEST_BYTES = 16
_UNTOLD = frozenset({"request_id", "digest", "sampling"})
_NS = 1_000_000_000


def check_generate(request: pb.GenerateRequest, limits: RequestLimits) -> GenerateSpec:
    """What the request asks for. Raises ApiError with every violation that was found."""
    violations = Violations()
    violations.check_unknown_fields(request, "")
    request_id = request.request_id if request.HasField("request_id") else None
    if request_id is not None:
        check_request_id(request_id, violations)
    salt = request.cache_salt
    violations.check(len(salt.encode()) <= MAX_SALT_BYTES, "cache_salt", f"may have at most {MAX_SALT_BYTES} bytes")
    sampling = check_sampling(request, limits, violations)
    scheduling = _Scheduling(request.scheduling, limits, violations)
    violations.check_unknown_fields(request.delivery, "delivery")
    grace_ns = duration_ns(violations, request.delivery.detach_grace, "delivery.detach_grace", may_be_zero=True)
    spec = GenerateSpec(
        request_id=request_id,
        digest=b"",
        input=check_prompt(request, limits, violations),
        input_field=request.WhichOneof("input") or "input",
        sampling=sampling,
        seed=request.sampling.seed if request.sampling.HasField("seed") else None,
        n=check_num_choices(request.sampling, limits, violations),
        max_tokens=check_max_tokens(request.stopping, limits, violations),
        stop=check_stop_rules(request.stopping, limits, violations),
        priority=scheduling.priority,
        queue_timeout_ns=scheduling.queue_timeout_ns,
        ttft_slo_ns=scheduling.ttft_slo_ns,
        itl_slo_ns=scheduling.itl_slo_ns,
        detach_grace_ns=min(grace_ns, round(limits.max_detach_grace_s * _NS)),
        cache_salt=salt,
        wants_token_ids=request.output.token_ids,
    )
    violations.raise_if_any()
    return msgspec.structs.replace(spec, digest=digest_of(spec))


def check_request_id(request_id: str, violations: Violations) -> None:
    """1 to 64 printable ASCII characters."""
    violations.check(is_request_id(request_id), "request_id", "must be 1 to 64 printable ASCII characters")


def is_request_id(request_id: str) -> bool:
    """Whether a request can have this id."""
    return 0 < len(request_id) <= _MAX_REQUEST_ID_CHARS and request_id.isascii() and request_id.isprintable()


def digest_of(spec: GenerateSpec) -> bytes:
    """Tells whether two requests ask for the same, their ids aside: a default that is written out changes nothing.

    What has its default is left out, so that gateways of which one knows a field more agree while it is not used.
    """
    asked = {name: value for name in spec.__struct_fields__ if (value := getattr(spec, name)) and name not in _UNTOLD}
    asked["sampling"] = {
        field.name: value
        for field in msgspec.structs.fields(spec.sampling)
        if (value := getattr(spec.sampling, field.name)) != field.default
    }
    return hashlib.blake2b(msgspec.msgpack.encode(asked), digest_size=_DIGEST_BYTES).digest()


class _Scheduling:
    """The request's place among others. Priority is capped, as the contract says, and not refused."""

    def __init__(self, scheduling: pb.Scheduling, limits: RequestLimits, violations: Violations) -> None:
        violations.check_unknown_fields(scheduling, "scheduling")
        self.priority = min(scheduling.priority, limits.max_priority)
        self.queue_timeout_ns = self._duration(scheduling, "queue_timeout", violations)
        self.ttft_slo_ns = self._duration(scheduling, "ttft_slo", violations)
        self.itl_slo_ns = self._duration(scheduling, "itl_slo", violations)

    @staticmethod
    def _duration(scheduling: Message, name: str, violations: Violations) -> int | None:
        if not scheduling.HasField(name):
            return None
        return duration_ns(violations, getattr(scheduling, name), f"scheduling.{name}", may_be_zero=False)
