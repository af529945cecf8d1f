"""One line of the log for each call that asks for tokens, when it has ended. No text of a request is in it."""

import time

import structlog
from opentelemetry.trace import format_span_id

from gateway.call import Call


class RequestLog:
    """Writes the summary. Holds nothing of a call."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()

    def ended(self, method: str, code: str, call: Call, first_token_at: float | None) -> None:
        """The call is over with the status `code`; `first_token_at` is of the monotonic clock."""
        fields: dict[str, object] = {
            "method": method,
            "transport": call.transport.name,
            "code": code,
            "duration_ms": _ms(time.monotonic() - call.arrived_at),
            "trace_id": call.trace_id,
        }
        span = call.span.get_span_context()
        if span.is_valid:
            fields["span_id"] = format_span_id(span.span_id)
        if call.failure:
            fields["reason"] = str(call.failure)
        generation = call.generation
        if generation is not None:
            fields["request_id"] = generation.key.request_id
            fields["tenant"] = generation.key.tenant
            fields["replica_id"] = generation.replica_id
            fields["output_tokens"] = sum(len(choice.ids) for choice in generation.choices)
            if generation.submission is not None:
                fields["prompt_tokens"] = generation.submission.prompt_tokens
        if first_token_at is not None:
            fields["ttft_ms"] = _ms(first_token_at - call.arrived_at)
        self._log.info("request_ended", **fields)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
