"""Sends requests by OpenAI's HTTP interface with server-sent events, so that any peer server can be measured alike.

Counts tokens by the server's own usage; where several tokens come in one event, they are spread over its gap.
"""

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import msgspec

from deploy.bench.load.client import Call, TargetError, TargetModel
from deploy.bench.load.clock import Clock
from deploy.bench.load.http import HttpError, Response, Url, parse_url, send
from deploy.bench.load.record import Outcome, RequestRecord

PromptForm = Literal["ids", "text", "chat"]

# Words that nearly every tokenizer holds as one token with their space, so that n words are about n tokens.
_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one
you were all her she there would their we him been has when who will no more if out so up said what its about than
into them can only other time new some could these two may first then do any like my now over such our man me even
most made after also did many off before must well back through years where much your way down should because long
each just state those people too work world still own see men how here between both life being under three never
know same last another while us day might great since go come against right came take used house small found place
"""
_WORDS = _TEXT.split()


class OpenAIOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server and what it takes."""

    base_url: str
    """For instance ``http://127.0.0.1:8000/v1``."""
    model: str | None = None
    """None: the first that the server lists."""
    api_key: str | None = None
    prompt_form: PromptForm = "ids"
    """Token ids or text to ``/completions``, or text as one user message to ``/chat/completions``."""
    extra_body: dict[str, Any] = {}
    """Added to each request: what a server wants beside the standard."""


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class OpenAIClient:
    """A `StreamClient` for ``/v1/completions`` or ``/v1/chat/completions``."""

    def __init__(self, options: OpenAIOptions, clock: Clock) -> None:
        """Raises TargetError on a bad URL."""
        try:
            self._url = parse_url(options.base_url)
        except ValueError as error:
            raise TargetError(str(error)) from None
        self._options = options
        self._clock = clock
        self._model = options.model
        self._decoder = msgspec.json.Decoder(_Event)
        self._trust = ssl.create_default_context() if self._url.tls else None
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if options.api_key is not None:
            self._headers["Authorization"] = f"Bearer {options.api_key}"

    async def describe(self) -> TargetModel:
        """The served model, by ``/models``. Raises TargetError."""
        try:
            async with asyncio.timeout(10.0), self._send(self._url.below("/models"), "GET", b"") as answer:
                body = await answer.body()
            models = msgspec.json.decode(body, type=_Models).data if answer.status == 200 else []
        except TimeoutError:
            raise TargetError(f"{self._options.base_url}/models: no answer within 10 s") from None
        except (HttpError, msgspec.MsgspecError) as error:
            raise TargetError(f"{self._options.base_url}/models: {error}") from None
        listed = next((model for model in models if self._model in (None, model.id)), None)
        if self._model is None and listed is None:
            raise TargetError(f"{self._options.base_url}/models lists no model: name one")
        self._model = self._model or (listed.id if listed else None)
        return TargetModel(name=self._model or "", max_model_len=listed.max_model_len if listed else None)

    async def stream(self, call: Call, record: RequestRecord) -> tuple[int, ...]:
        """See `StreamClient`."""
        url = self._url.below("/chat/completions" if self._options.prompt_form == "chat" else "/completions")
        try:
            async with asyncio.timeout(call.timeout_s), self._send(url, "POST", self._body(call)) as answer:
                if answer.status != 200:
                    record.outcome, record.reason = _refusal(answer.status), f"HTTP {answer.status}"
                    return ()
                return await self._read(answer, call, record)
        except TimeoutError:
            record.outcome, record.reason = Outcome.TIMED_OUT, "TIMEOUT"
        except HttpError as error:
            record.outcome, record.reason = Outcome.FAILED, str(error)
        return ()

    async def close(self) -> None:
        """Nothing is kept open between requests."""

    def _send(self, url: Url, method: str, body: bytes) -> AbstractAsyncContextManager[Response]:
        return send(url, method, self._headers, body, self._trust)

    def _body(self, call: Call) -> bytes:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": call.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        match self._options.prompt_form:
            case "ids":
                body["prompt"] = call.prompt
            case "text":
                body["prompt"] = _to_text(call.prompt)
            case "chat":
                body["messages"] = [{"role": "user", "content": _to_text(call.prompt)}]
        return msgspec.json.encode(body | self._options.extra_body)

    async def _read(self, answer: Response, call: Call, record: RequestRecord) -> tuple[int, ...]:
        usage, token_ids, is_done = _Usage(), list[int](), False
        async for line in answer.lines():
            now_ns = self._clock.now_ns()
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                is_done = True
                break
            try:
                event = self._decoder.decode(data)
            except msgspec.MsgspecError:
                record.outcome, record.reason = Outcome.FAILED, "BAD_EVENT"
                return ()
            if event.error is not None:
                record.outcome, record.reason = Outcome.FAILED, "ERROR_EVENT"
                return ()
            usage = event.usage or usage
            for choice in event.choices:
                self._take(choice, now_ns, record, token_ids)
            if call.abandon_after is not None and record.output_tokens >= call.abandon_after:
                record.outcome = Outcome.ABANDONED
                return ()
        _settle(record, usage, is_done=is_done or bool(record.finish_reason))
        return tuple(token_ids)

    def _take(self, choice: _Choice, now_ns: int, record: RequestRecord, token_ids: list[int]) -> None:
        record.finish_reason = (choice.finish_reason or record.finish_reason).upper()
        text = choice.text or (choice.delta or {}).get("content")
        ids = choice.token_ids
        token_ids.extend(ids or ())
        if ids or text:
            record.take_delta(now_ns, len(ids) if ids else 1)


def _refusal(status: int) -> Outcome:
    return Outcome.FAILED if status >= 500 and status != 503 else Outcome.REFUSED


def _settle(record: RequestRecord, usage: _Usage, *, is_done: bool) -> None:
    """Counts by usage: text events do not tell how many tokens they carry, so the surplus goes to them evenly."""
    record.prompt_tokens = usage.prompt_tokens
    counted = usage.completion_tokens or record.output_tokens
    chunks = len(record.delta_tokens)
    if chunks and counted > chunks == record.output_tokens:
        each, more = divmod(counted, chunks)
        record.delta_tokens = [each + (position < more) for position in range(chunks)]
    record.output_tokens = counted
    if not is_done or not chunks:
        record.outcome, record.reason = Outcome.FAILED, "BROKEN_STREAM"
    else:
        record.outcome = Outcome.OK if counted == record.wanted_tokens else Outcome.SHORT


def _to_text(prompt: tuple[int, ...]) -> str:
    """As many common words as `prompt` has ids, the same for the same ids, equal where ids are."""
    return " ".join(_WORDS[token % len(_WORDS)] for token in prompt)
