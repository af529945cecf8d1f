"""A sequence: one choice of a request, the unit that has a row, KV blocks and an end.

Owns its state and the table of allowed moves. Counts, not phases: a sequence *knows* some tokens (prompt and output),
plans sent have *scheduled* some of them, results have *computed* some; a step narrows the gap.

While a sequence decodes, one token every step, nothing of it changes step by step but what the step number tells:
`scheduled` is then ``decode_base`` + the last step planned, and its newest tokens are still in the columns of
`confirmed`. Use `Batch.num_scheduled` and `Confirmed.settle` where it may be decoding.
"""

import enum
from array import array
from typing import TYPE_CHECKING

import msgspec

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason

if TYPE_CHECKING:
    from scheduler_svc.core.request import Request


class SequenceState(enum.IntEnum):
    """Where a sequence stands."""

    WAITING = 1
    """Never had a seat."""
    RUNNING = 2
    """Has a row and blocks."""
    FINISHING = 3
    """Every token it may have is planned: row and blocks are given back, its last result is awaited."""
    PREEMPTED = 4
    """Had a seat and waits for another: memory was short, or the worker was lost, or its step failed."""
    ENDED = 5
    SWAPPED = 6
    """As PREEMPTED, but what it has computed lies in host blocks and is copied back."""


_S = SequenceState
TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.ENDED}),
    _S.RUNNING: frozenset({_S.FINISHING, _S.PREEMPTED, _S.SWAPPED, _S.ENDED}),
    _S.FINISHING: frozenset({_S.PREEMPTED, _S.ENDED}),
    _S.PREEMPTED: frozenset({_S.RUNNING, _S.ENDED}),
    _S.SWAPPED: frozenset({_S.RUNNING, _S.PREEMPTED, _S.ENDED}),
    _S.ENDED: frozenset(),
}
"""Every move that exists. FINISHING goes back to PREEMPTED when the step with its last token fails or is lost, SWAPPED
does when its host copy is."""

_WAITING = frozenset({_S.WAITING, _S.PREEMPTED, _S.SWAPPED})
_HISTORY = 8


class ForbiddenTransition(Exception):
    """A move that TRANSITIONS does not have: a bug of ours."""


class SequenceEnd(msgspec.Struct, frozen=True):
    """How a choice ended; what its Finished says."""

    reason: FinishReason
    num_tokens: int
    ended_ns: int
    stop_token_id: int | None = None
    failure_reason: str = ""
    failure_message: str = ""
    retry_after_ns: int | None = None


class Sequence:
    """One choice. Fields beyond its state are written by the module that owns the matter; see each."""

    __slots__ = (
        "base",
        "blocked_ns",
        "blocks",
        "boarded_step",
        "border_step",
        "choice",
        "column_index",
        "computed",
        "confirmed_at",
        "end",
        "ending_step",
        "first_token_ns",
        "gave_way_step",
        "history",
        "host_blocks",
        "last_step",
        "num_chunks",
        "num_indexed",
        "num_rode",
        "num_swaps",
        "output_logprobs",
        "outputs",
        "pending_input",
        "planned_at",
        "preemptions",
        "request",
        "row",
        "scheduled",
        "settled_step",
        "state",
        "swapped_step",
        "swapped_tokens",
        "tail_hashes",
        "token_step",
    )

    def __init__(self, request: "Request", choice: int, outputs: "array[int]") -> None:
        self.request = request
        self.choice = choice
        self.state = SequenceState.WAITING
        self.history = bytes((SequenceState.WAITING,))
        self.outputs = outputs
        """Output ids confirmed and settled; the newest may still lie in columns."""
        self.output_logprobs: list[front.DeltaLogprobs] | None = None
        self.first_token_ns: int | None = None
        self.end: SequenceEnd | None = None
        # memory
        self.blocks: array[int] = array("I")
        self.tail_hashes = b""
        """Hashes of full blocks beyond the prompt's own full blocks."""
        self.host_blocks: array[int] | None = None
        """While SWAPPED: where its blocks lie, in order."""
        self.swapped_tokens = 0
        """Of which so many tokens are computed."""
        self.swapped_step = 0
        """The step whose plan copied them there."""
        self.num_indexed = 0
        """Leading blocks that were offered to the prefix index since boarding."""
        self.pending_input = 0
        """Prompt tokens that its tenant will be charged for."""
        # seat and step
        self.row: int | None = None
        self.scheduled = 0
        self.computed = 0
        self.boarded_step = 0
        self.last_step = 0
        """The last planned step that held it; exact once it has left the column."""
        self.token_step = 0
        """The last planned step that gave it a token; exact once it has left the column."""
        self.gave_way_step = 0
        """The step in whose plan it gave way; it does not board in that same plan."""
        self.blocked_ns: int | None = None
        """While it waits: when a plan first had no room for it."""
        self.base: int | None = None
        """While decoding: `scheduled` less the last step planned."""
        self.planned_at: int | None = None
        """Position in the column of the last plan."""
        self.border_step = 0
        """The step that needs a new block for it."""
        self.ending_step = 0
        """The first step without it, once that is known."""
        # results
        self.confirmed_at: int | None = None
        """Position in the column of the next result."""
        self.settled_step = 0
        """Columns before this step's are in `outputs`."""
        self.column_index: int | None = None
        """Index in its gateway's column."""
        # account
        self.preemptions = 0
        self.num_swaps = 0
        """Preemptions that kept what was computed."""
        self.num_chunks = 0
        """Completed steps in which it rode outside the decode column."""
        self.num_rode = 0
        """Completed steps in which it rode; exact when settled."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the queue."""
        return self.state in _WAITING

    @property
    def has_run(self) -> bool:
        """Whether it waits for another seat."""
        return self.state is SequenceState.PREEMPTED or self.state is SequenceState.SWAPPED

    @property
    def is_finishing(self) -> bool:
        """Whether only its last result is awaited."""
        return self.state is SequenceState.FINISHING

    @property
    def is_ended(self) -> bool:
        """Whether it has its end."""
        return self.state is SequenceState.ENDED

    @property
    def num_known(self) -> int:
        """Prompt and settled output tokens."""
        return self.request.prompt_len + len(self.outputs)

    def length_left(self, planned: int) -> int:
        """Output tokens until its length ends it, where `planned` is the last step planned."""
        known = len(self.outputs) if self.base is None else self.base + planned + 1 - self.request.prompt_len
        return self.request.output_limit - known

    def move(self, to: SequenceState) -> None:
        """Changes state. Raises ForbiddenTransition, with the recent history, where the table has no such move."""
        if to not in TRANSITIONS[self.state]:
            past = " ".join(SequenceState(code).name for code in self.history)
            raise ForbiddenTransition(f"request {self.request.number} choice {self.choice}: {past} then {to.name}")
        self.state = to
        self.history = (self.history + bytes((to,)))[-_HISTORY:]
