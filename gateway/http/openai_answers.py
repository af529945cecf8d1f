"""From a generation's events to OpenAI's chunks or one whole answer.

Text, holding back, stops and counts are the gateway's own: an event becomes at most one chunk, and nothing is decided
here.
"""

import time
from collections.abc import Iterator

import msgspec

from chairlift.v1 import inference_pb2 as pb
from gateway.http import openai_bodies as bodies
from gateway.http.openai_requests import Asked

_ROLE = bodies.ChatDelta(role="assistant", content="")
_NOTHING = bodies.ChatDelta()
_FINISH_REASON = {
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CONTEXT_LIMIT: "length",
    pb.FINISH_REASON_EOS: "stop",
    pb.FINISH_REASON_STOP_STRING: "stop",
    pb.FINISH_REASON_STOP_TOKEN: "stop",
}
"""The other reasons are errors, which end the answer as such."""

AnyChoice = bodies.ChatChunkChoice | bodies.CompletionChoice


class Answer:
    """Follows one generation. `take` gives the chunks of a stream; `whole` is the answer when nobody streams."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._created = int(time.time())
        self._accepted = pb.Accepted()
        self._choices: dict[int, _ChoiceSoFar] = {}
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0

    @property
    def request_id(self) -> str:
        """Empty before the request is in."""
        return self._accepted.request_id

    def take(self, packed: bytes) -> Iterator[bytes]:
        """The JSON of each chunk that an encoded GenerateResponse becomes. It is counted and kept as is needed."""
        event = pb.GenerateResponse.FromString(packed).event
        match event.WhichOneof("event"):
            case "accepted":
                self._accepted = event.accepted
                if self._asked.is_stream and self._asked.is_chat:
                    for index in range(self._num_choices):
                        yield self._chunk([bodies.ChatChunkChoice(index, _ROLE)])
            case "delta":
                yield from self._delta(event.delta)
            case "finished":
                yield from self._finished(event.finished)

    def last(self) -> Iterator[bytes]:
        """The chunk behind the last choice's end, where usage was asked for."""
        if self._asked.include_usage:
            yield self._encode([], self._usage(), is_chunk=True)

    def whole(self) -> bytes:
        """The answer in one piece."""
        return self._encode(
            [self._choices[index].whole(index) for index in sorted(self._choices)], self._usage(), is_chunk=False
        )

    @property
    def _num_choices(self) -> int:
        sampling = self._asked.request.sampling
        return sampling.n if sampling.HasField("n") else 1

    def _delta(self, delta: pb.Delta) -> Iterator[bytes]:
        so_far = self._choice(delta.index)
        part = so_far.add(delta)
        # Tokens without text of their own (a special one) say nothing unless they are described.
        if self._asked.is_stream and (delta.text or delta.logprobs):
            yield self._chunk([part])

    def _finished(self, finished: pb.Finished) -> Iterator[bytes]:
        usage = finished.usage
        self._prompt_tokens, self._cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self._output_tokens += usage.output_tokens
        reason = _FINISH_REASON.get(finished.reason)
        so_far = self._choice(finished.index)
        so_far.finish_reason = reason or "error"
        if self._asked.is_stream and reason is not None:
            yield self._chunk([so_far.end(finished.index, reason)])

    def _choice(self, index: int) -> "_ChoiceSoFar":
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = _ChoiceSoFar(self._asked)
        return found

    def _usage(self) -> bodies.Usage:
        prompt, output = self._prompt_tokens, self._output_tokens
        return bodies.Usage(prompt, output, prompt + output, bodies.PromptTokensDetails(self._cached_tokens))

    def _chunk(self, choices: list[AnyChoice]) -> bytes:
        return self._encode(choices, None if self._asked.include_usage else msgspec.UNSET, is_chunk=True)

    def _encode(self, choices: object, usage: bodies.Usage | msgspec.UnsetType | None, *, is_chunk: bool) -> bytes:
        if self._asked.is_chat:
            prefix, kind = "chatcmpl-", "chat.completion.chunk" if is_chunk else "chat.completion"
        else:
            prefix, kind = "cmpl-", "text_completion"
        return msgspec.json.encode(
            bodies.AnswerBody(
                id=prefix + self.request_id,
                object=kind,
                created=self._created,
                model=self._accepted.model,
                choices=choices,  # type: ignore[arg-type]  # which list it is follows from the request's kind
                usage=usage,
            )
        )


