"""All generations of this gateway: hands them what arrives, finds them another scheduler, cuts slow clients.

The hot path is `_on_deltas`: a step's tokens for every stream, in columns.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import ColumnError, unpack_u32, unpack_u64
from gateway.errors.api_error import ApiError, FieldViolation
from gateway.link.replica_link import ReplicaLink
from gateway.link.replicas import RequestKey
from gateway.streams.choice import Choice, OutputGapError
from gateway.streams.client_output import ClientOutput
from gateway.streams.generation import Generation, Phase
from gateway.streams.request_state import RequestState
from gateway.streams.submission import Submission
from gateway.text.token_table import TokenTable

_HARD_LIMIT = 4
_HARD_PAUSE_S = 1.0
"""A client that has so many times its queue waiting is cut after this time already: memory is bounded."""
_MAX_ATTEMPTS = 50
"""A request that so many submissions did not bring to its end is at fault itself, or its scheduler is."""
_MAY_PASS = frozenset({Reason.NO_WORKER, Reason.DRAINING, Reason.NO_SCHEDULER})
"""Refusals of a request that was in before: another attempt may fare better."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what streams hold and wait for."""

    queue_tokens: int
    slow_timeout_s: float
    orphan_grace_s: float
    """How long a request waits for a scheduler after its own was lost."""


