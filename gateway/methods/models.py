"""`ListModels` and `GetModel`."""

from chairlift.ipc import front
from chairlift.v1 import inference_pb2 as pb
from gateway.call import Call
from gateway.errors.api_error import refuse_field
from gateway.link.replicas import Replicas
from gateway.methods.served_model import ServedModel
from gateway.security.principal import Principal
from gateway.validation.limits import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKEN_IDS, RequestLimits
from gateway.validation.violations import refuse_unknown_fields


class ListModelsMethod:
    """Serves `ListModels`: one model is one page."""

    def __init__(self, model: ServedModel, replicas: Replicas) -> None:
        self._model = model
        self._replicas = replicas

    async def __call__(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        """The models served to the caller. Raises ApiError until a replica has told of its own."""
        refuse_unknown_fields(request)
        if request.page_token:
            raise refuse_field("page_token", "is no token of this service")
        if not call.principal.may_use_model(self._model.name):
            return pb.ListModelsResponse()
        return pb.ListModelsResponse(models=[describe(self._model, self._replicas, call.principal)])


class GetModelMethod:
    """Serves `GetModel`."""

    def __init__(self, model: ServedModel, replicas: Replicas) -> None:
        self._model = model
        self._replicas = replicas

    async def __call__(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        """One model. Raises ApiError."""
        refuse_unknown_fields(request)
        self._model.check_name(request.model, call.principal)
        return pb.GetModelResponse(model=describe(self._model, self._replicas, call.principal))


def describe(model: ServedModel, replicas: Replicas, principal: Principal) -> pb.Model:
    """The served model with the limits in force for the caller. Raises ApiError until a replica has told of its own."""
    info, limits = model.info(), model.limits()
    in_force = next((link.limits for link in replicas.links if link.is_attached and link.limits is not None), None)
    return pb.Model(
        id=model.name,
        context_length=info.max_model_len,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        quantization=info.quantization or "none",
        kv_capacity_tokens=info.kv_capacity_tokens,
        limits=_limits(limits, in_force, principal),
        num_parameters=info.num_parameters,
        fingerprint=info.fingerprint,
        eos_token_ids=info.eos_token_ids,
        has_chat_template=model.text.template_source is not None,
        deterministic=info.deterministic,
    )


def _limits(limits: RequestLimits, replica: front.ReplicaLimits | None, principal: Principal) -> pb.Limits:
    return pb.Limits(
        max_prompt_tokens=max(0, limits.max_prompt_tokens),
        default_max_tokens=limits.default_max_tokens,
        max_choices=limits.max_choices,
        max_stop_strings=limits.max_stop_strings,
        max_stop_string_bytes=limits.max_stop_string_bytes,
        max_stop_token_ids=MAX_STOP_TOKEN_IDS,
        max_logit_bias_entries=MAX_LOGIT_BIAS_ENTRIES,
        max_logprobs=limits.max_logprobs,
        max_prompt_logprobs=limits.max_logprobs,
        max_chat_messages=limits.max_chat_messages,
        max_priority=principal.cap_priority(limits.max_priority),
        max_request_bytes=limits.max_request_bytes,
        max_request_duration_ms=limits.max_request_duration_s * 1e3,
        max_detach_grace_ms=limits.max_detach_grace_s * 1e3,
        max_num_queued_reqs=replica.max_num_queued_reqs if replica is not None else 0,
        max_num_queued_tokens=replica.max_num_queued_tokens if replica is not None else 0,
    )
