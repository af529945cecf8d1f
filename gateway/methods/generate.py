"""`Generate`: validates, makes a prompt of it, submits, streams."""

import secrets

import msgspec

from chairlift.ipc import front
from chairlift.ipc.common import Reason
from chairlift.ipc.tokens import pack_u32
from chairlift.v1 import inference_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import ApiError, FieldViolation, GatewayReason, refuse_field
from gateway.link.replicas import RequestKey
from gateway.methods.served_model import ServedModel
from gateway.methods.streaming import stream
from gateway.streams.generation_table import GenerationTable
from gateway.streams.request_state import RequestState, encode_state
from gateway.streams.submission import Submission
from gateway.text.chat_template import Chat
from gateway.text.errors import ChatTemplateError, TemplateProblem
from gateway.validation.generate import check_generate
from gateway.validation.limits import RequestLimits
from gateway.validation.prompt import check_prompt_length
from gateway.validation.spec import ChatInput, GenerateSpec, IdsInput, PromptInput, TextInput
from gateway.validation.violations import Violations

_SEED_BITS = 53
"""A seed of ours is exact in every language's numbers."""
_FIELD_OF_INPUT = {"text": "text", "token_ids": "token_ids.ids", "messages": "messages.messages"}


class GenerateMethod:
    """Serves `Generate`."""

    def __init__(self, model: ServedModel, table: GenerationTable) -> None:
        self._model = model
        self._table = table

    async def __call__(self, request: pb.GenerateRequest, call: Call) -> None:
        """Streams one request's events. Raises ApiError."""
        arrived_at = call.arrived_at
        deadline = arrived_at + deadline_s(call, self._model.settings.max_request_duration_s)
        if request.WhichOneof("input") == "messages":
            call.operation = "chat"
        self._model.check_name(request.model, call.principal)
        limits = self._model.limits()
        spec = check_generate(request, limits)
        request_id = spec.request_id or f"gen-{secrets.token_hex(12)}"
        call.add_trailing("x-request-id", request_id)
        ids = await self._prompt_ids(spec, limits)
        state = self._state(spec, ids)
        key = RequestKey(call.principal.own_tenant, request_id)
        is_named = spec.request_id is not None
        submission = Submission(_submit(key, spec, ids, state, limits, call), arrived_at, deadline, is_named=is_named)
        generation = self._table.submit(key, submission, state)
        try:
            await stream(generation, self._table, call)
        except ApiError as error:
            raise _name_input(error, spec.input_field) from None

    async def _prompt_ids(self, spec: GenerateSpec, limits: RequestLimits) -> list[int]:
        ids = await encode_prompt(self._model, spec.input)
        violations, field = Violations(), _FIELD_OF_INPUT[spec.input_field]
        violations.check(len(ids) > 0, field, "has no token that the model knows")
        check_prompt_length(len(ids), field, limits, violations)
        violations.raise_if_any()
        return ids

    def _state(self, spec: GenerateSpec, ids: list[int]) -> RequestState:
        silent = set[int]()
        if not spec.stop.include_stop:
            silent.update(spec.sampling.stop_token_ids)
        if not spec.sampling.ignore_eos:
            silent.update(self._model.info().eos_token_ids)
        return RequestState(
            model=self._model.name,
            first_prompt_id=ids[0],
            stop_strings=spec.stop.strings,
            include_stop=spec.stop.include_stop,
            min_tokens=spec.stop.min_tokens,
            silent_ids=tuple(sorted(silent - self._model.text.tokenizer.table.special_ids)),
            starts_text=isinstance(spec.input, ChatInput) and not spec.input.chat.continue_final_message,
            wants_token_ids=spec.wants_token_ids,
            wants_logprobs=spec.sampling.logprobs is not None,
            wants_prompt_logprobs=spec.sampling.prompt_logprobs is not None,
            cache_salt=spec.cache_salt,
        )


async def encode_prompt(model: ServedModel, prompt: PromptInput) -> list[int]:
    """Token ids of a prompt. Raises ApiError where the chat template does not take it."""
    match prompt:
        case IdsInput(ids):
            return list(ids)
        case TextInput(text):
            return await model.encoder.encode_text(text)
        case ChatInput(chat):
            return await encode_chat(model, chat)


