"""What a client knows of one generation: what was accepted, received and ended, and whether all of it fits together.

Pure: events in, deltas out. Every token is counted by its offset, so that a gap or a repeat cannot pass unseen, also
when a broken stream is taken up again.
"""

from chairlift.client import convert
from chairlift.client.errors import StreamCorruptError
from chairlift.client.results import Accepted, Choice, Completion, Delta, FinishReason, TokenLogprob
from chairlift.v1 import inference_pb2 as pb


class _ChoiceState:
    """Output of one choice so far."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.num_tokens = 0
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finished: pb.Finished | None = None

    def result(self) -> Choice:
        """What has arrived."""
        choice = Choice(
            index=self.index,
            text="".join(self.texts),
            num_tokens=self.num_tokens,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
        )
        return choice if self.finished is None else _ended(choice, self.finished)


class StreamState:
    """Progress of one generation over all its attachments."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self.request = request
        self.accepted: Accepted | None = None
        self._is_attached = False
        self._choices = [_ChoiceState(index) for index in range(request.sampling.n or 1)]
        self._prompt_logprobs: list[TokenLogprob] = []

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self.request.request_id

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finished is not None for choice in self._choices)

    @property
    def is_success(self) -> bool:
        """Whether every choice has ended with all that was asked for."""
        return all(choice.finished is not None and _reason(choice.finished).is_success for choice in self._choices)

    @property
    def num_tokens(self) -> int:
        """Tokens received, all choices together: grows with progress."""
        return sum(choice.num_tokens for choice in self._choices)

    def begin_attachment(self) -> None:
        """A new call is about to deliver events; its first must be Accepted."""
        self._is_attached = False

    def on_event(self, event: pb.GenerationEvent) -> Delta | None:
        """Takes in one event and returns new output, if it is that.

        Kinds of event that this version does not know are passed over. Raises StreamCorruptError.
        """
        kind = event.WhichOneof("event")
        if kind == "accepted":
            self._on_accepted(event.accepted)
            return None
        if kind is not None and not self._is_attached:
            raise StreamCorruptError(f"{kind} came before accepted")
        match kind:
            case "delta":
                return self._on_delta(event.delta)
            case "finished":
                self._on_finished(event.finished)
            case "prompt_logprobs":
                self._on_prompt_logprobs(event.prompt_logprobs)
        return None

    def resume_request(self) -> pb.ResumeRequest:
        """What takes the stream up where it broke."""
        return pb.ResumeRequest(
            request_id=self.request_id,
            stream_token=self.accepted.stream_token if self.accepted is not None else "",
            offsets=[pb.ChoiceOffset(index=choice.index, offset=choice.num_tokens) for choice in self._choices],
        )

    def completion(self) -> Completion:
        """What has arrived so far; the whole once `is_complete`."""
        return Completion(
            request_id=self.request_id,
            model=self.accepted.model if self.accepted is not None else "",
            prompt_tokens=self.accepted.prompt_tokens if self.accepted is not None else 0,
            choices=tuple(choice.result() for choice in self._choices),
            prompt_logprobs=tuple(self._prompt_logprobs),
        )

    def _on_accepted(self, message: pb.Accepted) -> None:
        if self._is_attached:
            raise StreamCorruptError("accepted came twice")
        if message.request_id != self.request_id:
            raise StreamCorruptError("the stream belongs to another request")
        self._is_attached = True
        self.accepted = convert.accepted_from(message)

    def _choice(self, index: int) -> _ChoiceState:
        if index >= len(self._choices):
            raise StreamCorruptError(f"choice {index} of {len(self._choices)}")
        return self._choices[index]

    def _on_delta(self, message: pb.Delta) -> Delta:
        choice = self._choice(message.index)
        if choice.finished is not None:
            raise StreamCorruptError(f"choice {message.index}: output after its end")
        if message.offset != choice.num_tokens:
            what = "is missing" if message.offset > choice.num_tokens else "came twice"
            raise StreamCorruptError(
                f"choice {message.index}: output {what}: offset {message.offset} after {choice.num_tokens} tokens"
            )
        self._check_columns(message)
        delta = Delta(
            index=message.index,
            offset=message.offset,
            num_tokens=message.num_tokens,
            text=message.text,
            token_ids=tuple(message.token_ids),
            logprobs=convert.logprobs_from(message.logprobs),
        )
        choice.num_tokens += delta.num_tokens
        choice.texts.append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        choice.logprobs.extend(delta.logprobs)
        return delta

    def _check_columns(self, message: pb.Delta) -> None:
        output = self.request.output
        if not message.num_tokens:
            raise StreamCorruptError(f"choice {message.index}: text without tokens")
        if output.token_ids and len(message.token_ids) != message.num_tokens:
            raise StreamCorruptError(
                f"choice {message.index}: {len(message.token_ids)} ids, {message.num_tokens} tokens"
            )
        if output.HasField("logprobs") and len(message.logprobs) != message.num_tokens:
            raise StreamCorruptError(
                f"choice {message.index}: {len(message.logprobs)} log-probabilities, {message.num_tokens} tokens"
            )

    def _on_finished(self, message: pb.Finished) -> None:
        choice = self._choice(message.index)
        if choice.finished is not None:
            if self.accepted is not None and self.accepted.resumed and choice.finished.reason == message.reason:
                return  # a resumed stream tells each end again
            raise StreamCorruptError(f"choice {message.index}: ended twice")
        if _reason(message).is_success and message.usage.output_tokens != choice.num_tokens:
            raise StreamCorruptError(
                f"choice {message.index}: {message.usage.output_tokens} tokens at its end, {choice.num_tokens} received"
            )
        choice.finished = message

    def _on_prompt_logprobs(self, message: pb.PromptLogprobs) -> None:
        have = len(self._prompt_logprobs)
        if message.offset > have:
            raise StreamCorruptError(f"prompt: offset {message.offset} after {have} log-probabilities")
        # A resumed stream may begin them again: what is there already stays.
        self._prompt_logprobs.extend(convert.logprobs_from(message.logprobs[have - message.offset :]))


def _reason(message: pb.Finished) -> FinishReason:
    return convert.FINISH_REASONS.get(message.reason, FinishReason.OTHER)


def _ended(choice: Choice, message: pb.Finished) -> Choice:
    return Choice(
        index=choice.index,
        text=choice.text,
        num_tokens=choice.num_tokens,
        token_ids=choice.token_ids,
        logprobs=choice.logprobs,
        finish_reason=_reason(message),
        stop=convert.stop_from(message.stop),
        failure=convert.failure_from(message.failure) if message.HasField("failure") else None,
        usage=convert.usage_from(message.usage),
        timing=convert.timing_from(message.timing),
        preemptions=message.preemptions,
        seed=message.seed,
    )
