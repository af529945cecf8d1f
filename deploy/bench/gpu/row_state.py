"""Row state on the device: plans applied, step inputs gathered, tokens counted and sampled, against their references.

Sampling is compared with the host's own sampler, token by token; its logarithms may differ in the last bit, so that a
token in a hundred may be another. Needs msgspec beside torch and triton.
"""

import numpy as np
import torch

from chairlift.ipc.common import SamplingParams
from deploy.bench.gpu.machine import Machine
from deploy.bench.gpu.report import Report
from gpu_worker.cuda_runner.packing import BoardingWords, Upload
from gpu_worker.kernels.triton.plan import (
    StepRows,
    StepTokens,
    apply_plan,
    apply_plan_reference,
    count_tokens,
    count_tokens_reference,
    gather_step,
    gather_step_reference,
)
from gpu_worker.kernels.triton.row_state import RowState, RowStateShape
from gpu_worker.kernels.triton.sampling import SampledRows, sample
from gpu_worker.sampling.penalties import PenaltyCounters
from gpu_worker.sampling.rows import Needs, SamplingRows
from gpu_worker.sampling.sampler import Sampler

_CPU = torch.device("cpu")
_PROMPT, _KNOWN = 12, 40
_BLOCK = 16
_STEPS = 4
_LEAST_SAME = 0.98
_KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=11),
    SamplingParams(temperature=0.7, seed=2**64 - 3, top_k=40),
    SamplingParams(temperature=1.3, seed=5, top_p=0.9),
    SamplingParams(temperature=1.0, seed=7, min_p=0.05),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
    SamplingParams(temperature=0.8, seed=10, min_tokens=60, stop_token_ids=(1, 2), logprobs=3),
    SamplingParams(temperature=0.0, logit_bias=((3, 60.0), (99, 61.0)), logprobs=0),
)


class _Twin:
    """The same rows on the device and in the host's sampler."""

    def __init__(self, machine: Machine, seed: int) -> None:
        num_rows, self.vocab_size = (8, 600) if machine.is_dry else (64, 128256)
        self.device = machine.device
        self.state = RowState(RowStateShape(num_rows, 64, 4, 8, self.vocab_size, 0), machine.device)
        self.rows = SamplingRows(num_rows, (7,), _CPU)
        counters = PenaltyCounters(num_rows, self.vocab_size, _CPU)
        self.reference = Sampler(self.rows, counters)
        self.upload = Upload(self.state)
        generator = np.random.default_rng(seed)
        for row in range(num_rows):
            params, tokens = _KINDS[row % len(_KINDS)], generator.integers(0, self.vocab_size, _KNOWN)
            self.rows.set(row, params, row)
            needs = Needs(int(self.rows.needs[row]))
            ends = tuple(int(token) for token in self.rows.end_ids[row] if token >= 0)
            blocks = generator.integers(0, 1000, 4)
            self.upload.add_boarding(BoardingWords(row, tokens, _PROMPT, blocks, row, params, needs, ends))
            if needs & Needs.PENALTIES:
                counters.add(row, torch.from_numpy(tokens[:_PROMPT]), torch.from_numpy(tokens[_PROMPT:]))
        self.all_rows = torch.arange(num_rows, dtype=torch.int32, device=machine.device)


def check_row_state(machine: Machine, report: Report, seed: int) -> None:
    """A line a kernel; what differs is a failure."""
    twin = _Twin(machine, seed)
    with torch.inference_mode():
        for name, is_same in (
            ("apply-plan", _plan_is_applied(twin)),
            ("count-tokens", _tokens_are_counted(twin)),
            ("gather-step", _step_is_gathered(twin)),
        ):
            if is_same:
                report.add("correct", case=name, is_equal=True)
            else:
                report.fail("correct", f"{name}: differs from its reference")
        same = _same_tokens(twin, seed)
    if same >= _LEAST_SAME:
        report.add("correct", case="sampling", same_tokens=same)
    else:
        report.fail("correct", f"sampling: {same:.3f} of the tokens are the host's")


def _plan_is_applied(twin: _Twin) -> bool:
    staging = np.zeros(1 << 17, np.int32)
    part = twin.upload.write(staging)
    assert part is not None
    words, before = torch.from_numpy(staging).to(twin.device), twin.state.arena.clone()
    apply_plan(words, twin.state, part.num_runs, part.longest)
    found = twin.state.arena.clone()
    twin.state.arena.copy_(before)
    apply_plan_reference(words, twin.state, part.num_runs)
    return torch.equal(found, twin.state.arena) and twin.upload.write(staging) is None


def _tokens_are_counted(twin: _Twin) -> bool:
    twin.state.counts.fill_(3)
    count_tokens(twin.all_rows, twin.state, _KNOWN)
    found = twin.state.counts.clone()
    count_tokens_reference(twin.all_rows, twin.state)
    return torch.equal(found, twin.state.counts)


def _step_is_gathered(twin: _Twin) -> bool:
    counts = [1, 1, 1, 17, 30]
    rows = torch.tensor([2, -1, 4, 1, 5], dtype=torch.int32, device=twin.device)
    cu_q = torch.tensor([0, *counts], device=twin.device).cumsum(0).int()
    ends = torch.tensor([0, 0, 0, 20, 40], dtype=torch.int32, device=twin.device)
    step = StepRows(rows, cu_q, ends)
    found, wanted = (StepTokens.make(sum(counts), len(counts), twin.device) for _ in range(2))
    gather_step(step, twin.state, _BLOCK, max(counts), found)
    gather_step_reference(step, twin.state, _BLOCK, wanted)
    names = ("token_ids", "positions", "blocks", "offsets", "kv_lens")
    return all(torch.equal(getattr(found, name), getattr(wanted, name)) for name in names)


def _same_tokens(twin: _Twin, seed: int) -> float:
    """Share of the tokens of several steps that are those of the host; a row that once differs counts no more."""
    num_rows = len(twin.all_rows)
    found = SampledRows.make(num_rows, twin.vocab_size, 5, twin.device)
    generator = torch.Generator().manual_seed(seed)
    rows, is_followed = np.arange(num_rows), np.ones(num_rows, np.bool_)
    same = total = 0
    for step in range(_STEPS):
        logits = torch.randn(num_rows, twin.vocab_size, generator=generator) * 3
        sample(logits.to(twin.device), twin.all_rows, twin.state, found)
        offsets = np.full(num_rows, _KNOWN - _PROMPT + step)
        wanted = twin.reference.sample(logits, rows, offsets).token_ids.numpy()
        is_same = found.token_ids.cpu().numpy() == wanted
        same, total = same + int((is_same & is_followed).sum()), total + int(is_followed.sum())
        is_followed &= is_same
    return same / total
