"""Every sampling option against its definition, and the promise that a row's result is its own."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from chairlift.ipc.common import SamplingParams
from gpu_worker.sampling import choose
from gpu_worker.sampling.filters import SortedLogits, thresholds
from gpu_worker.sampling.rows import DeviceColumns

VOCAB = 700
GREEDY = SamplingParams(temperature=0.0)
MIXED = (
    GREEDY,
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7, top_k=20),
    SamplingParams(seed=3, top_p=0.8),
    SamplingParams(seed=4, top_k=600, top_p=0.99999),
    SamplingParams(seed=5, min_p=0.1),
    SamplingParams(seed=6, temperature=1.5, top_k=50, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
    SamplingParams(seed=8, presence_penalty=1.0, frequency_penalty=-0.5),
    SamplingParams(seed=9, logit_bias=((3, 4.0), (699, -100.0)), logprobs=3),
    SamplingParams(temperature=0.0, min_tokens=4, stop_token_ids=(10, 11), logprobs=0),
    SamplingParams(seed=11, temperature=3.0, min_tokens=2, repetition_penalty=0.8, logprobs=7),
)


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def boarded(new_driver: Any) -> Any:
    driver = new_driver(VOCAB)
    for row, params in enumerate(MIXED):
        driver.board(row, params, prompt=[row, 5, 5, 9], output=[row + 1, 7, 7, 7])
    return driver


def test_a_row_does_not_depend_on_its_neighbours(new_driver: Any) -> None:
    """Alone, in any order and in any company the same tokens and the same log-probabilities, bit for bit."""
    logits = random_logits(len(MIXED)).bfloat16().float()  # as a bfloat16 model gives them: full of ties
    together = boarded(new_driver).sample(logits, list(range(len(MIXED))))
    alone = [boarded(new_driver).sample(logits[row : row + 1], [row]) for row in range(len(MIXED))]
    assert together.token_ids.tolist() == [int(result.token_ids) for result in alone]
    order = [7, 2, 11, 0, 9, 4]
    assert boarded(new_driver).ids(logits[order], order) == together.token_ids[order].tolist()
    found = {
        int(i): (ids, lps)
        for part in together.logprobs
        for i, ids, lps in zip(part.indices, part.token_ids, part.logprobs, strict=True)
    }
    assert sorted(found) == [9, 10, 11]
    for row, (ids, logprobs) in found.items():
        (part,) = alone[row].logprobs
        assert part.token_ids[0].tolist() == ids.tolist()
        assert part.logprobs[0].tobytes() == logprobs.tobytes()


def test_greedy_takes_the_first_of_equals(new_driver: Any) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [40, 30]] = 5.0
    driver = new_driver(VOCAB)
    driver.board(0, GREEDY)
    driver.board(1, SamplingParams(temperature=1e-50))
    assert driver.ids(logits, [0, 1]) == [30, 0]


def test_tiny_temperature_is_nearly_greedy(new_driver: Any) -> None:
    driver = new_driver(VOCAB)
    for row, temperature in enumerate((1e-30, 1e-10, 1e-3)):
        driver.board(row, SamplingParams(temperature=temperature, top_p=0.9, seed=row))
    logits = random_logits(1).repeat(3, 1)
    assert set(driver.ids(logits, [0, 1, 2])) == {int(logits[0].argmax())}


def test_samples_follow_the_softmax(new_driver: Any) -> None:
    """Chi-square over 4,000 draws at successive offsets of one seed, filtered and not."""
    logits = random_logits(1, vocab=12, spread=1.0)
    for params in (SamplingParams(seed=77, temperature=0.8), SamplingParams(seed=78, top_k=6)):
        driver = new_driver(12)
        driver.board(0, params)
        ids = [driver.ids(logits.expand(50, -1), [0] * 50, list(range(k, k + 50))) for k in range(0, 4000, 50)]
        counts = torch.bincount(torch.tensor(ids).flatten(), minlength=12)
        kept = logits[0] >= (logits[0].topk(6).values[-1] if params.top_k else -100.0)
        wanted = torch.softmax((logits[0] / params.temperature).masked_fill(~kept, float("-inf")), 0) * 4000
        assert counts[~kept].sum() == 0
        chi_square = ((counts - wanted)[kept].square() / wanted[kept]).sum()
        assert chi_square < 36  # 11 degrees of freedom at most: exceeded once in 5,000 seeds


def test_seed_choice_and_offset_each_change_the_sample(new_driver: Any) -> None:
    driver = new_driver(VOCAB)
    logits = torch.zeros(1, VOCAB)
    draws = set()
    for row, (seed, choice, offset) in enumerate(
        ((1, 0, 0), (2, 0, 0), (1 + (1 << 32), 0, 0), (1, 1, 0), (1, 0, 1), ((1 << 64) - 1, 0, 0))
    ):
        driver.board(row, SamplingParams(seed=seed), choice=choice)
        draws.add(driver.ids(logits, [row], [offset])[0])
    assert len(draws) == 6


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=1),
        SamplingParams(top_k=40),
        SamplingParams(top_k=650),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.95),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=0.6, top_k=100, top_p=0.7),
        SamplingParams(temperature=1.8, top_k=600, top_p=0.9, min_p=0.01),
    ],
)
def test_filters_keep_what_transformers_keeps(params: SamplingParams) -> None:
    logits = random_logits(1, seed=9)
    warpers: list[Any] = [TemperatureLogitsWarper(params.temperature)] if params.temperature != 1 else []
    warpers += [TopKLogitsWarper(params.top_k)] if params.top_k else []
    warpers += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    warpers += [MinPLogitsWarper(params.min_p)] if params.min_p else []
    wanted = LogitsProcessorList(warpers)(torch.zeros(1, 0, dtype=torch.int64), logits.clone())  # type: ignore[arg-type]
    scaled = (logits - logits.max()) / params.temperature
    columns = DeviceColumns(
        torch.tensor([[params.temperature, params.top_p, params.min_p, 1, 0, 0]]),
        torch.tensor([[params.top_k, 0, 0, 0]], dtype=torch.int32),
    )
    ordered = scaled.sort(dim=1, descending=True).values
    threshold = thresholds(SortedLogits(ordered, scaled.exp().sum(1), VOCAB), columns)
    assert ((scaled >= threshold[:, None]) == torch.isfinite(wanted)).all()


@pytest.mark.parametrize("decimals", [7, 0])
def test_candidates_give_what_a_full_sort_gives(decimals: int) -> None:
    """The short way must agree with the long one, most of all where equal logits lie across its end."""
    rng = np.random.default_rng(5)
    rows = 64
    logits = torch.round(random_logits(rows, seed=2, vocab=2000, spread=2.0), decimals=decimals)
    floats = torch.tensor(
        np.stack(
            [rng.choice([0.3, 1.0, 4.0], rows), rng.choice([0.4, 0.9, 0.999, 1.0], rows),
             rng.choice([0.0, 0.0, 0.05], rows), np.ones(rows), np.zeros(rows), np.zeros(rows)], axis=1
        ),
        dtype=torch.float32,
    )  # fmt: skip
    integers = torch.tensor(rng.integers(0, 2**31, (rows, 4)), dtype=torch.int32)
    integers[:, 0] = torch.tensor(rng.choice([0, 1, 50, 511, 512, 513, 1999, 3000], rows))
    params = DeviceColumns(floats, integers)
    keys = choose._keys(params, torch.arange(rows, dtype=torch.int32))
    scaled = choose._scale(logits, params)
    short = choose._sample_filtered(scaled, params, keys)
    assert torch.equal(short, choose._sample_sorted(scaled, params, keys))


def test_penalties_against_transformers_and_the_formula(new_driver: Any) -> None:
    logits = random_logits(1)
    prompt, output = [5, 5, 9], [7, 7, 7, 12]
    driver = new_driver(VOCAB)
    driver.board(0, SamplingParams(temperature=0, repetition_penalty=1.4), prompt, output)
    driver.board(1, SamplingParams(temperature=0, presence_penalty=0.7, frequency_penalty=0.25), prompt, output)
    driver.board(2, SamplingParams(temperature=0))  # a row without penalties between those that have
    rows = np.array([1, 0])
    columns = driver.rows.device_columns(torch.from_numpy(rows))
    found = driver.counters.apply(logits.repeat(2, 1), rows, columns)
    repeated = RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([prompt + output]), logits.clone())
    assert torch.equal(found[1], repeated[0])
    wanted = logits[0].clone()
    wanted[7] -= 0.7 + 3 * 0.25
    wanted[12] -= 0.7 + 0.25
    assert torch.allclose(found[0], wanted)


def test_penalty_counters_advance_with_what_is_sampled(new_driver: Any) -> None:
    """A frequency penalty pushes the favourite down until the next one takes over, without any plan saying so."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = 3.0, 1.5
    driver = new_driver(VOCAB)
    driver.board(4, SamplingParams(temperature=0, frequency_penalty=1.0), prompt=[8, 8, 8, 8])
    assert [driver.ids(logits, [4], [offset])[0] for offset in range(4)] == [8, 8, 9, 8]


