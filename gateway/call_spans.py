"""The gateway's span of a call: made from the caller's trace context, ended with the status that the caller gets.

OpenTelemetry's own interceptor for grpc.aio breaks ``Health/Watch`` and ends a cancelled stream as if it had gone well.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from chairlift.ipc.common import FinishReason, SamplingParams
from chairlift.runtime.tracing import Tracing, context_of
from gateway.call import Call
from gateway.errors.http_status import http_status
from gateway.errors.table import status_rule
from gateway.security.principal import INFERENCE_SERVICE
from gateway.streams.generation import Generation
from gateway.transport import OverGrpc, OverHttp, Transport

_MAX_OTLP_INT = 2**63 - 1
"""A larger attribute could not be encoded, and would cost all spans that are exported with it."""


class CallSpans:
    """Begins and ends spans. Holds nothing of a call."""

    def __init__(self, tracing: Tracing, model: str) -> None:
        self._tracing = tracing
        self._model = model

    def began(self, method: str, call: Call) -> None:
        """The call and what it starts belong to a new span, below the caller's where there is one."""
        name, attributes = _name_and_attributes(method, call.transport)
        context = context_of(call.traceparent, call.tracestate)
        call.trace_as(self._tracing.tracer.start_span(name, context, SpanKind.SERVER, attributes))

    def ended(self, call: Call, first_token_at: float | None = None) -> None:
        """Ends the call's span, whatever the call came to; `first_token_at` is of the monotonic clock."""
        span = call.span
        if not span.is_recording():
            return
        if first_token_at is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", first_token_at - call.arrived_at)
        span.set_attribute(*_status(call))
        span.set_attribute("gen_ai.operation.name", call.operation)
        span.set_attribute("gen_ai.provider.name", "chairlift")
        span.set_attribute("gen_ai.request.model", self._model)
        generation = call.generation
        if generation is not None:
            _describe_request(span, generation)
            span.set_attribute("gen_ai.usage.output_tokens", sum(len(choice.ids) for choice in generation.choices))
            ends = [choice.end for choice in generation.choices if choice.end is not None]
            span.set_attribute("gen_ai.response.finish_reasons", [_reason_name(end.reason) for end in ends])
            span.set_attribute("gen_ai.response.model", self._model)
            if ends:
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", ends[0].cached_tokens)
        if call.failure:
            span.set_attribute("error.type", call.failure)
            span.set_status(Status(StatusCode.ERROR, call.failure))
        span.end()

    def close(self) -> None:
        """Exports what is left, within a bounded time."""
        self._tracing.close()


def _name_and_attributes(method: str, transport: Transport) -> tuple[str, dict[str, str]]:
    match transport:
        case OverGrpc():
            attributes = {"rpc.system": transport.name, "rpc.service": INFERENCE_SERVICE, "rpc.method": method}
            return f"{INFERENCE_SERVICE}/{method}", attributes
        case OverHttp(method=http_method, scheme=scheme, path=path):
            attributes = {"http.request.method": http_method, "http.route": path}
            return f"{http_method} {path}", attributes | {"url.path": path, "url.scheme": scheme}


def _status(call: Call) -> tuple[str, int]:
    """The attribute for what the caller gets."""
    match call.transport:
        case OverGrpc():
            return "rpc.grpc.status_code", status_rule(call.failure).code.value[0] if call.failure else 0
        case OverHttp(status=sent):
            status = http_status(call.failure) if call.failure else 200
            return "http.response.status_code", status if sent is None else sent


def _describe_request(span: Span, generation: Generation) -> None:
    span.set_attribute("chairlift.request_id", generation.key.request_id)
    span.set_attribute("chairlift.replica_id", generation.replica_id)
    if generation.submission is None:
        return
    submit = generation.submission.submit
    span.set_attribute("gen_ai.usage.input_tokens", generation.submission.prompt_tokens)
    span.set_attribute("gen_ai.request.choice.count", submit.n)
    if submit.max_tokens is not None:
        span.set_attribute("gen_ai.request.max_tokens", submit.max_tokens)
    span.set_attributes(_sampling_attributes(submit.sampling))


def _sampling_attributes(sampling: SamplingParams) -> dict[str, float]:
    """What is in force, without what is off."""
    found: dict[str, float] = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
    }
    if sampling.top_k:
        found["gen_ai.request.top_k"] = sampling.top_k
    if sampling.presence_penalty:
        found["gen_ai.request.presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        found["gen_ai.request.frequency_penalty"] = sampling.frequency_penalty
    if sampling.seed <= _MAX_OTLP_INT:
        found["gen_ai.request.seed"] = sampling.seed
    return found


def _reason_name(reason: int) -> str:
    """A newer scheduler may give reasons that we do not know."""
    try:
        return FinishReason(reason).name.lower()
    except ValueError:
        return "other"
