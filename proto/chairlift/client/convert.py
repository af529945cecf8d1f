"""Turns messages of the public contract into results."""

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from chairlift.client.results import (
    Accepted,
    Alternative,
    CancelOutcome,
    Explanation,
    Failure,
    FinishReason,
    Limits,
    Model,
    RequestState,
    Timing,
    TokenLogprob,
    Usage,
)
from chairlift.v1 import inference_pb2 as pb

FINISH_REASONS = {
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_EOS: FinishReason.EOS,
    pb.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
    pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    pb.FINISH_REASON_CONTEXT_LIMIT: FinishReason.CONTEXT_LIMIT,
    pb.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    pb.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    pb.FINISH_REASON_ERROR: FinishReason.ERROR,
}
CANCEL_OUTCOMES = {
    pb.CANCEL_OUTCOME_WAS_WAITING: CancelOutcome.WAS_WAITING,
    pb.CANCEL_OUTCOME_WAS_RUNNING: CancelOutcome.WAS_RUNNING,
    pb.CANCEL_OUTCOME_ALREADY_ENDED: CancelOutcome.ALREADY_ENDED,
}
_REQUEST_STATES = {
    pb.REQUEST_STATE_WAITING: RequestState.WAITING,
    pb.REQUEST_STATE_RUNNING: RequestState.RUNNING,
    pb.REQUEST_STATE_PREEMPTED: RequestState.PREEMPTED,
    pb.REQUEST_STATE_ENDED: RequestState.ENDED,
}


def accepted_from(message: pb.Accepted) -> Accepted:
    """The server's first word on a request."""
    return Accepted(
        request_id=message.request_id,
        stream_token=message.stream_token,
        model=message.model,
        prompt_tokens=message.prompt_tokens,
        queue_position=message.queue_position,
        predicted_ttft_ms=message.predicted_ttft_ms if message.HasField("predicted_ttft_ms") else None,
        resumed=message.resumed,
    )


def logprobs_from(messages: Iterable[pb.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of a run of tokens."""
    return tuple(
        TokenLogprob(
            token_id=message.token_id,
            logprob=message.logprob if message.HasField("logprob") else None,
            piece=message.piece,
            top=tuple(
                Alternative(token_id=other.token_id, logprob=other.logprob, piece=other.piece) for other in message.top
            ),
        )
        for message in messages
    )


def usage_from(message: pb.Usage) -> Usage:
    """Tokens used by a choice."""
    return Usage(
        prompt_tokens=message.prompt_tokens, cached_tokens=message.cached_tokens, output_tokens=message.output_tokens
    )


def timing_from(message: pb.Timing) -> Timing:
    """Where the time of a choice went."""
    return Timing(
        queue_ms=message.queue_ms,
        ttft_ms=message.ttft_ms if message.HasField("ttft_ms") else None,
        total_ms=message.total_ms,
        itl_p50_ms=message.itl_p50_ms if message.HasField("itl_p50_ms") else None,
        itl_max_ms=message.itl_max_ms if message.HasField("itl_max_ms") else None,
    )


def failure_from(message: pb.Failure) -> Failure:
    """What went wrong with a choice."""
    return Failure(
        reason=message.reason,
        message=message.message,
        retryable=message.retryable,
        retry_delay_s=_seconds(message.retry_delay) if message.HasField("retry_delay") else None,
    )


def stop_from(message: pb.StopMatch) -> str | int | None:
    """The stop string or token that matched."""
    match message.WhichOneof("match"):
        case "text":
            return message.text
        case "token_id":
            return message.token_id
        case _:
            return None


def model_from(message: pb.Model) -> Model:
    """A model's description."""
    return Model(
        id=message.id,
        context_length=message.context_length,
        vocab_size=message.vocab_size,
        dtype=message.dtype,
        quantization=message.quantization,
        kv_capacity_tokens=message.kv_capacity_tokens,
        num_parameters=message.num_parameters,
        fingerprint=message.fingerprint,
        eos_token_ids=tuple(message.eos_token_ids),
        has_chat_template=message.has_chat_template,
        deterministic=message.deterministic,
        limits=_limits_from(message.limits),
    )


def _limits_from(message: pb.Limits) -> Limits:
    values = {name: getattr(message, name) for name in Limits.__struct_fields__}
    if not message.HasField("default_max_tokens"):
        values["default_max_tokens"] = None
    return Limits(**values)


def explanation_from(message: pb.ExplainResponse) -> Explanation:
    """Where the time of a request went."""
    return Explanation(
        request_id=message.request_id,
        state=_REQUEST_STATES.get(message.state, RequestState.OTHER),
        total_ms=message.total_ms,
        wait_ms=message.wait_ms,
        waits={_wait_reason(share.reason): share.wait_ms for share in message.waits},
        iterations=message.iterations,
        prefill_chunks=message.prefill_chunks,
        preemptions=message.preemptions,
        swaps=message.swaps,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        output_tokens=message.output_tokens,
        queue_position=message.queue_position if message.HasField("queue_position") else None,
    )


def _wait_reason(number: pb.WaitReason.ValueType) -> str:
    known = pb.WaitReason.DESCRIPTOR.values_by_number.get(number)
    return known.name.removeprefix("WAIT_REASON_").lower() if known is not None else f"reason_{number}"


def _seconds(message: Duration) -> float:
    return message.ToNanoseconds() / 1e9
