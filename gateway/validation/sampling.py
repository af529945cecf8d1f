"""`Sampling`, `Stopping` and `Output` of a request: numbers, token ids, stop strings."""

import math

from google.protobuf.message import Message

from chairlift.ipc.common import SamplingParams
from chairlift.v1 import inference_pb2 as pb
from gateway.validation.limits import (
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_BYTES_IN_ALL,
    MAX_STOP_TOKEN_IDS,
    RequestLimits,
)
from gateway.validation.spec import StopRules
from gateway.validation.violations import Violations

_MAX_TEMPERATURE = 2.0
_MAX_PENALTY = 2.0
_MAX_BIAS = 100.0


def check_sampling(request: pb.GenerateRequest, limits: RequestLimits, violations: Violations) -> SamplingParams:
    """How the worker is to sample, the seed left out. What is invalid is reported and replaced by its default."""
    sampling, stopping, output = request.sampling, request.stopping, request.output
    for part, path in ((sampling, "sampling"), (stopping, "stopping"), (output, "output")):
        violations.check_unknown_fields(part, path)
    return SamplingParams(
        temperature=_number(sampling, "temperature", 1.0, violations, 0.0, _MAX_TEMPERATURE),
        top_k=min(sampling.top_k, limits.vocab_size),
        top_p=_number(sampling, "top_p", 1.0, violations, 0.0, 1.0, is_above=True),
        min_p=_number(sampling, "min_p", 0.0, violations, 0.0, 1.0),
        repetition_penalty=_number(sampling, "repetition_penalty", 1.0, violations, 0.0, math.inf, is_above=True),
        presence_penalty=_number(sampling, "presence_penalty", 0.0, violations, -_MAX_PENALTY, _MAX_PENALTY),
        frequency_penalty=_number(sampling, "frequency_penalty", 0.0, violations, -_MAX_PENALTY, _MAX_PENALTY),
        logit_bias=_logit_bias(sampling, limits, violations),
        min_tokens=stopping.min_tokens,
        stop_token_ids=_stop_token_ids(stopping, limits, violations),
        ignore_eos=stopping.ignore_eos,
        logprobs=_num_logprobs(output, "logprobs", limits, violations),
        prompt_logprobs=_num_logprobs(output, "prompt_logprobs", limits, violations),
    )


def check_num_choices(sampling: pb.Sampling, limits: RequestLimits, violations: Violations) -> int:
    """`n`."""
    n = sampling.n if sampling.HasField("n") else 1
    is_valid = violations.check(
        1 <= n <= limits.max_choices,
        "sampling.n",
        f"must be 1 to {limits.max_choices}",
        max_choices=limits.max_choices,
    )
    return n if is_valid else 1


def check_max_tokens(stopping: pb.Stopping, limits: RequestLimits, violations: Violations) -> int | None:
    """`max_tokens`; None where the request gives none."""
    if not stopping.HasField("max_tokens"):
        # How much the prompt leaves of this is known later.
        _check_min_tokens(stopping, limits.output_room(1), "what a prompt of one token leaves room for", violations)
        return None
    max_tokens = stopping.max_tokens
    if not violations.check(max_tokens >= 1, "stopping.max_tokens", "must be at least 1"):
        return None
    if not violations.check(
        max_tokens < limits.max_model_len,
        "stopping.max_tokens",
        f"must leave room for a prompt in the context length, {limits.max_model_len}",
        max_model_len=limits.max_model_len,
    ):
        return None
    _check_min_tokens(stopping, max_tokens, "max_tokens", violations)
    return max_tokens


