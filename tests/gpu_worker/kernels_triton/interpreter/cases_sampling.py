"""Noise, filters, penalties and tokens on the device against `gpu_worker.sampling`, which defines them."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from chairlift.ipc.common import SamplingParams
from gpu_worker.cuda_runner.packing import BoardingWords, Upload
from gpu_worker.kernels.triton import row_state
from gpu_worker.kernels.triton.device.noise import gumbel, row_keys
from gpu_worker.kernels.triton.plan import apply_plan, apply_plan_reference, count_tokens, count_tokens_reference
from gpu_worker.kernels.triton.row_state import NUM_KNOWN, PROMPT_LEN, RowState, RowStateShape
from gpu_worker.kernels.triton.sampling import SampledRows, sample
from gpu_worker.sampling import noise
from gpu_worker.sampling.penalties import PenaltyCounters
from gpu_worker.sampling.rows import Needs, SamplingRows
from gpu_worker.sampling.sampler import Sampled, Sampler

CPU = torch.device("cpu")
VOCAB = 9001
"""Two parts of the last pass, both of them with lanes past the end."""
EOS = 7
NUM_ROWS = 24

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=11),
    SamplingParams(temperature=0.7, seed=2**64 - 3, top_k=40),
    SamplingParams(temperature=1.3, seed=5, top_p=0.9),
    SamplingParams(temperature=0.9, seed=6, top_k=50, top_p=0.8),
    SamplingParams(temperature=1.0, seed=7, min_p=0.05),
    SamplingParams(temperature=1e-4, seed=8, top_p=0.5, top_k=3),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
    SamplingParams(temperature=1.1, seed=9, repetition_penalty=0.8, frequency_penalty=-0.5, top_k=20),
    SamplingParams(temperature=0.0, logit_bias=((3, 60.0), (8999, 61.0)), logprobs=3),
    SamplingParams(temperature=0.8, seed=10, min_tokens=30, stop_token_ids=(1, 2, 4000), logprobs=0),
    SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(5,), logprobs=5),
    SamplingParams(temperature=2.0, seed=12, top_k=1),
    SamplingParams(temperature=1.0, seed=13, top_p=0.0),
]


def sampling_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and check of each case; a check returns an error figure or raises."""
    yield "columns and bits are the reference's", _check_columns
    yield "noise: uniform bits exact, Gumbel to 1e-6", _check_noise
    yield f"tokens of {len(PARAMS)} kinds of rows, two steps", partial(_check_tokens, 1, 2)
    yield "NaN, infinities, ties and masks", _check_odd_rows


