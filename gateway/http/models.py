"""``GET /v1/models`` and ``GET /v1/models/{id}``: ListModels and GetModel as OpenAI's clients know them."""

import time

import msgspec
from starlette.types import Receive, Scope, Send

from chairlift.v1 import inference_pb2 as pb
from gateway.call import Call, Method
from gateway.errors.api_error import ApiError
from gateway.gate import Gate
from gateway.http.connection import HttpConnection, write_nothing
from gateway.http.endpoint import admit, send_error, send_json
from gateway.http.openai_bodies import ModelBody, ModelList
from gateway.http.openai_errors import to_http
from gateway.security.authenticator import Authenticator


class ModelsEndpoint:
    """The ASGI application of both paths."""

    def __init__(
        self,
        list_models: Method[pb.ListModelsRequest],
        get_model: Method[pb.GetModelRequest],
        gate: Gate,
        authenticator: Authenticator,
    ) -> None:
        self._list_models = list_models
        self._get_model = get_model
        self._gate = gate
        self._authenticator = authenticator
        self._since = int(time.time())

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Serves one request."""
        self._gate.enter()
        try:
            await send_json(send, await self._answer(scope))
        except ApiError as error:
            await send_error(send, to_http(error))
        finally:
            self._gate.leave()

    async def _answer(self, scope: Scope) -> bytes:
        name = scope["path_params"].get("model")
        principal = admit(self._authenticator, scope, "ListModels" if name is None else "GetModel")
        call = Call(HttpConnection(scope, write_nothing), principal)
        if name is None:
            listed = await self._list_models.run(pb.ListModelsRequest(), call)
            assert isinstance(listed, pb.ListModelsResponse)
            return msgspec.json.encode(ModelList("list", [self._describe(model) for model in listed.models]))
        found = await self._get_model.run(pb.GetModelRequest(model=name), call)
        assert isinstance(found, pb.GetModelResponse)
        return msgspec.json.encode(self._describe(found.model))

    def _describe(self, model: pb.Model) -> ModelBody:
        return ModelBody(model.id, "model", self._since, "chairlift", model.context_length)