def test_a_resumed_row_counts_as_if_never_interrupted(new_driver: Any) -> None:
    params = SamplingParams(seed=3, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3)
    logits = [random_logits(1, seed=step) for step in range(12)]
    whole = new_driver(VOCAB)
    whole.board(0, params, prompt=[1, 2, 3])
    wanted = [whole.ids(logits[step], [0], [step])[0] for step in range(12)]
    resumed = new_driver(VOCAB)
    resumed.board(5, params, prompt=[1, 2, 3], output=wanted[:6])
    assert [resumed.ids(logits[step], [5], [step])[0] for step in range(6, 12)] == wanted[6:]


def test_penalty_slots_are_reused_and_start_empty(new_driver: Any) -> None:
    driver = new_driver(VOCAB, num_rows=3)
    penalised = SamplingParams(temperature=0, presence_penalty=2.0)
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 1.0
    for _ in range(4):
        for row in range(3):
            driver.board(row, penalised, output=[5])
            assert driver.ids(logits, [row], [1]) != [5]
    driver.counters.clear()
    for row in range(3):
        driver.board(row, penalised)
        assert driver.ids(logits, [row]) == [5]


def test_bias_is_added_and_forgotten_with_its_row(new_driver: Any) -> None:
    logits = random_logits(1)
    best = int(logits.argmax())
    driver = new_driver(VOCAB)
    bias = tuple((token, 100.0 if token == 299 else -100.0) for token in range(300))
    driver.board(0, SamplingParams(temperature=0, logit_bias=bias))
    driver.board(1, SamplingParams(temperature=0, logit_bias=((best, -100.0),)))
    assert driver.ids(logits.repeat(2, 1), [0, 1])[0] == 299
    assert driver.ids(logits, [1]) != [best]
    driver.board(0, GREEDY)
    assert driver.ids(logits, [0]) == [best]