@triton.jit  # type: ignore[untyped-decorator] # Triton brings no types
def noise_kernel(seeds_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803 - a constant
    """One program: the noise of BLOCK tokens."""
    key0, key1 = row_keys(tl.load(seeds_ptr), tl.load(seeds_ptr + 1), tl.load(seeds_ptr + 2), tl.load(seeds_ptr + 3))
    token = tl.arange(0, BLOCK)
    tl.store(out_ptr + token, gumbel(key0, key1, token))


def one_step_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """What finds nearly every bug of sampling in half the time."""
    yield "noise", _check_noise
    yield "tokens of one step", partial(_check_tokens, 1, 1)


def _check_columns() -> float:
    """The kernels have numbers of their own for what the reference calls by name."""
    bits = (row_state.RANDOM, row_state.FILTER, row_state.PENALTIES, row_state.BIAS, row_state.MASKS_ENDS)
    assert bits == (Needs.RANDOM, Needs.FILTER, Needs.PENALTIES, Needs.BIAS, Needs.MIN_TOKENS)
    return 0.0


def _check_noise() -> float:
    worst = 0.0
    for seed, choice, offset in ((0, 0, 0), (2**63 + 17, 3, 131_071), (2**64 - 1, 2**31 - 1, 9)):
        low, high = np.array([seed], "<u8").view("<i4").tolist()
        keys = torch.tensor([low, high, choice, offset], dtype=torch.int32)
        found = torch.empty(1 << 16)
        noise_kernel[(1,)](keys, found, BLOCK=1 << 16)
        wanted = noise.gumbel(noise.row_keys(*keys[:, None]), torch.arange(1 << 16, dtype=torch.int32))[0]
        worst = max(worst, float((found - wanted).abs().max()))
    assert worst < 2e-6, f"noise is off by {worst}"
    return worst


class Twin:
    """The same rows twice: in the device's state and in the reference sampler."""

    def __init__(self, params: list[SamplingParams], seed: int) -> None:
        self.state = RowState(RowStateShape(NUM_ROWS, 64, 4, 8, VOCAB), CPU)
        self.rows = SamplingRows(NUM_ROWS, (EOS,), CPU)
        counters = PenaltyCounters(NUM_ROWS, VOCAB, CPU)
        self.reference = Sampler(self.rows, counters)
        self.used = np.random.default_rng(seed).permutation(NUM_ROWS)[: len(params)]
        self.offsets = np.zeros(len(params), np.int64)
        upload = Upload(self.state)
        generator = np.random.default_rng(seed)
        for index, (row, wanted) in enumerate(zip(self.used.tolist(), params, strict=True)):
            tokens = generator.integers(0, VOCAB, 20)
            # Repeats, so that counts above 1 occur.
            tokens[12:15] = tokens[11]
            prompt_len = 8 + index % 4
            self.offsets[index] = len(tokens) - prompt_len
            self.rows.set(row, wanted, choice=index)
            ends = tuple(int(token) for token in self.rows.end_ids[row] if token >= 0)
            needs = Needs(int(self.rows.needs[row]))
            upload.add_boarding(BoardingWords(row, tokens, prompt_len, np.array([1, 2]), index, wanted, needs, ends))
            if needs & Needs.PENALTIES:
                counters.add(row, torch.tensor(tokens[:prompt_len]), torch.tensor(tokens[prompt_len:]))
        self._apply(upload)

    def _apply(self, upload: Upload) -> None:
        # So small that the upload goes in several parts and some run in pieces.
        staging = np.full(150, -1, np.int32)
        words = torch.from_numpy(staging)
        num_parts = 0
        while (part := upload.write(staging)) is not None:
            num_parts += 1
            untouched = self.state.arena.clone()
            apply_plan(words, self.state, part.num_runs, part.longest)
            found = self.state.arena.clone()
            self.state.arena.copy_(untouched)
            apply_plan_reference(words, self.state, part.num_runs)
            assert torch.equal(found, self.state.arena), "the plan was applied wrongly"
        assert num_parts > 1
        penalised = torch.from_numpy(np.flatnonzero(self.rows.needs & Needs.PENALTIES)).int()
        self.state.counts.fill_(3)
        count_tokens(penalised, self.state, 20)
        counted = self.state.counts.clone()
        count_tokens_reference(penalised, self.state)
        assert torch.equal(counted, self.state.counts), "tokens were counted wrongly"

    def adjusted(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits after masks, bias and penalties, from the definitions and the device's ids."""
        wanted = logits.double()
        for place, row in enumerate(self.used.tolist()):
            params = PARAMS[place]
            known, prompt_len = int(self.state.integers[row, NUM_KNOWN]), int(self.state.integers[row, PROMPT_LEN])
            ids = self.state.tokens[row, :known].long()
            if known - prompt_len < params.min_tokens:
                wanted[place, torch.tensor((*params.stop_token_ids, EOS))] = float("-inf")
            for token, value in params.logit_bias:
                wanted[place, token] += value
            x, seen = wanted[place], ids.unique()
            factor = torch.where(x[seen] > 0, 1 / params.repetition_penalty, params.repetition_penalty)
            x[seen] = x[seen] * factor
            counts = torch.bincount(ids[prompt_len:], minlength=VOCAB)
            x -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        return wanted

    def sample(self, logits: torch.Tensor) -> tuple[SampledRows, Sampled]:
        """One step of both, with a padding row between the others on the device."""
        found = SampledRows.make(len(self.used) + 1, VOCAB, 5, CPU)
        rows = torch.from_numpy(np.concatenate((self.used[:3], [-1], self.used[3:]))).int()
        padded = torch.cat((logits[:3], torch.full((1, VOCAB), float("nan")), logits[3:]))
        before = padded.clone()
        sample(padded, rows, self.state, found)
        assert torch.equal(padded.nan_to_num(), before.nan_to_num()), "the logits were changed"
        wanted = self.reference.sample(logits.clone(), self.used, self.offsets)
        self.offsets += 1
        return found, wanted


def _without_padding(values: torch.Tensor) -> torch.Tensor:
    return torch.cat((values[:3], values[4:]))


def _check_tokens(seed: int, num_steps: int) -> float:
    """Several steps, so that the state each leaves is what the next one needs."""
    twin = Twin(PARAMS, seed)
    generator = torch.Generator().manual_seed(seed)
    worst = 0.0
    for _ in range(num_steps):
        logits = torch.randn(len(PARAMS), VOCAB, generator=generator) * 3
        adjusted = twin.adjusted(logits)
        found, wanted = twin.sample(logits)
        _check_adjusted(twin, found, adjusted)
        _check_kept(found, adjusted)
        tokens = _without_padding(found.token_ids)
        assert tokens.tolist() == wanted.token_ids.tolist(), f"{tokens.tolist()} != {wanted.token_ids.tolist()}"
        assert int(found.token_ids[3]) == -2
        for place, row in enumerate(twin.used.tolist()):
            known = int(twin.state.integers[row, NUM_KNOWN])
            assert int(twin.state.tokens[row, known - 1]) == int(tokens[place])
        worst = max(worst, _logprob_error(found, wanted))
    return worst


def _check_adjusted(twin: Twin, found: SampledRows, wanted: torch.Tensor) -> None:
    adjusted = _without_padding(found.adjusted)
    for place, row in enumerate(twin.used.tolist()):
        if int(twin.rows.needs[row]) & int(Needs.PENALTIES | Needs.BIAS | Needs.MIN_TOKENS):
            torch.testing.assert_close(adjusted[place].double(), wanted[place], rtol=1e-5, atol=1e-5)


def _check_kept(found: SampledRows, adjusted: torch.Tensor) -> None:
    """The tokens that top_k, top_p and min_p leave."""
    threshold = _without_padding(found.threshold)
    for place, params in enumerate(PARAMS):
        if params.temperature == 0 or (params.top_k == 0 and params.top_p == 1 and params.min_p == 0):
            continue
        scaled = (adjusted[place] - adjusted[place].max()) / float(np.float32(params.temperature))
        values = scaled.sort(descending=True).values.clone()
        limit = params.top_k or VOCAB
        mass = values.exp()[:limit].cumsum(0)
        last = limit - 1
        if params.top_p < 1:
            last = int((mass < float(np.float32(params.top_p)) * mass[-1]).sum())
        lowest = max(float(values[last]), math.log(params.min_p) if params.min_p else -math.inf)
        wanted = int((scaled >= lowest - 1e-9).sum())
        kept = int((scaled.float() >= threshold[place] - 1e-6).sum())
        assert abs(kept - wanted) <= wanted // 1000, f"{kept} tokens kept, wanted {wanted}: {params}"


def _logprob_error(found: SampledRows, wanted: Sampled) -> float:
    chosen, ids, values = map(_without_padding, (found.logprobs, found.top_ids, found.top_logprobs))
    worst = 0.0
    asked = 0
    for part in wanted.logprobs:
        for index, token_ids, logprobs in zip(part.indices.tolist(), part.token_ids, part.logprobs, strict=True):
            count = len(token_ids) - 1
            assert ids[index, :count].tolist() == token_ids[1:].tolist()
            mine = torch.cat((chosen[index, None], values[index, :count]))
            worst = max(worst, float((mine - torch.from_numpy(logprobs)).abs().max()))
            asked += 1
    assert asked == sum(params.logprobs is not None for params in PARAMS)
    assert worst < 1e-4, f"log-probabilities are off by {worst}"
    return worst


def _check_odd_rows() -> float:
    infinity = float("inf")
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=2, top_k=2),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=3),
    ]
    twin = Twin(params, 3)
    logits = torch.zeros(len(params), VOCAB)
    logits[0, 17] = float("nan")
    logits[1, 8999] = float("nan")
    # All alike: greedy takes the lowest id, top_k keeps every tie.
    logits[4] = -infinity
    logits[5, 4] = infinity
    found, wanted = twin.sample(logits)
    tokens = _without_padding(found.token_ids).tolist()
    assert tokens == wanted.token_ids.tolist(), f"{tokens} != {wanted.token_ids.tolist()}"
    assert tokens[:3] == [-1, -1, 0]
    return 0.0
