"""`Tokenize` and `Detokenize`: the served model's tokenizer, chat template included."""

import asyncio

from chairlift.v1 import inference_pb2 as pb
from gateway.call import Call
from gateway.methods.generate import encode_chat
from gateway.methods.served_model import ServedModel
from gateway.text.tokenizer import TextTokenizer
from gateway.validation.prompt import check_chat, check_token_ids
from gateway.validation.violations import Violations


class TokenizeMethod:
    """Serves `Tokenize`. Needs no replica."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def __call__(self, request: pb.TokenizeRequest, call: Call) -> pb.TokenizeResponse:
        """Token ids and their bytes. Raises ApiError."""
        self._model.check_name(request.model, call.principal)
        violations = Violations()
        violations.check_unknown_fields(request, "")
        special = request.add_special_tokens if request.HasField("add_special_tokens") else None
        match request.WhichOneof("input"):
            case "text":
                violations.raise_if_any()
                ids = await self._model.encoder.encode_text(request.text, add_special_tokens=special is not False)
            case "messages":
                chat = check_chat(request.messages, self._model.settings.max_chat_messages, violations)
                violations.raise_if_any()
                ids = await encode_chat(self._model, chat, add_special_tokens=special is True)
            case _:
                violations.add("input", "one of text and messages must be set")
                violations.raise_if_any()
        return await asyncio.to_thread(_with_pieces, self._model.text.tokenizer, ids)


class DetokenizeMethod:
    """Serves `Detokenize`. Needs no replica."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def __call__(self, request: pb.DetokenizeRequest, call: Call) -> pb.DetokenizeResponse:
        """Text of token ids. Raises ApiError."""
        self._model.check_name(request.model, call.principal)
        violations, tokenizer = Violations(), self._model.text.tokenizer
        violations.check_unknown_fields(request, "")
        check_token_ids(request.token_ids, "token_ids", tokenizer.vocab_size, violations)
        violations.raise_if_any()
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        # A request may hold two million ids: not on the loop that serves everyone.
        text = await asyncio.to_thread(tokenizer.decode, request.token_ids, skip_special_tokens=skips)
        return pb.DetokenizeResponse(text=text)


def _with_pieces(tokenizer: TextTokenizer, ids: list[int]) -> pb.TokenizeResponse:
    piece = tokenizer.piece
    return pb.TokenizeResponse(token_ids=ids, pieces=[piece(token_id) for token_id in ids])
