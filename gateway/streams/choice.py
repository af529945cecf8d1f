"""One choice of a generation: tokens that came, text that may leave, what has left, the end."""

from array import array
from collections.abc import Sequence

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason
from chairlift.v1 import inference_pb2 as pb
from gateway.streams.gaps import TokenGaps
from gateway.streams.logprobs import token_logprob
from gateway.streams.request_state import RequestState, TextRules
from gateway.streams.wire import encode_delta
from gateway.text.detokenizer import Piece
from gateway.text.token_table import TokenTable


class OutputGapError(Exception):
    """The scheduler sent tokens that do not follow the ones before: nothing from it can be trusted."""


class Choice:
    """State of one choice. `handle` is the current attachment's."""

    __slots__ = (
        "_borders",
        "_detokenizer",
        "_is_plain",
        "_logprobs",
        "_state",
        "_texts",
        "_token_table",
        "end",
        "gaps",
        "handle",
        "ids",
        "index",
        "num_released",
        "num_sent",
    )

    def __init__(self, index: int, handle: int, state: RequestState, rules: TextRules, token_table: TokenTable) -> None:
        self.index = index
        self.handle = handle
        self.ids = array("I")
        """Every output token so far; those after a stop string do not count and are not kept."""
        self.gaps = TokenGaps()
        self.num_released = 0
        """Tokens whose text is decided."""
        self.num_sent = 0
        """Of these, tokens that the client has been given."""
        self.end: front.Finished | None = None
        self._state = state
        self._token_table = token_table
        self._detokenizer = rules.make_detokenizer()
        self._texts: list[str] = []
        self._logprobs: dict[int, front.DeltaLogprobs] | None = {} if state.wants_logprobs else None
        self._borders: list[Piece] | None = None
        self._is_plain = not (state.wants_token_ids or state.wants_logprobs)

    @property
    def num_waiting(self) -> int:
        """Tokens that could be given to the client now."""
        return self.num_released - self.num_sent

    @property
    def stop_tokens(self) -> int | None:
        """Output tokens up to the stop string that was found; None while there is none."""
        return self._detokenizer.stop.num_tokens if self._detokenizer.stop is not None else None

    @property
    def takes_tokens(self) -> bool:
        """Whether further tokens belong to its output."""
        return self.end is None and self._detokenizer.stop is None

    def keep_logprobs(self, entry: front.DeltaLogprobs) -> None:
        """Log-probabilities of the token at an offset; kept until that token leaves."""
        if self._logprobs is not None and entry.offset >= self.num_sent:
            self._logprobs[entry.offset] = entry

    def push(self, offset: int, ids: Sequence[int], now: float | None) -> bool:
        """Output from `offset` on, which may repeat what is known; `now` is None for what is told again.

        True when a stop string has ended the choice by it. Raises OutputGapError.
        """
        if not self.takes_tokens:
            return False
        known = len(self.ids)
        if offset != known:
            if offset > known:
                raise OutputGapError(f"output {offset} follows {known} tokens")
            ids = ids[known - offset :]
        if now is not None:
            for _ in ids:
                self.gaps.note(now)
        self._release(self._detokenizer.feed(ids))
        self.ids.extend(ids)
        stop = self._detokenizer.stop
        if stop is None:
            return False
        del self.ids[stop.num_tokens :]
        return True

    def finish(self, end: front.Finished) -> None:
        """It has ended; what was held back is decided now."""
        self.end = end
        self._release(self._detokenizer.finish())

    def skip_to(self, offset: int) -> bool:
        """The client has so many tokens already. False where that is no place at which a delta can have ended."""
        assert self._borders is not None
        passed, kept = 0, list[Piece]()
        for piece in self._borders:
            if passed < offset:
                passed += piece.num_tokens
            else:
                kept.append(piece)
        self._borders = None
        if passed != offset:
            return False
        self.num_sent = offset
        self._texts = [piece.text for piece in kept]
        return True

    def remember_borders(self) -> None:
        """Until `skip_to`, keeps the pieces apart."""
        self._borders = []

    def take_delta(self) -> bytes | None:
        """What the client can be given now, in one encoded message; None when there is nothing."""
        start, end = self.num_sent, self.num_released
        if start == end:
            return None
        if self._is_plain:
            texts, self.num_sent = self._texts, end
            text = "".join(texts)
            texts.clear()
            return encode_delta(self.index, start, end - start, text)
        response = pb.GenerateResponse()
        delta = response.event.delta
        delta.index, delta.offset, delta.num_tokens = self.index, start, end - start
        texts = self._texts
        if texts:
            delta.text = texts[0] if len(texts) == 1 else "".join(texts)
            self._texts = []
        if self._state.wants_token_ids:
            delta.token_ids.extend(self.ids[start:end])
        if self._logprobs is not None:
            for offset in range(start, end):
                entry = self._logprobs.pop(offset, None)
                delta.logprobs.append(token_logprob(entry, self.ids[offset], self._token_table))
        self.num_sent = end
        return response.SerializeToString()

    def finished(self, prompt_tokens: int, seed: int, arrived_at: float) -> pb.Finished:
        """The choice's end, for the client; `arrived_at` is when the request came, by the clock of `push`."""
        end, stop = self.end, self._detokenizer.stop
        assert end is not None
        reason = FinishReason.STOP_STRING if stop is not None else end.reason
        finished = pb.Finished(
            index=self.index,
            reason=pb.FinishReason.ValueType(reason),
            usage=pb.Usage(
                prompt_tokens=prompt_tokens,
                cached_tokens=end.cached_tokens,
                output_tokens=len(self.ids) if stop is not None else end.num_tokens,
            ),
            timing=pb.Timing(
                queue_ms=end.queue_ns / 1e6,
                ttft_ms=self._ttft_ms(end, arrived_at),
                total_ms=end.total_ns / 1e6,
                itl_p50_ms=self.gaps.median_ms,
                itl_max_ms=self.gaps.longest_ms,
            ),
            preemptions=end.preemptions,
            seed=seed,
        )
        if stop is not None:
            finished.stop.text = stop.text
        elif reason == FinishReason.STOP_TOKEN and end.stop_token_id is not None:
            finished.stop.token_id = end.stop_token_id
        elif reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR):
            _fill_failure(finished.failure, end)
        return finished

    def _ttft_ms(self, end: front.Finished, arrived_at: float) -> float | None:
        """A scheduler that got the request from a lost one has not seen its first token; this gateway may have."""
        if end.ttft_ns is not None:
            return end.ttft_ns / 1e6
        return None if self.gaps.first_at is None else (self.gaps.first_at - arrived_at) * 1e3

    def _release(self, pieces: list[Piece]) -> None:
        if self._borders is not None:
            self._borders += pieces
        for piece in pieces:
            self.num_released += piece.num_tokens
            if piece.text:
                self._texts.append(piece.text)


def _fill_failure(failure: pb.Failure, end: front.Finished) -> None:
    failure.reason = end.failure_reason
    failure.message = end.failure_message
    failure.retryable = end.retry_after_ns is not None
    if end.retry_after_ns is not None:
        failure.retry_delay.FromNanoseconds(max(0, end.retry_after_ns))