async def encode_chat(model: ServedModel, chat: Chat, *, add_special_tokens: bool = False) -> list[int]:
    """Token ids of a conversation. Raises ApiError where the chat template does not take it."""
    try:
        return await model.encoder.encode_chat(chat, add_special_tokens=add_special_tokens)
    except ChatTemplateError as error:
        if error.problem is TemplateProblem.UNAVAILABLE:
            raise ApiError(GatewayReason.TEMPLATE_UNAVAILABLE, error.message) from None
        limits = (("template_timeout_s", f"{model.settings.template_timeout_s:g}"),)
        raise ApiError(
            GatewayReason.CHAT_TEMPLATE,
            error.message,
            violations=(FieldViolation("messages", error.message),),
            limits=limits if error.problem is TemplateProblem.TOO_SLOW else (),
        ) from None


def deadline_s(call: Call, most: float) -> float:
    """Seconds from its arrival that a request gets: less than its call has, so that the scheduler ends it before the
    gateway has to, and that before the client does.

    Raises ApiError for a call whose time is up.
    """
    if call.ends_at is None:
        return most
    left_s = call.ends_at - call.margin_s - call.arrived_at
    if left_s <= 0:
        raise ApiError(Reason.DEADLINE, "the call's deadline has passed")
    return min(most, left_s)


def _submit(
    key: RequestKey, spec: GenerateSpec, ids: list[int], state: RequestState, limits: RequestLimits, call: Call
) -> front.Submit:
    seed = spec.seed if spec.seed is not None else secrets.randbits(_SEED_BITS)
    return front.Submit(
        handle=0,
        tenant=key.tenant,
        request_id=key.request_id,
        digest=spec.digest,
        prompt=pack_u32(ids),
        sampling=msgspec.structs.replace(spec.sampling, seed=seed),
        n=spec.n,
        max_tokens=_max_tokens(spec, len(ids), limits),
        priority=call.principal.cap_priority(spec.priority),
        queue_timeout_in_ns=spec.queue_timeout_ns,
        ttft_slo_ns=spec.ttft_slo_ns,
        itl_slo_ns=spec.itl_slo_ns,
        detach_grace_ns=spec.detach_grace_ns,
        cache_salt=spec.cache_salt,
        gateway_state=encode_state(state),
        traceparent=call.traceparent,
        tracestate=call.tracestate,
    )


def _max_tokens(spec: GenerateSpec, prompt_len: int, limits: RequestLimits) -> int | None:
    """What the request says, or the server's bound where that is nearer than the end of the context."""
    room, default = limits.output_room(prompt_len), limits.default_max_tokens
    if spec.max_tokens is not None:
        if spec.max_tokens > room:
            raise _no_room("stopping.max_tokens", f"{prompt_len} prompt tokens leave room for {room} of output", limits)
        return spec.max_tokens
    most = room if default is None else min(default, room)
    if spec.stop.min_tokens > most:
        raise _no_room("stopping.min_tokens", f"the output may have {most} tokens behind this prompt", limits)
    return default if default is not None and default < room else None


def _no_room(field: str, description: str, limits: RequestLimits) -> ApiError:
    limits_in_force = {"max_model_len": limits.max_model_len, "kv_capacity_tokens": limits.kv_capacity_tokens}
    if limits.default_max_tokens is not None:
        limits_in_force["default_max_tokens"] = limits.default_max_tokens
    return refuse_field(field, description, **limits_in_force)


def _name_input(error: ApiError, input_field: str) -> ApiError:
    """The scheduler does not know how a prompt came; its field ``input`` is the one that the client has set."""
    violations = tuple(
        FieldViolation(_FIELD_OF_INPUT.get(input_field, input_field), each.description)
        if each.field == "input"
        else each
        for each in error.violations
    )
    return ApiError(
        error.reason, error.message, violations=violations, limits=error.limits, retry_after_s=error.retry_after_s
    )
