"""A step: the draft of a plan while it is made, and what is remembered of it while it is in flight."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from chairlift.ipc import device
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core.cost_model import StepShape
from scheduler_svc.core.sequence import Sequence


class Transition(NamedTuple):
    """How one step's decode column differs from the one before: first some leave, then some join."""

    left: list[Sequence]
    joined: list[Sequence]


class Chunk(NamedTuple):
    """Tokens that a row computes outside the decode column."""

    sequence: Sequence
    row: int
    num_tokens: int


class Step:
    """A plan from its first line to its result."""

    __slots__ = (
        "appended",
        "boarded",
        "bordered",
        "chunks",
        "copies",
        "decode",
        "finals",
        "indexed",
        "is_snapshot",
        "num_decodes",
        "number",
        "planned_ns",
        "released_host_blocks",
        "samplers",
        "shape",
        "swap_in",
        "swap_out",
        "token_budget",
        "transition",
    )

    def __init__(self, number: int, is_snapshot: bool, planned_ns: int) -> None:
        self.number = number
        self.is_snapshot = is_snapshot
        self.planned_ns = planned_ns
        self.boarded: list[Sequence] = []
        self.appended: list[tuple[Sequence, int]] = []
        self.copies: array[int] = array("I")
        self.swap_out: array[int] = array("I")
        self.swap_in: array[int] = array("I")
        self.released_host_blocks: list[int] = []
        """Read by this plan's swap-ins; its swap-outs run before them, so that only the next plan may write to them."""
        self.chunks: list[Chunk] = []
        self.decode = b""
        """Packed rows of its decode column: a row may be another's by the time the result comes."""
        self.num_decodes = 0
        self.token_budget = 0
        """Tokens that it could have."""
        self.shape = StepShape(0, 0, 0)
        self.samplers: list[Sequence] = []
        """Chunk rows that reach their end and sample, in the order of `chunks`."""
        self.finals: list[Sequence] = []
        """Sequences whose last allowed token this step samples."""
        self.bordered: list[Sequence] = []
        """Decoding sequences that have filled blocks which are due to become findable."""
        self.indexed: list[int] = []
        """Blocks made findable because this step fills them."""
        self.transition: Transition | None = None
        """Not yet applied to the confirmed column."""

    @property
    def num_swapped(self) -> int:
        """Blocks that are copied to or from the host."""
        return (len(self.swap_out) + len(self.swap_in)) // 2

    @property
    def num_sampled(self) -> int:
        """Ids that its result holds."""
        return self.num_decodes + len(self.samplers)

    def message(self, worker_epoch: int, left: bytes, decode: bytes, seated: Iterable[Sequence]) -> device.Plan:
        """The plan for the worker. `seated` is the whole batch: a snapshot boards all of it."""
        boarded: Iterable[Sequence] = self.boarded
        appended = b""
        if self.is_snapshot:
            left, boarded = b"", seated
        elif self.appended:
            appended = self._packed_appended()
        return device.Plan(
            worker_epoch=worker_epoch,
            step=self.number,
            reset=self.is_snapshot,
            left=left,
            boarded=tuple(map(_boarded_row, boarded)),
            appended=appended,
            swap_out=pack_u32(self.swap_out) if self.swap_out else b"",
            copies=pack_u32(self.copies) if self.copies else b"",
            swap_in=pack_u32(self.swap_in) if self.swap_in else b"",
            decode=decode,
            chunks=pack_u32([item for chunk in self.chunks for item in chunk[1:]]) if self.chunks else b"",
        )

    def _packed_appended(self) -> bytes:
        pairs = array("I")
        for sequence, block in self.appended:
            # One that got a block and was preempted later in this draft has no row any more.
            if sequence.row is not None:
                pairs.append(sequence.row)
                pairs.append(block)
        return pack_u32(pairs)


def _boarded_row(sequence: Sequence) -> device.BoardedRow:
    request = sequence.request
    assert sequence.row is not None
    sampling = request.sampling
    if sampling.prompt_logprobs is not None and not request.wants_prompt_logprobs:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
    return device.BoardedRow(
        row=sequence.row,
        tokens=request.prompt + pack_u32(sequence.outputs),
        prompt_len=request.prompt_len,
        computed=sequence.computed,
        blocks=pack_u32(sequence.blocks),
        choice=sequence.choice,
        sampling=sampling,
    )
