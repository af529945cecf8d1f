"""Every knob comes back from the core as it was set; guards are named as the contract names them."""

from typing import Literal, get_args, get_origin

import msgspec
import pytest

from chairlift.runtime.settings import SchedulerSettings
from chairlift.v1.ops_pb2 import GuardMetric as PublicMetric
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.revisions import Guard, GuardMetric
from scheduler_svc.core.units import from_config, guard_bound, to_config

NAMES = SchedulerSettings.__struct_fields__
HINTS = SchedulerSettings.__annotations__
KNOBS = tuple(from_config(SchedulingConfig(), NAMES))


def other_value(name: str) -> object:
    """A value that is not the default."""
    default = getattr(SchedulerSettings(), name)
    kind = get_args(HINTS[name])[0]
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    if name == "tenants":
        return ("acme: weight=2",)
    if name == "watermark":
        return 0.25
    if name.endswith(("_s", "_ms")):
        return 12.625
    return not default if isinstance(default, bool) else 7


def test_every_knob_of_the_core_is_a_setting() -> None:
    assert len(KNOBS) == len(SchedulingConfig.__struct_fields__)
    assert from_config(SchedulingConfig(), KNOBS) == {name: getattr(SchedulerSettings(), name) for name in KNOBS}


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_comes_back_as_it_was_set(name: str) -> None:
    value = other_value(name)
    settings = msgspec.convert({name: value}, SchedulerSettings)
    config = to_config(settings)
    assert config != SchedulingConfig()
    assert from_config(config, NAMES) == {each: getattr(settings, each) for each in KNOBS}
    assert from_config(config, [name]) == {name: value}


def test_a_knob_that_says_nothing_comes_back_so() -> None:
    assert from_config(to_config(SchedulerSettings(itl_target_ms=None)), ["itl_target_ms", "record"]) == {
        "itl_target_ms": None
    }


@pytest.mark.parametrize(
    ("metric", "bound", "words"),
    [
        (GuardMetric.TTFT_P99, 1_500_000_000, ("ttft_p99_ms", "1500")),
        (GuardMetric.ITL_P99, 80_000_000, ("itl_p99_ms", "80")),
        (GuardMetric.QUEUE_P99, 500_000, ("queue_p99_ms", "0.5")),
        (GuardMetric.ERROR_RATIO, 50_000, ("error_ratio", "0.05")),
        (GuardMetric.PREEMPTION_RATE, 2_500, ("preemptions_per_second", "2.5")),
    ],
)
def test_a_guard_is_told_in_the_operators_words(metric: GuardMetric, bound: int, words: tuple[str, str]) -> None:
    assert guard_bound(Guard(metric, bound, 1)) == words
    assert words[0] == PublicMetric.Name(PublicMetric.ValueType(metric)).removeprefix("GUARD_METRIC_").lower()
