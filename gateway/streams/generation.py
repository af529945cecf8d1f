"""One client's attachment to one request: where it stands, and how it ends.

A generation outlives its scheduler: when that is lost, the request is submitted again with everything that the client
may have seen, and goes on under a new handle. One that was taken up by Resume does not have the request; it ends then.
"""

import enum
from collections.abc import Mapping, Sequence

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import unpack_u32
from chairlift.v1 import inference_pb2 as pb
from gateway.errors.api_error import ApiError, FieldViolation
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import RequestKey
from gateway.streams.choice import Choice
from gateway.streams.client_output import ClientOutput
from gateway.streams.request_state import RequestState, TextRules, decode_state
from gateway.streams.stream_token import StreamToken, encode_token
from gateway.streams.submission import Submission
from gateway.text.token_table import TokenTable


class Phase(enum.Enum):
    """Where a generation stands."""

    ASKED = enum.auto()
    """Submit or Attach is on its way, the answer is not here."""
    LIVE = enum.auto()
    ORPHANED = enum.auto()
    """No scheduler holds it; it is submitted again as soon as one is there."""
    ENDED = enum.auto()
    """Nothing more comes; what there is may still have to be given to the client."""


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.ASKED: frozenset({Phase.LIVE, Phase.ORPHANED, Phase.ENDED}),
    Phase.LIVE: frozenset({Phase.ORPHANED, Phase.ENDED}),
    Phase.ORPHANED: frozenset({Phase.ASKED, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
_FAILED = (FinishReason.ERROR, FinishReason.DEADLINE, FinishReason.CANCELLED)
"""Reasons that make the status not OK, the weightiest first."""


class Generation:
    """State of one attachment. Its table feeds it; the call that serves the client takes from `output`."""

    def __init__(
        self,
        key: RequestKey,
        token_table: TokenTable,
        now: float,
        *,
        submission: Submission | None = None,
        state: RequestState | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        """A new request has `submission` and `state`; one that is taken up has `offsets`, and gets its state later."""
        self.key = key
        self.submission = submission
        self.phase = Phase.ASKED
        self.link: ReplicaLink | None = None
        self.handle = 0
        self.error: ApiError | None = None
        """Why the status is not OK, once it has ended."""
        self.is_accepted = False
        """Whether the client was told, or is about to be, that the request is in."""
        self.serial = 0
        """Its number among those that its table serves, in order of arrival; 0 before it has one."""
        self.orphaned_at = 0.0
        self.output = ClientOutput(token_table, now)
        self._token_table = token_table
        self._state = state
        self._offsets = offsets
        self._arrived_at = now
        self._number = 0
        self._prompt_tokens = submission.prompt_tokens if submission is not None else 0
        self._seed = submission.submit.sampling.seed if submission is not None else 0

    @property
    def choices(self) -> list[Choice]:
        """By index; empty until their number is known."""
        return self.output.choices

    @property
    def replica_id(self) -> str:
        """Replica that holds it, or held it last."""
        return self.link.replica_id if self.link is not None else ""

    @property
    def placement_hint(self) -> front.Submit | None:
        """What chooses its replica, where its key alone does not."""
        return self.submission.placement_hint if self.submission is not None else None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self.phase is Phase.ENDED

    @property
    def needs_nothing_more(self) -> bool:
        """Whether every choice has its last token, though the scheduler may not have said so."""
        return bool(self.choices) and not any(choice.takes_tokens for choice in self.choices)

    def take(self, now: float) -> list[bytes]:
        """Encoded messages for the client; empty when there is nothing."""
        return self.output.take(now, self._prompt_tokens, self._seed)

    # ---- what the table does with it ----

    def ask(self, link: ReplicaLink, handle: int) -> None:
        """It is about to be asked for at `link`, under a new handle."""
        if self.phase is Phase.ORPHANED:
            self._move(Phase.ASKED)
        self.link, self.handle = link, handle
        if not self.choices and self.submission is not None:
            self._make_choices(self.submission.submit.n)
        for choice in self.choices:
            choice.handle = handle + choice.index

    def on_accepted(self, message: front.Accepted) -> None:
        """The request is in; the client hears of it the first time only."""
        self._number = message.number
        self._move(Phase.LIVE)
        if not self.is_accepted:
            predicted = None if message.predicted_ttft_ns is None else message.predicted_ttft_ns / 1e6
            self._tell_accepted(message.queue_position, predicted, resumed=False)

    def on_attached(self, message: front.Attached, now: float) -> None:
        """The request was there already: everything so far. Raises ApiError when the client's offsets do not fit it."""
        self._number = message.number
        self._move(Phase.LIVE)
        if not self.is_accepted:
            self._state = self._state or decode_state(message.gateway_state)
            self._prompt_tokens, self._seed = message.prompt_tokens, message.seed
            self.submission = self.submission or Submission.taken_up(message, self._state.cache_salt, now)
            if len(self.choices) != message.n:
                self._make_choices(message.n)
        if len(message.outputs) != len(self.choices):
            raise ApiError(Reason.INTERNAL, "the request has another number of choices than before")
        for entry in (one for part in message.output_logprobs for one in part):
            index = entry.handle - self.handle
            if 0 <= index < len(self.choices):
                self.choices[index].keep_logprobs(entry)
        self._take_outputs([unpack_u32(packed) for packed in message.outputs])
        if not self.is_accepted:
            self._tell_accepted(message.queue_position, None, resumed=True)
            for part_of_prompt in message.prompt_logprobs:
                self.output.tell_prompt_logprobs(part_of_prompt)
        self.output.wake()

    def on_finished(self, choice: Choice, message: front.Finished) -> None:
        """A choice has its end; a second one is none."""
        if choice.end is not None:
            return
        choice.finish(message)
        if all(other.end is not None for other in self.choices):
            self.error = self._worst_end()
            self._move(Phase.ENDED)
        self.output.tell_end(choice)

    def orphan(self, now: float) -> None:
        """Its scheduler is lost."""
        self._move(Phase.ORPHANED)
        self.orphaned_at = now

    def fail(self, error: ApiError) -> None:
        """Ends the stream; the request itself may go on."""
        if self.phase is not Phase.ENDED:
            self.error = error
            self._move(Phase.ENDED)
            self.output.wake()

    def cut(self, error: ApiError) -> None:
        """Ends the stream whatever it had come to: not all of it has reached the client."""
        self.fail(error)
        self.error = error

    def end_here(self, reason: FinishReason, error: ApiError, now: float) -> None:
        """Ends a request that no scheduler holds any more, as its scheduler would have: each choice gets its end."""
        if not self.is_accepted:
            self.fail(error)
            return
        for choice in self.choices:
            self.on_finished(choice, self._end_of(choice, reason, error, now))

    def _end_of(self, choice: Choice, reason: FinishReason, error: ApiError, now: float) -> front.Finished:
        is_stopped = choice.stop_tokens is not None
        return front.Finished(
            handle=choice.handle,
            reason=FinishReason.STOP_STRING if is_stopped else reason,
            num_tokens=len(choice.ids),
            total_ns=round((now - self._arrived_at) * 1e9),
            failure_reason="" if is_stopped else error.reason,
            failure_message="" if is_stopped else error.message,
            retry_after_ns=None if error.retry_after_s is None else round(error.retry_after_s * 1e9),
        )

    def _make_choices(self, count: int) -> None:
        assert self._state is not None
        rules = TextRules(self._state, self._token_table)
        self.output.choices = [
            Choice(index, self.handle + index, self._state, rules, self._token_table) for index in range(count)
        ]

    def _take_outputs(self, outputs: Sequence[Sequence[int]]) -> None:
        offsets, self._offsets = self._offsets, None
        for index in offsets or ():
            if index >= len(self.choices):
                raise _bad_offset(index, f"the request has {len(self.choices)} choices")
        for choice, ids in zip(self.choices, outputs, strict=True):
            if offsets is not None:
                choice.remember_borders()
            choice.push(0, ids, None)
            if offsets is not None and not choice.skip_to(offsets.get(choice.index, 0)):
                raise _bad_offset(choice.index, "no delta can have ended at this offset")

    def _tell_accepted(self, queue_position: int, predicted_ttft_ms: float | None, *, resumed: bool) -> None:
        assert self.link is not None
        assert self._state is not None
        self.is_accepted = True
        token = StreamToken(self.link.replica_id, self.link.scheduler_epoch, self._number)
        accepted = pb.Accepted(
            request_id=self.key.request_id,
            stream_token=encode_token(token),
            model=self._state.model,
            prompt_tokens=self._prompt_tokens,
            queue_position=queue_position,
            predicted_ttft_ms=predicted_ttft_ms,
            resumed=resumed,
        )
        self.output.tell_accepted(accepted, self._state)

    def _worst_end(self) -> ApiError | None:
        for reason in _FAILED:
            for choice in self.choices:
                end = choice.end
                if end is not None and end.reason == reason and choice.stop_tokens is None:
                    retry_s = None if end.retry_after_ns is None else end.retry_after_ns / 1e9
                    return ApiError(end.failure_reason or Reason.INTERNAL, end.failure_message, retry_after_s=retry_s)
        return None

    def _move(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a generation that is {self.phase.name} cannot become {phase.name}")
        self.phase = phase


def _bad_offset(index: int, description: str) -> ApiError:
    text = f"choice {index}: {description}"
    return ApiError(Reason.OFFSET_NOT_KEPT, f"offsets: {text}", violations=(FieldViolation("offsets", text),))