def test_min_tokens_masks_end_ids_until_then(new_driver: Any) -> None:
    """EOS and stop ids cannot come before min_tokens; with ignore_eos, EOS is no end and may."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 30], logits[0, 31] = 9.0, 8.0, 7.0
    driver = new_driver(VOCAB, eos=(2, 3))
    driver.board(0, SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(30,)))
    driver.board(1, SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(30,), ignore_eos=True))
    driver.board(2, SamplingParams(temperature=0, min_tokens=2, stop_token_ids=tuple(range(3, 31))))
    assert [driver.ids(logits, [0], [offset])[0] for offset in range(4)] == [31, 31, 2, 2]
    assert driver.ids(logits.repeat(3, 1), [0, 1, 2], [1, 1, 1]) == [31, 2, 31]


def test_end_kinds(new_driver: Any) -> None:
    rows = new_driver(VOCAB, eos=(2, 3)).rows
    rows.set(0, SamplingParams(stop_token_ids=(10, 3)), 0)
    rows.set(1, SamplingParams(stop_token_ids=(10, 3), ignore_eos=True), 0)
    rows.set(2, SamplingParams(stop_token_ids=tuple(range(20, 60))), 0)
    where = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    ids = np.array([2, 10, 3, 2, 10, 3, 59, 10])
    assert rows.end_kinds(where, ids).tolist() == [1, 2, 1, 0, 2, 2, 2, 0]


def test_logprobs_are_those_of_the_model(new_driver: Any) -> None:
    """Before bias, penalties, masks and temperature; the token first, then the most likely."""
    logits = random_logits(2)
    wanted = torch.log_softmax(logits, dim=1)
    driver = new_driver(VOCAB)
    driver.board(0, SamplingParams(seed=4, temperature=5.0, logit_bias=((50, 100.0),), logprobs=4))
    driver.board(1, SamplingParams(temperature=0, logprobs=0))
    result = driver.sample(logits, [0, 1])
    parts = {int(part.indices[0]): part for part in result.logprobs}
    assert parts[0].token_ids[0].tolist() == [50, *wanted[0].topk(4).indices.tolist()]
    assert parts[0].logprobs[0] == pytest.approx([float(wanted[0, 50]), *wanted[0].topk(4).values.tolist()])
    assert parts[1].token_ids.tolist() == [[int(logits[1].argmax())]]
    assert parts[1].logprobs.dtype == np.float32


def test_more_alternatives_than_tokens(new_driver: Any) -> None:
    driver = new_driver(8)
    driver.board(0, SamplingParams(temperature=0, logprobs=20))
    (part,) = driver.sample(random_logits(1, vocab=8), [0]).logprobs
    assert part.token_ids.shape == (1, 9)


def test_a_row_with_nan_is_named_and_its_neighbours_go_on(new_driver: Any) -> None:
    logits = random_logits(len(MIXED))
    wanted = boarded(new_driver).ids(logits, list(range(len(MIXED))))
    for broken in range(len(MIXED)):
        spoilt = logits.clone()
        spoilt[broken, 640] = float("nan")
        found = boarded(new_driver).ids(spoilt, list(range(len(MIXED))))
        assert found == [choose.NO_TOKEN if row == broken else token for row, token in enumerate(wanted)]
