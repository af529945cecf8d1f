"""What the load generator needs of a client. Two are real: Chairlift's gRPC contract, and OpenAI's HTTP."""

from typing import Protocol

import msgspec

from deploy.bench.errors import BenchError
from deploy.bench.load.record import RequestRecord


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it goes out."""

    prompt: tuple[int, ...]
    output_tokens: int
    abandon_after: int | None
    timeout_s: float
    wants_ids: bool
    """Whether the output's token ids are needed: to build the next turn, or to compare outputs."""
    tenant: str = ""
    """Who sends it: a real server knows by the token that the call carries."""


class TargetModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of its model. None: it does not say."""

    name: str
    fingerprint: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    vocab_size: int | None = None
    max_model_len: int | None = None
    is_deterministic: bool | None = None


class TargetError(BenchError):
    """A server that cannot be measured: not there, or not speaking what was expected. The message says which."""


class StreamClient(Protocol):
    """Sends requests to one server."""

    async def describe(self) -> TargetModel:
        """The served model. Raises TargetError."""

    async def stream(self, call: Call, record: RequestRecord) -> tuple[int, ...]:
        """Sends one request and fills `record` to its end, whatever happens on the way.

        Returns the output's token ids where they were asked for and the server tells them. Raises only on our bugs.
        """

    async def close(self) -> None:
        """Lets go of connections."""
