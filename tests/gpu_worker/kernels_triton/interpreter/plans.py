"""Random plans as a scheduler makes them: rows board, prefill in chunks, decode, fork by copy, leave, and are
swapped out and in.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, Plan
from tests.gpu_worker.kernels_triton.interpreter.tiny_decoder import LIMITS

EPOCH = 7
_KINDS = [
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=5, stop_token_ids=(3, 4), ignore_eos=True),
    SamplingParams(temperature=0.8, seed=6, top_k=20, top_p=0.9, logprobs=2),
    SamplingParams(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.3, logprobs=4, prompt_logprobs=1),
    SamplingParams(temperature=1.2, seed=7, presence_penalty=0.4, min_tokens=3, logit_bias=((9, 2.0),)),
    SamplingParams(temperature=0.0, logprobs=6),
]


@dataclass
class Row:
    """What the generator knows of a row."""

    known: int
    computed: int
    blocks: list[int]


@dataclass
class PlanMaker:
    """Makes plans that follow each other. Counts only: no value that a step computes is needed."""

    seed: int
    step: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    boarded: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._free = list(range(LIMITS.num_blocks))
        self._random.shuffle(self._free)
        self._free_on_host = list(range(LIMITS.num_host_blocks))
        self._swapped: list[Row] = []

    def next(self, *, reset: bool = False) -> Plan:
        """The next plan; with `reset` all rows that live are boarded again by `snapshot` of the caller."""
        self.step += 1
        left = [row for row, held in self.rows.items() if held.known > 60 or self._random.random() < 0.08]
        swap_out = [pair for row in left for pair in self._leave(row)]
        swap_in: list[int] = []
        boarded, copies = self._board(swap_in)
        appended: list[int] = []
        decodes, chunks, budget = [], [], 40
        for row, held in self.rows.items():
            gap = held.known - held.computed
            count = 1 if gap == 1 else min(gap, budget, self._random.randint(6, 30))
            if not count or self._random.random() < 0.1:
                continue
            budget -= count
            while len(held.blocks) * LIMITS.block_size < held.computed + count:
                held.blocks.append(self._free.pop())
                appended += [row, held.blocks[-1]]
            if gap == 1:
                decodes.append(row)
            else:
                chunks += [row, count]
            held.computed += count
            held.known += held.computed == held.known
        return Plan(
            EPOCH,
            self.step,
            reset,
            left=_pack(left),
            boarded=tuple(boarded),
            appended=_pack(appended),
            swap_out=_pack(swap_out),
            swap_in=_pack(swap_in),
            copies=_pack(copies),
            decode=_pack(decodes),
            chunks=_pack(chunks),
        )

    def _leave(self, row: int) -> list[int]:
        held = self.rows.pop(row)
        self._free += held.blocks
        if len(held.blocks) > len(self._free_on_host) or not held.computed:
            return []
        host_blocks = [self._free_on_host.pop() for _ in held.blocks]
        self._swapped.append(Row(held.known, held.computed, host_blocks))
        return [item for pair in zip(held.blocks, host_blocks, strict=True) for item in pair]

    def _swap_in(self, num_tokens: int, swap_in: list[int]) -> tuple[list[int], int]:
        """Blocks and tokens computed of what was swapped out, for another sequence: nonsense as text, see below."""
        held = self._swapped.pop(0)
        blocks = [self._free.pop() for _ in held.blocks]
        swap_in += [item for pair in zip(held.blocks, blocks, strict=True) for item in pair]
        self._free_on_host += held.blocks
        return blocks, min(held.computed, num_tokens - 1)

    def _board(self, swap_in: list[int]) -> tuple[list[BoardedRow], list[int]]:
        boarded: list[BoardedRow] = []
        copies: list[int] = []
        # Steps that only decode come between: they are the ones that take graphs.
        if self.rows and self._random.random() < 0.6:
            return boarded, copies
        for row in range(LIMITS.max_num_seqs):
            if row in self.rows or self._random.random() < 0.4:
                continue
            params = _KINDS[self.boarded % len(_KINDS)]
            self.boarded += 1
            tokens = np.array([self._random.randrange(140) for _ in range(self._random.randint(1, 40))])
            # Some come back after they were preempted: part of what they hold is output.
            prompt_len = len(tokens) if self._random.random() < 0.6 else self._random.randint(1, len(tokens))
            held = Row(len(tokens), 0, [])
            donor = next((other for other in self.rows.values() if other.computed >= 16 and len(tokens) > 16), None)
            if self._swapped and len(tokens) > 1:
                held.blocks, held.computed = self._swap_in(len(tokens), swap_in)
            elif donor is not None:
                # The KV of another's first page, copied: nonsense as text, and the same nonsense on both sides.
                held.blocks, held.computed = [self._free.pop()], 16
                copies += [donor.blocks[0], held.blocks[0]]
            self.rows[row] = held
            blocks = _pack(held.blocks)
            boarded.append(BoardedRow(row, _pack(tokens.tolist()), prompt_len, held.computed, blocks, 0, params))
        return boarded, copies


def _pack(values: list[int]) -> bytes:
    return np.array(values, "<u4").tobytes()