class _ChoiceSoFar:
    """One choice: its text where that is wanted whole, and the place in it that logprobs of completions name."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._texts: list[str] = []
        self._chat_logprobs: list[bodies.ChatLogprob] = []
        self._columns = bodies.CompletionLogprobs([], [], [], None)
        self._num_chars = 0
        self._wants_logprobs = asked.request.output.HasField("logprobs")
        self.finish_reason = ""

    def add(self, delta: pb.Delta) -> AnyChoice:
        """Takes a delta in; returns it as a part of a chunk."""
        if not self._asked.is_stream:
            self._texts.append(delta.text)
        if self._asked.is_chat:
            described = [_chat_logprob(each) for each in delta.logprobs]
            if not self._asked.is_stream:
                self._chat_logprobs += described
            logprobs = bodies.ChatLogprobs(described) if described else None
            return bodies.ChatChunkChoice(delta.index, bodies.ChatDelta(content=delta.text), logprobs)
        columns = self._describe(delta) if delta.logprobs else None
        return bodies.CompletionChoice(delta.index, delta.text, columns)

    def end(self, index: int, reason: str) -> AnyChoice:
        """The last part of it in a stream."""
        if self._asked.is_chat:
            return bodies.ChatChunkChoice(index, _NOTHING, finish_reason=reason)
        return bodies.CompletionChoice(index, "", finish_reason=reason)

    def whole(self, index: int) -> bodies.ChatChoice | bodies.CompletionChoice:
        """All of it."""
        text = "".join(self._texts)
        if self._asked.is_chat:
            logprobs = bodies.ChatLogprobs(self._chat_logprobs) if self._wants_logprobs else None
            return bodies.ChatChoice(index, bodies.ChatMessageBody("assistant", text), logprobs, self.finish_reason)
        columns = self._columns if self._wants_logprobs else None
        return bodies.CompletionChoice(index, text, columns, self.finish_reason)

    def _describe(self, delta: pb.Delta) -> bodies.CompletionLogprobs:
        """The tokens of a delta as columns. Each stands where the text of its delta begins or later, by its bytes."""
        tokens = [_spell(each.piece) for each in delta.logprobs]
        offsets, at = [], self._num_chars
        for token in tokens:
            offsets.append(min(at, self._num_chars + len(delta.text)))
            at += len(token)
        self._num_chars += len(delta.text)
        wants_top = self._asked.request.output.logprobs > 0
        top = [{_spell(other.piece): other.logprob for other in each.top} for each in delta.logprobs]
        columns = bodies.CompletionLogprobs(
            offsets, [each.logprob for each in delta.logprobs], tokens, top if wants_top else None
        )
        if not self._asked.is_stream:
            self._columns = _joined(self._columns, columns)
        return columns


def _joined(before: bodies.CompletionLogprobs, part: bodies.CompletionLogprobs) -> bodies.CompletionLogprobs:
    before.text_offset.extend(part.text_offset)
    before.token_logprobs.extend(part.token_logprobs)
    before.tokens.extend(part.tokens)
    top = None if part.top_logprobs is None else [*(before.top_logprobs or ()), *part.top_logprobs]
    return msgspec.structs.replace(before, top_logprobs=top)


def _chat_logprob(each: pb.TokenLogprob) -> bodies.ChatLogprob:
    top = [bodies.TopLogprob(_spell(other.piece), other.logprob, list(other.piece)) for other in each.top]
    return bodies.ChatLogprob(_spell(each.piece), each.logprob, list(each.piece), top)


def _spell(piece: bytes) -> str:
    """A token that is a part of a code point has U+FFFD for it; its bytes are beside it where there is room."""
    return piece.decode("utf-8", "replace")
