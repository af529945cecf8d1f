"""A runner over a small model, and plans made by hand: the few rules of the link without a scheduler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, Plan, StepDone
from chairlift.ipc.tokens import pack_u32, unpack_u32
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.faults import FaultInjector
from gpu_worker.kv_cache import KvCache, KvGeometry
from gpu_worker.runner import Runner

EPOCH = 77
BLOCK_SIZE = 8
NUM_HOST_BLOCKS = 6
GREEDY = SamplingParams(temperature=0)


@dataclass
class Sequence:
    """What a scheduler would know of a row."""

    row: int
    prompt_len: int
    tokens: list[int]
    sampling: SamplingParams
    blocks: list[int]
    computed: int = 0
    choice: int = 0


@dataclass
class Planner:
    """Makes valid plans one after another and keeps books from their results."""

    runner: Runner
    num_blocks: int
    step: int = 0
    sequences: dict[int, Sequence] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    appended: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    boarded: list[Sequence] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A fixed shuffle: neighbours in a table are not neighbours in memory.
        self.free = [(17 * i) % self.num_blocks for i in range(self.num_blocks)]

    def board(
        self,
        row: int,
        tokens: list[int],
        sampling: SamplingParams = GREEDY,
        *,
        prompt_len: int | None = None,
        computed: int = 0,
        blocks: list[int] | None = None,
        choice: int = 0,
    ) -> None:
        sequence = Sequence(row, prompt_len or len(tokens), list(tokens), sampling, blocks or [], computed, choice)
        self.sequences[row] = sequence
        self.boarded.append(sequence)

    def leave(self, row: int) -> Sequence:
        sequence = self.sequences.pop(row)
        self.left.append(row)
        return sequence

    def plan(self, work: dict[int, int], *, reset: bool | None = None, **changes: Any) -> Plan:
        """The next plan. `work`: tokens to compute for each row; 1 on the newest token is a decode."""
        self.step += 1
        reset = self.step == 1 if reset is None else reset
        if reset:
            self.boarded, self.left, self.appended = list(self.sequences.values()), [], []
        boarded = [self._message(sequence) for sequence in self.boarded]
        decode, chunks = [], []
        for row, count in work.items():
            sequence = self.sequences[row]
            while len(sequence.blocks) * BLOCK_SIZE < sequence.computed + count:
                sequence.blocks.append(self.free.pop())
                self.appended += [row, sequence.blocks[-1]]
            if count == 1 and sequence.computed >= sequence.prompt_len:
                decode.append(row)
            else:
                chunks += [row, count]
        plan = Plan(
            EPOCH,
            self.step,
            reset,
            pack_u32(self.left),
            tuple(boarded),
            pack_u32(self.appended),
            copies=pack_u32(self.copies),
            decode=pack_u32(decode),
            chunks=pack_u32(chunks),
        )
        self.boarded, self.left, self.appended, self.copies = [], [], [], []
        return msgspec.structs.replace(plan, **changes)

    def run(self, work: dict[int, int], **changes: Any) -> StepDone:
        """Plans, executes, and notes the outcome."""
        plan = self.plan(work, **changes)
        result = self.runner.execute(plan)
        assert isinstance(result, StepDone), result
        self.note(plan, result)
        return result

    def note(self, plan: Plan, result: StepDone) -> None:
        ids = list(unpack_u32(result.sampled))
        chunks = list(unpack_u32(plan.chunks))
        pairs = [(row, 1) for row in unpack_u32(plan.decode)] + list(zip(chunks[::2], chunks[1::2], strict=True))
        for row, count in pairs:
            sequence = self.sequences[row]
            sequence.computed += count
            if sequence.computed == len(sequence.tokens):
                sequence.tokens.append(ids.pop(0))
        assert not ids

    def generate(self, steps: int) -> None:
        """All rows to the end of what they know, then `steps` tokens each in one batch."""
        self.run({row: len(s.tokens) - s.computed for row, s in self.sequences.items()})
        for _ in range(steps - 1):
            self.run(dict.fromkeys(self.sequences, 1))

    def outputs(self, row: int) -> list[int]:
        sequence = self.sequences[row]
        return sequence.tokens[sequence.prompt_len :]

    @staticmethod
    def _message(sequence: Sequence) -> BoardedRow:
        return BoardedRow(
            sequence.row,
            pack_u32(sequence.tokens),
            sequence.prompt_len,
            sequence.computed,
            pack_u32(sequence.blocks),
            sequence.choice,
            sequence.sampling,
        )


@pytest.fixture
def new_planner(twins: Any) -> Callable[..., Planner]:
    """A planner with a runner of its own; unowned KV is NaN."""

    def make(architecture: str = "qwen2", num_blocks: int = 61, faults: FaultInjector | None = None) -> Planner:
        model = twins(architecture).ours
        limits = BatchLimits(
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=200,
            vocab_size=model.config.vocab_size,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            num_host_blocks=NUM_HOST_BLOCKS,
        )
        geometry = KvGeometry.of(model.config, BLOCK_SIZE, torch.float32)
        cache = KvCache(geometry, num_blocks, torch.device("cpu"))
        cache.poison(torch.arange(num_blocks))
        return Planner(Runner(model.new_decoder(limits), cache, limits, EPOCH, faults), num_blocks)

    return make


@pytest.fixture
def greedy_reference(twins: Any) -> Callable[[str, list[int], int], list[int]]:
    """Greedy continuation by transformers, without a cache."""

    def generate(architecture: str, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(twins(architecture).reference_logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    return generate


def as_floats(packed: bytes) -> list[float]:
    values: list[float] = np.frombuffer(packed, "<f4").tolist()
    return values


@pytest.fixture
def floats() -> Callable[[bytes], list[float]]:
    return as_floats
