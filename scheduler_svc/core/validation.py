"""Whether a Submit from the wire is a request at all. Decoding has checked types; values are checked here.

A gateway that works refuses most of this with better words; what counts here is that nothing else gets in.
"""

import math

import msgspec

from chairlift.ipc import front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import unpack_u32

_U64 = 1 << 64
_MAX_ID_CHARS = 64
_MAX_STATE_BYTES = 64 << 10
_MAX_BIASES = 300
_MAX_STOP_IDS = 256
_MAX_LOGPROBS = 1024
_MAX_NS = 1 << 60
_MAX_PRIORITY = 1 << 31
_DIGEST_BYTES = 16


class Fault(msgspec.Struct, frozen=True):
    """What is wrong, and with which field of the public request."""

    field: str
    message: str


def find_fault(submit: front.Submit, vocab_size: int) -> Fault | None:
    """The first thing that is wrong with it; None when it is sound."""
    return (
        _identity_fault(submit)
        or _ids_fault("input", submit.prompt, vocab_size, may_be_empty=False)
        or _choices_fault(submit, vocab_size)
        or _duration_fault(submit)
        or _sampling_fault(submit.sampling, vocab_size)
    )


def _identity_fault(submit: front.Submit) -> Fault | None:
    if not is_base_handle(submit.handle):
        return Fault("", "the handle is no base handle")
    if not 1 <= len(submit.request_id) <= _MAX_ID_CHARS or not _is_printable_ascii(submit.request_id):
        return Fault("request_id", f"must be 1 to {_MAX_ID_CHARS} printable ASCII characters")
    if len(submit.digest) != _DIGEST_BYTES:
        return Fault("", f"the digest must have {_DIGEST_BYTES} bytes")
    if len(submit.gateway_state) > _MAX_STATE_BYTES:
        return Fault("stopping", f"options and stop strings take more than {_MAX_STATE_BYTES} bytes")
    if not -_MAX_PRIORITY <= submit.priority < _MAX_PRIORITY:
        return Fault("scheduling.priority", "does not fit into 32 bits")
    return None


def is_base_handle(handle: int) -> bool:
    """Whether it can be a request's: those of its choices follow it."""
    return 0 <= handle < _U64 and handle % front.MAX_CHOICES == 0


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _ids_fault(field: str, packed: bytes, vocab_size: int, *, may_be_empty: bool) -> Fault | None:
    if len(packed) % 4:
        return Fault(field, "token ids are no column of 32-bit numbers")
    if not packed:
        return None if may_be_empty else Fault(field, "must have at least one token")
    if max(unpack_u32(packed)) >= vocab_size:
        return Fault(field, f"a token id is not below the vocabulary's size, {vocab_size}")
    return None


def _choices_fault(submit: front.Submit, vocab_size: int) -> Fault | None:
    if not 1 <= submit.n <= front.MAX_CHOICES:
        return Fault("sampling.n", f"must be 1 to {front.MAX_CHOICES}")
    if submit.max_tokens is not None and not 1 <= submit.max_tokens < _MAX_PRIORITY:
        return Fault("stopping.max_tokens", "must be at least 1")
    if submit.attempt < 1 or (submit.emitted and len(submit.emitted) != submit.n):
        return Fault("", "emitted tokens are not those of every choice")
    for packed in submit.emitted:
        fault = _ids_fault("", packed, vocab_size, may_be_empty=True)
        if fault is not None:
            return fault
    if len(set(submit.ended)) != len(submit.ended) or not all(0 <= one < submit.n for one in submit.ended):
        return Fault("", "ended choices are not choices")
    if len(submit.ended) == submit.n:
        return Fault("", "every choice has ended before")
    return None


def _duration_fault(submit: front.Submit) -> Fault | None:
    durations = {
        "scheduling.deadline": submit.deadline_in_ns,
        "scheduling.queue_timeout": submit.queue_timeout_in_ns,
        "scheduling.ttft_slo": submit.ttft_slo_ns,
        "scheduling.itl_slo": submit.itl_slo_ns,
        "delivery.detach_grace": submit.detach_grace_ns,
        "": submit.age_ns,
    }
    for field, duration in durations.items():
        if duration is not None and not 0 <= duration <= _MAX_NS:
            return Fault(field, "is no duration")
    return None


def _sampling_fault(sampling: SamplingParams, vocab_size: int) -> Fault | None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return Fault("sampling.temperature", "must be a number that is not negative")
    if not 0 < sampling.top_p <= 1:
        return Fault("sampling.top_p", "must be above 0 and at most 1")
    if not 0 <= sampling.min_p <= 1:
        return Fault("sampling.min_p", "must be 0 to 1")
    if sampling.top_k < 0:
        return Fault("sampling.top_k", "must not be negative")
    if not (math.isfinite(sampling.repetition_penalty) and sampling.repetition_penalty > 0):
        return Fault("sampling.repetition_penalty", "must be a number above 0")
    if not math.isfinite(sampling.presence_penalty) or not math.isfinite(sampling.frequency_penalty):
        return Fault("sampling.presence_penalty", "penalties must be numbers")
    if not 0 <= sampling.seed < _U64:
        return Fault("sampling.seed", "must be an unsigned 64-bit number")
    return _sampling_ids_fault(sampling, vocab_size)


def _sampling_ids_fault(sampling: SamplingParams, vocab_size: int) -> Fault | None:
    if len(sampling.logit_bias) > _MAX_BIASES:
        return Fault("sampling.logit_bias", f"may have at most {_MAX_BIASES} entries")
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocab_size or not math.isfinite(bias):
            return Fault(
                "sampling.logit_bias", "has a token that is not in the vocabulary, or a bias that is no number"
            )
    if sampling.min_tokens < 0:
        return Fault("stopping.min_tokens", "must not be negative")
    if len(sampling.stop_token_ids) > _MAX_STOP_IDS:
        return Fault("stopping.stop_token_ids", f"may have at most {_MAX_STOP_IDS} entries")
    if not all(0 <= token < vocab_size for token in sampling.stop_token_ids):
        return Fault("stopping.stop_token_ids", "a token is not in the vocabulary")
    for field, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None and not 0 <= count <= _MAX_LOGPROBS:
            return Fault(f"output.{field}", f"must be 0 to {_MAX_LOGPROBS}")
    return None
