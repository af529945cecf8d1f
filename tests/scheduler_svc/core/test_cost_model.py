"""The cost model finds what a device costs, and is fooled neither by stalls nor by a slow start."""

import random

import pytest

from scheduler_svc.core.cost_model import CostModel, StepCosts, StepShape

TRUTH = StepCosts(fixed=5e6, decode_row=20_000.0, prefill_token=45_000.0, kv_token=1.5)


def some_shape(chance: random.Random) -> StepShape:
    num_decodes = chance.randrange(200)
    num_prefill = chance.choice([0, 0, chance.randrange(1, 2000)])
    return StepShape(num_decodes, num_prefill, num_decodes * chance.randrange(100, 2000) + 2 * num_prefill)


def worst_error(model: CostModel, truth: StepCosts, chance: random.Random) -> float:
    assert model.costs is not None
    shapes = [some_shape(chance) for _ in range(200)]
    return max(abs(model.costs.step_ns(shape) / truth.step_ns(shape) - 1) for shape in shapes)


def test_nothing_is_believed_before_the_model_is_warm() -> None:
    model, chance = CostModel(), random.Random(1)
    for _ in range(200):
        model.observe(StepShape(8, 0, 800), round(TRUTH.step_ns(StepShape(8, 0, 800))))
    assert model.costs is None, "prefill was never seen"
    for _ in range(24):
        shape = StepShape(8, chance.randrange(1, 500), 900)
        model.observe(shape, round(TRUTH.step_ns(shape)))
    assert model.costs is not None


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_costs_are_found(noise: float) -> None:
    model, chance = CostModel(), random.Random(2)
    for _ in range(600):
        shape = some_shape(chance)
        model.observe(shape, round(TRUTH.step_ns(shape) * (1 + chance.uniform(-noise, noise))))
    assert worst_error(model, TRUTH, chance) < 0.001 + noise


def test_stalls_do_not_count_as_what_they_are() -> None:
    """A collector's pause or a busy neighbour makes one step in thirty take twenty times as long."""
    model, chance = CostModel(), random.Random(3)
    for number in range(1200):
        shape = some_shape(chance)
        stall = 20 if number > 100 and number % 30 == 0 else 1
        model.observe(shape, round(TRUTH.step_ns(shape) * stall))
    assert worst_error(model, TRUTH, chance) < 0.1


def test_slow_first_steps_do_not_count_as_what_they_are() -> None:
    model, chance = CostModel(), random.Random(4)
    for number in range(200):
        shape = some_shape(chance)
        model.observe(shape, round(TRUTH.step_ns(shape) * (400 if number < 3 else 1)))
    assert worst_error(model, TRUTH, chance) < 0.4


def test_a_device_that_becomes_slower_is_followed() -> None:
    model, chance = CostModel(), random.Random(5)
    slower = StepCosts(fixed=15e6, decode_row=60_000.0, prefill_token=135_000.0, kv_token=4.5)
    for truth in (TRUTH, slower):
        for _ in range(900):
            shape = some_shape(chance)
            model.observe(shape, round(truth.step_ns(shape)))
    assert worst_error(model, slower, chance) < 0.05


def test_what_prefill_costs_is_remembered_through_long_decodes() -> None:
    model, chance = CostModel(), random.Random(6)
    for _ in range(300):
        shape = some_shape(chance)
        model.observe(shape, round(TRUTH.step_ns(shape)))
    for step in range(3000):
        shape = StepShape(32, 0, 32 * 500 + 32 * step)
        model.observe(shape, round(TRUTH.step_ns(shape)))
    assert model.costs is not None
    assert model.costs.prefill_token == pytest.approx(TRUTH.prefill_token, rel=0.02)


def test_no_coefficient_is_negative() -> None:
    model, chance = CostModel(), random.Random(7)
    for _ in range(400):
        shape = some_shape(chance)
        model.observe(shape, max(20_000_000 - 50_000 * shape.num_decodes + 100 * shape.num_prefill_tokens, 1))
    assert model.costs is not None
    assert min(model.costs.fixed, model.costs.decode_row, model.costs.prefill_token, model.costs.kv_token) >= 0


def test_a_worker_that_reports_no_time_teaches_nothing() -> None:
    model = CostModel()
    for _ in range(500):
        model.observe(StepShape(1, 1, 1), 0)
    assert model.costs is None
