"""What happened to one sampled request: events while it lives, and the phases that they belong to once it has ended.

Pure: reads the core's account of a request, knows no span.
"""

import msgspec
from opentelemetry.util.types import AttributeValue

from chairlift.ipc.common import WaitReason
from scheduler_svc.core import emission
from scheduler_svc.core.ledger import WaitClock
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence

MAX_EVENTS = 256
"""Events kept of one request; later ones are counted."""

Attributes = dict[str, AttributeValue]


class StoryEvent(msgspec.Struct, frozen=True):
    """A moment, in nanoseconds of the core's clock."""

    name: str
    at_ns: int
    attributes: Attributes

    def is_before_first_token(self, at_ns: int) -> bool:
        """Where that came at `at_ns`. The result that has the last chunk has the first token too."""
        return self.at_ns < at_ns or (self.at_ns == at_ns and self.name == "chunk")


class Phase(msgspec.Struct, frozen=True):
    """A part of a request's life, in nanoseconds since its arrival."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: list[StoryEvent] = []
    """Their times are the core's clock's."""


class Story:
    """Events of one request, in order."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._events: list[StoryEvent] = []
        self._num_left_out = 0
        self._displaced: set[int] = set()

    def add(self, name: str, at_ns: int, attributes: Attributes) -> None:
        """Something happened."""
        if len(self._events) < MAX_EVENTS:
            self._events.append(StoryEvent(name, at_ns, attributes))
        else:
            self._num_left_out += 1

    def note_chunk(self, sequence: Sequence, step: int, num_tokens: int, at_ns: int) -> None:
        """So many of its tokens were computed in one step, outside the decode column."""
        self.add("chunk", at_ns, {"step": step, "tokens": num_tokens, "choice": sequence.choice})

    def note_displaced(self, cause: str, at_ns: int) -> None:
        """Choices of it that have lost their seat since the last time."""
        for sequence in self.request.sequences:
            if sequence.has_run and sequence.choice not in self._displaced:
                self._displaced.add(sequence.choice)
                kept = sequence.host_blocks is not None
                self.add("preemption", at_ns, {"cause": cause, "swapped": kept, "choice": sequence.choice})

    def note_boarded(self, sequence: Sequence, step: int, at_ns: int) -> None:
        """A choice has a seat; where it had lost one, it resumes."""
        if sequence.choice in self._displaced:
            self._displaced.discard(sequence.choice)
            attributes: Attributes = {"step": step, "tokens_kept": sequence.computed, "choice": sequence.choice}
            self.add("resume", at_ns, attributes)

    def phases(self, clock: WaitClock) -> list[Phase]:
        """What a request that has ended went through, in order; at least its time in the queue."""
        request = self.request
        assert request.ended_ns is not None
        ends = [emission.finished(sequence, is_last=True) for sequence in request.sequences]
        total_ns = request.ended_ns - request.arrival_ns
        queue_ns = min(ends[0].queue_ns, total_ns)
        name: Attributes = {"chairlift.request_id": request.key.request_id}
        waits = request.waits.by_reason(clock, request.ended_ns)
        reasons: Attributes = {
            f"chairlift.wait.{one.name.lower()}_ms": waits[one] / 1e6 for one in WaitReason if waits[one]
        }
        phases = [Phase("queue", 0, queue_ns, name | reasons)]
        if request.first_boarded_ns is None:
            return phases
        first_ns = min((end.ttft_ns for end in ends if end.ttft_ns is not None), default=None)
        # What an earlier scheduler emitted came before this one's queue.
        prefill_end_ns = total_ns if first_ns is None else min(max(first_ns, queue_ns), total_ns)
        border = request.arrival_ns + prefill_end_ns
        early = [event for event in self._events if first_ns is None or event.is_before_first_token(border)]
        prefill: Attributes = {
            "gen_ai.usage.input_tokens": request.prompt_len,
            "chairlift.cached_tokens": request.cached_tokens,
        }
        phases.append(Phase("prefill", queue_ns, prefill_end_ns, name | prefill, early))
        if first_ns is not None:
            decode: Attributes = {
                "gen_ai.usage.output_tokens": sum(end.num_tokens for end in ends),
                "chairlift.preemptions": sum(end.preemptions for end in ends),
            }
            if self._num_left_out:
                decode["chairlift.events_left_out"] = self._num_left_out
            events = [*_first_tokens(request), *self._events[len(early) :]]
            phases.append(Phase("decode", prefill_end_ns, total_ns, name | decode, events))
        return phases


def _first_tokens(request: Request) -> list[StoryEvent]:
    return [
        StoryEvent("first_token", sequence.first_token_ns, {"choice": sequence.choice})
        for sequence in request.sequences
        if sequence.first_token_ns is not None
    ]


def failure_of(request: Request) -> str:
    """Reason of the first choice that did not end well; empty when all did."""
    ends = (sequence.end for sequence in request.sequences)
    return next((end.failure_reason for end in ends if end is not None and end.failure_reason), "")