class GenerationTable:
    """Owns the generations that are served here. Belongs to one event loop."""

    def __init__(
        self,
        token_table: TokenTable,
        limits: StreamLimits,
        place: Callable[[RequestKey, front.Submit | None], ReplicaLink],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`place` finds a replica for a request, by its key where no Submit is given, or raises ApiError."""
        self._token_table = token_table
        self._limits = limits
        self._place = place
        self._clock = clock
        self.opened = asyncio.Event()
        """Set by each generation that opens; whoever waits for one clears it."""
        self._served: dict[int, Generation] = {}
        """By a number of their own, in order of arrival."""
        self._next_serial = 1
        self._attachments: dict[int, Generation] = {}
        self._choices: dict[int, tuple[Choice, ClientOutput]] = {}
        self._next_handle = front.MAX_CHOICES
        self._log = structlog.get_logger()
        self.num_resubmitted = 0
        self.num_cut = 0

    @property
    def num_open(self) -> int:
        """Generations whose calls have not ended."""
        return len(self._served)

    # ---- from calls ----

    def submit(self, key: RequestKey, submission: Submission, state: RequestState) -> Generation:
        """Sends a new request. Raises ApiError when there is nobody to take it."""
        generation = Generation(key, self._token_table, self._clock(), submission=submission, state=state)
        if not self._ask(generation, self._place(key, submission.placement_hint)):
            raise ApiError(Reason.NO_SCHEDULER, "the scheduler does not take requests")
        self._serve(generation)
        return generation

    def attach(
        self, key: RequestKey, link: ReplicaLink, attach: front.Attach, offsets: Mapping[int, int]
    ) -> Generation:
        """Asks `link` for a request that is there; `attach` has no handle yet. Raises ApiError."""
        generation = Generation(key, self._token_table, self._clock(), offsets=offsets)
        handle = self._register(generation, link)
        if not link.send(msgspec.structs.replace(attach, handle=handle)):
            self._forget(generation)
            raise ApiError(Reason.NO_SCHEDULER, "the scheduler does not take requests")
        self._serve(generation)
        return generation

    def is_used(self, link: ReplicaLink) -> bool:
        """Whether any generation is attached by that link."""
        return any(generation.link is link for generation in self._attachments.values())

    def release(self, generation: Generation) -> None:
        """Its call has ended. Unless the request has, the scheduler learns that nobody listens."""
        if self._served.pop(generation.serial, None) is None:
            return
        was_listening = generation.handle in self._attachments
        self._forget(generation)
        if was_listening and generation.link is not None:
            generation.link.send(front.Detach(generation.handle))

    def cut(self, generation: Generation, error: ApiError, *, detach: bool = True) -> None:
        """Ends the stream with `error`, also while its client does not read."""
        for choice in generation.choices:
            self._choices.pop(choice.handle, None)
        if not detach:
            self._attachments.pop(generation.handle, None)
        generation.cut(error)
        generation.output.interrupt()

    def expire(self, generation: Generation) -> None:
        """The deadline of its call is here, and the scheduler has not said so in time: the stream ends typed all the
        same. A request of this call's ends with it; one that was taken up goes on.
        """
        if generation.has_ended:
            return
        for choice in generation.choices:
            self._choices.pop(choice.handle, None)
        if generation.submission is None:
            generation.fail(ApiError(Reason.DEADLINE, "the call's deadline has passed; the request goes on"))
        else:
            error = ApiError(Reason.DEADLINE, "the request's deadline has passed")
            generation.end_here(FinishReason.DEADLINE, error, self._clock())

    def cut_all(self, error: ApiError) -> None:
        """Ends every stream; the requests are left as they are."""
        for generation in list(self._served.values()):
            self.cut(generation, error, detach=False)

    # ---- from links ----

    def on_message(self, link: ReplicaLink, message: front.ToGateway) -> None:
        """What a scheduler says of requests. One that makes no sense makes its link start anew."""
        try:
            self._on_message(link, message)
        except (OutputGapError, ColumnError, ValueError) as error:
            self._log.error("scheduler_sent_nonsense", replica_id=link.replica_id, detail=str(error))
            link.fail("sent what does not fit")

    def on_lost(self, link: ReplicaLink) -> None:
        """What was on this link is void."""
        now = self._clock()
        for generation in list(self._attachments.values()):
            if generation.link is not link:
                continue
            self._forget(generation)
            if generation.phase is Phase.ENDED:
                continue
            if generation.submission is None:
                generation.fail(ApiError(Reason.NO_SCHEDULER, "the scheduler of this request was lost"))
            else:
                generation.orphan(now)
        self.adopt_orphans()

    def adopt_orphans(self) -> None:
        """Submits again what lost its scheduler, oldest first, as far as there is a replica for it."""
        for generation in list(self._served.values()):
            if generation.phase is not Phase.ORPHANED:
                continue
            if self._is_beyond_help(generation):
                continue
            try:
                link = self._place(generation.key, generation.placement_hint)
            except ApiError:
                continue
            self.num_resubmitted += 1
            self._ask(generation, link)

    def _is_beyond_help(self, generation: Generation) -> bool:
        """Ends an orphan that needs no scheduler any more, or that none has brought to its end."""
        if generation.needs_nothing_more:
            nothing = ApiError(Reason.INTERNAL, "every choice had its last token")
            generation.end_here(FinishReason.STOP_STRING, nothing, self._clock())
            return True
        if generation.submission is not None and generation.submission.num_attempts >= _MAX_ATTEMPTS:
            error = ApiError(Reason.INTERNAL, f"{_MAX_ATTEMPTS} attempts did not bring the request to its end")
            generation.end_here(FinishReason.ERROR, error, self._clock())
            return True
        return False

    def tick(self) -> None:
        """Several times a second while any is open: slow clients, orphans whose time is up, replicas that take them."""
        now = self._clock()
        for generation in list(self._served.values()):
            if generation.phase is Phase.ORPHANED:
                self._expire_orphan(generation, now)
            if self._is_too_slow(generation, now):
                self._cut_slow(generation)
        self.adopt_orphans()

    # ---- asking ----

    def _serve(self, generation: Generation) -> None:
        generation.serial, self._next_serial = self._next_serial, self._next_serial + 1
        self._served[generation.serial] = generation
        self.opened.set()

    def _ask(self, generation: Generation, link: ReplicaLink) -> bool:
        assert generation.submission is not None
        handle = self._register(generation, link)
        message = generation.submission.next_attempt(handle, generation.choices, self._clock())
        if link.send(message):
            return True
        # Losing the link may have made an orphan of it already.
        self._forget(generation)
        if generation.phase is Phase.ASKED:
            generation.orphan(self._clock())
        return False

    def _register(self, generation: Generation, link: ReplicaLink) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + front.MAX_CHOICES
        generation.ask(link, handle)
        self._attachments[handle] = generation
        self._register_choices(generation)
        return handle

    def _register_choices(self, generation: Generation) -> None:
        for choice in generation.choices:
            if choice.end is None:
                self._choices[choice.handle] = (choice, generation.output)

    def _forget(self, generation: Generation) -> None:
        self._attachments.pop(generation.handle, None)
        for choice in generation.choices:
            self._choices.pop(choice.handle, None)

    # ---- messages ----

    def _on_message(self, link: ReplicaLink, message: front.ToGateway) -> None:
        match message:
            case front.Deltas():
                self._on_deltas(link, message)
            case front.Finished():
                self._on_finished(message)
            case front.Accepted():
                generation = self._attachments.get(message.handle)
                if generation is not None and generation.phase is Phase.ASKED:
                    generation.on_accepted(message)
            case front.Attached():
                self._on_attached(link, message)
            case front.Refused():
                self._on_refused(message)
            case front.Superseded(handle):
                generation = self._attachments.get(handle)
                if generation is not None:
                    self._forget(generation)
                    generation.fail(ApiError(Reason.SUPERSEDED, "another stream has taken this request up"))
            case _:
                pass

    def _on_deltas(self, link: ReplicaLink, message: front.Deltas) -> None:
        now, choices = self._clock(), self._choices
        for entry in message.logprobs:
            if (found := choices.get(entry.handle)) is not None:
                found[0].keep_logprobs(entry)
        for part in message.prompt_logprobs:
            if (generation := self._attachments.get(part.handle)) is not None:
                generation.output.tell_prompt_logprobs(part)
        handles, offsets = unpack_u64(message.handles), unpack_u32(message.offsets)
        runs = _runs(message)
        for handle, offset, ids in zip(handles, offsets, runs, strict=True):
            found = choices.get(handle)
            if found is None:
                continue
            choice, output = found
            if choice.push(offset, ids, now):
                self._tell_stop(link, choice)
            if choice.num_waiting:
                output.wake()

    def _tell_stop(self, link: ReplicaLink, choice: Choice) -> None:
        assert choice.stop_tokens is not None
        link.send(front.Stopped(choice.handle, choice.stop_tokens))

    def _on_finished(self, message: front.Finished) -> None:
        base = message.handle & ~(front.MAX_CHOICES - 1)
        generation, found = self._attachments.get(base), self._choices.pop(message.handle, None)
        if generation is None or found is None or generation.phase is not Phase.LIVE:
            return
        if self._moves_on(generation, message):
            self._forget(generation)
            generation.orphan(self._clock())
            return
        choice, _ = found
        if choice.stop_tokens is None and message.num_tokens > len(choice.ids):
            self._choices[message.handle] = found
            raise OutputGapError(f"an end after {message.num_tokens} tokens follows {len(choice.ids)}")
        generation.on_finished(choice, message)
        if generation.has_ended:
            self._forget(generation)

    def _moves_on(self, generation: Generation, message: front.Finished) -> bool:
        """Whether a replica ended it only because it can serve no longer: another one, or its next life, goes on."""
        if message.reason != FinishReason.ERROR or generation.submission is None:
            return False
        if message.failure_reason == Reason.NO_WORKER:
            return self._has_other(generation)
        return message.failure_reason == Reason.DRAINING

    def _has_other(self, generation: Generation) -> bool:
        try:
            return self._place(generation.key, None) is not generation.link
        except ApiError:
            return False

    def _on_attached(self, link: ReplicaLink, message: front.Attached) -> None:
        generation = self._attachments.get(message.handle)
        if generation is None or generation.phase is not Phase.ASKED:
            return
        try:
            generation.on_attached(message, self._clock())
        except ApiError as error:
            # The request goes on without this stream: `release` tells the scheduler so.
            generation.fail(error)
            return
        self._register_choices(generation)
        for choice in generation.choices:
            if choice.stop_tokens is not None and choice.end is None:
                self._tell_stop(link, choice)

    def _on_refused(self, message: front.Refused) -> None:
        generation = self._attachments.get(message.handle)
        if generation is None:
            return
        self._forget(generation)
        if generation.phase is not Phase.ASKED:
            return
        error = _refusal(message)
        if not generation.is_accepted:
            generation.fail(error)
        elif message.reason in _MAY_PASS:
            generation.orphan(self._clock())
        else:
            generation.end_here(FinishReason.ERROR, error, self._clock())

    # ---- time ----

    def _expire_orphan(self, generation: Generation, now: float) -> None:
        deadline = generation.submission.deadline if generation.submission is not None else None
        if deadline is not None and now >= deadline:
            error = ApiError(Reason.DEADLINE, "the request's deadline has passed")
            generation.end_here(FinishReason.DEADLINE, error, now)
        elif now - generation.orphaned_at >= self._limits.orphan_grace_s:
            error = ApiError(Reason.NO_SCHEDULER, "the scheduler was lost and none came back in time")
            generation.end_here(FinishReason.ERROR, error, now)

    def _is_too_slow(self, generation: Generation, now: float) -> bool:
        """Its call waits for the client to read, too much waits behind it or it is the end, and that for too long."""
        output = generation.output
        if not output.is_being_written:
            return False
        waiting, limits, stuck_s = output.num_waiting, self._limits, now - output.taken_at
        if waiting > _HARD_LIMIT * limits.queue_tokens and stuck_s > _HARD_PAUSE_S:
            return True
        is_behind = waiting > limits.queue_tokens or generation.phase is Phase.ENDED
        return is_behind and stuck_s > limits.slow_timeout_s

    def _cut_slow(self, generation: Generation) -> None:
        self.num_cut += 1
        self._log.info("slow_client_cut", request_id=generation.key.request_id)
        limits = (("slow_client_timeout_s", f"{self._limits.slow_timeout_s:g}"),)
        error = ApiError(Reason.SLOW_CLIENT, "the client did not read its stream", limits=limits)
        self.cut(generation, error)


def _runs(message: front.Deltas) -> Sequence[Sequence[int]]:
    """Tokens of each entry."""
    tokens = unpack_u32(message.tokens)
    if not message.counts:
        return [(token,) for token in tokens]
    runs, start = [], 0
    for count in unpack_u32(message.counts):
        runs.append(tokens[start : start + count])
        start += count
    if start != len(tokens):
        raise ColumnError(f"counts sum to {start} of {len(tokens)} tokens")
    return runs


def _refusal(message: front.Refused) -> ApiError:
    return ApiError(
        message.reason,
        message.message,
        violations=(FieldViolation(message.field, message.message),) if message.field else (),
        limits=message.limits,
        retry_after_s=None if message.retry_after_ns is None else message.retry_after_ns / 1e9,
    )
