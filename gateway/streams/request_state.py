"""What any gateway needs to stream a request that another one submitted; the scheduler keeps it unread.

Evolves like an ipc message: fields are appended, with defaults.
"""

import msgspec

from gateway.errors.api_error import ApiError
from gateway.text.detokenizer import Detokenizer
from gateway.text.stop_strings import StopAutomaton
from gateway.text.token_table import TokenTable

MAX_BYTES = 64 << 10


class RequestState(msgspec.Struct, frozen=True, array_like=True):
    """Options that belong to the text of a request's output."""

    model: str
    first_prompt_id: int
    """The prompt's first token, which no log-probability names."""
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    silent_ids: tuple[int, ...] = ()
    """Stop ids whose text is left out."""
    starts_text: bool = False
    """The output begins a text of its own (an assistant's turn), so that a tokenizer's leading space is dropped."""
    wants_token_ids: bool = False
    wants_logprobs: bool = False
    wants_prompt_logprobs: bool = False
    cache_salt: str = ""
    """Needed again when the request is submitted again."""


def encode_state(state: RequestState) -> bytes:
    """Bytes for Submit. Raises ApiError when there are too many."""
    packed = msgspec.msgpack.encode(state)
    if len(packed) > MAX_BYTES:
        raise ApiError("INVALID_REQUEST", f"stop strings and options take more than {MAX_BYTES} bytes")
    return packed


def decode_state(packed: bytes) -> RequestState:
    """The inverse. Raises ApiError for bytes that no gateway of ours wrote."""
    try:
        return msgspec.msgpack.decode(packed, type=RequestState)
    except msgspec.DecodeError:
        raise ApiError("INTERNAL", "the request's state cannot be read") from None


class TextRules:
    """Makes the detokenizers of one request's choices."""

    def __init__(self, state: RequestState, token_table: TokenTable) -> None:
        self._state = state
        self._token_table = token_table
        self._stops = StopAutomaton(state.stop_strings) if state.stop_strings else None
        self._silent = frozenset(state.silent_ids)

    def make_detokenizer(self) -> Detokenizer:
        """For one choice, from its first token."""
        return Detokenizer(
            self._token_table,
            stops=self._stops,
            include_stop=self._state.include_stop,
            min_tokens=self._state.min_tokens,
            silent_ids=self._silent,
            strip_leading_space=self._state.starts_text,
        )
