"""The model that this gateway serves: its name, its text side, and what the replicas say of it."""

from chairlift.ipc.front import ModelInfo
from chairlift.runtime.settings import GatewaySettings
from gateway.errors.api_error import ApiError, GatewayReason
from gateway.link.replicas import Replicas
from gateway.security.principal import Principal
from gateway.text.model_text import ModelText
from gateway.text.prompt_encoder import PromptEncoder
from gateway.validation.limits import RequestLimits, make_limits


class ServedModel:
    """What methods need of the model."""

    def __init__(
        self, name: str, text: ModelText, encoder: PromptEncoder, replicas: Replicas, settings: GatewaySettings
    ) -> None:
        self.name = name
        self.text = text
        self.encoder = encoder
        self.settings = settings
        self._replicas = replicas
        self._limits: tuple[ModelInfo, RequestLimits] | None = None

    def check_name(self, name: str, principal: Principal) -> None:
        """An empty name stands for the only model. Raises ApiError for one that is not served, or not to the caller."""
        if name not in ("", self.name):
            raise ApiError(GatewayReason.UNKNOWN_MODEL, "no such model is served here", limits=(("served", self.name),))
        principal.check_model(self.name)

    def info(self) -> ModelInfo:
        """What the replicas serve. Raises ApiError (UNAVAILABLE) until one has told."""
        info = self._replicas.model
        if info is None:
            raise self._replicas.why_none()
        return info

    def limits(self) -> RequestLimits:
        """Limits in force. Raises as `info`."""
        info = self.info()
        if self._limits is None or self._limits[0] is not info:
            self._limits = (info, make_limits(self.settings, info, self.text.tokenizer.table.max_piece_bytes))
        return self._limits[1]