def check_stop_rules(stopping: pb.Stopping, limits: RequestLimits, violations: Violations) -> StopRules:
    """Stop strings and how they count."""
    strings = tuple(stopping.stop)
    violations.check(
        len(strings) <= limits.max_stop_strings,
        "stopping.stop",
        f"may have at most {limits.max_stop_strings} strings",
        max_stop_strings=limits.max_stop_strings,
    )
    total = 0
    for index, text in enumerate(strings[: limits.max_stop_strings]):
        size = len(text.encode())
        total += size
        violations.check(size > 0, f"stopping.stop[{index}]", "must not be empty")
        violations.check(
            size <= limits.max_stop_string_bytes,
            f"stopping.stop[{index}]",
            f"may have at most {limits.max_stop_string_bytes} bytes",
            max_stop_string_bytes=limits.max_stop_string_bytes,
        )
    violations.check(
        total <= MAX_STOP_BYTES_IN_ALL, "stopping.stop", f"may have at most {MAX_STOP_BYTES_IN_ALL} bytes in all"
    )
    return StopRules(tuple(dict.fromkeys(strings)), stopping.include_stop, stopping.min_tokens)


def _number(
    sampling: Message,
    name: str,
    default: float,
    violations: Violations,
    low: float,
    high: float,
    *,
    is_above: bool = False,
) -> float:
    """A number between `low` (itself excluded where `is_above`) and `high`."""
    if not sampling.HasField(name):
        return default
    value = float(getattr(sampling, name))
    is_valid = math.isfinite(value) and (low < value if is_above else low <= value) and value <= high
    if is_valid:
        return value
    if is_above:
        bounds = f"above {low:g}" if high == math.inf else f"above {low:g} and at most {high:g}"
    else:
        bounds = f"{low:g} to {high:g}"
    violations.add(f"sampling.{name}", f"must be a number {bounds}")
    return default


def _logit_bias(sampling: pb.Sampling, limits: RequestLimits, violations: Violations) -> tuple[tuple[int, float], ...]:
    entries = sampling.logit_bias
    if not violations.check(
        len(entries) <= MAX_LOGIT_BIAS_ENTRIES,
        "sampling.logit_bias",
        f"may have at most {MAX_LOGIT_BIAS_ENTRIES} entries",
        max_logit_bias_entries=MAX_LOGIT_BIAS_ENTRIES,
    ):
        return ()
    # In order of id: the same map is the same request, however it was sent.
    ordered = sorted(entries.items())
    for token_id, bias in ordered:
        path = f"sampling.logit_bias[{token_id}]"
        _check_token_id(token_id, path, limits, violations)
        violations.check(-_MAX_BIAS <= bias <= _MAX_BIAS, path, f"must be a number -{_MAX_BIAS:g} to {_MAX_BIAS:g}")
    return tuple(ordered)


def _stop_token_ids(stopping: pb.Stopping, limits: RequestLimits, violations: Violations) -> tuple[int, ...]:
    ids = stopping.stop_token_ids
    if not violations.check(
        len(ids) <= MAX_STOP_TOKEN_IDS,
        "stopping.stop_token_ids",
        f"may have at most {MAX_STOP_TOKEN_IDS} ids",
        max_stop_token_ids=MAX_STOP_TOKEN_IDS,
    ):
        return ()
    for index, token_id in enumerate(ids):
        _check_token_id(token_id, f"stopping.stop_token_ids[{index}]", limits, violations)
    return tuple(dict.fromkeys(ids))


def _check_token_id(token_id: int, path: str, limits: RequestLimits, violations: Violations) -> None:
    violations.check(
        token_id < limits.vocab_size,
        path,
        f"must be a token id below {limits.vocab_size}",
        vocab_size=limits.vocab_size,
    )


def _num_logprobs(output: Message, name: str, limits: RequestLimits, violations: Violations) -> int | None:
    if not output.HasField(name):
        return None
    count = int(getattr(output, name))
    is_valid = violations.check(
        count <= limits.max_logprobs,
        f"output.{name}",
        f"must be at most {limits.max_logprobs}",
        max_logprobs=limits.max_logprobs,
    )
    return count if is_valid else None


def _check_min_tokens(stopping: pb.Stopping, bound: int, what: str, violations: Violations) -> None:
    violations.check(stopping.min_tokens <= bound, "stopping.min_tokens", f"must not be above {what}, {bound}")
