"""What a kept part of the report was made with, against what is asked for now. Pure."""

from collections.abc import Sequence

import msgspec

from deploy.bench.batching.parts import Part, Sweep, SweepRecipe
from deploy.bench.experiment.definition import Experiment


def find_part_differences(part: Part, wanted: Experiment, *, is_simulated: bool) -> list[str]:
    """In what `part` is another than a run of `wanted` would give; empty: in nothing that it tells.

    A part from before experiments were kept in it tells its name, repetitions, workload and load.
    """
    found = _compare("simulated", part.report.is_simulated, is_simulated)
    if part.experiment is not None:
        return found + _compare_fields(part.experiment, wanted)
    first, conditions = wanted.variants[0], part.conditions
    return [
        *found,
        *_compare("name", part.name, wanted.name),
        *_compare("repetitions", part.report.repetitions, wanted.repetitions),
        *_compare("warmup", conditions.num_warmups, wanted.warmup),
        *_compare("workload", conditions.workload, first.workload.name),
        *_compare("rate", conditions.request_rate, first.load.rate),
        *_compare("concurrency", conditions.max_concurrency, first.load.concurrency),
    ]


def find_sweep_differences(sweep: Sweep, wanted: SweepRecipe) -> list[str]:
    """The same of a sweep. One from before recipes were kept in it tells its users and its workload."""
    if sweep.recipe is not None:
        return _compare_fields(sweep.recipe, wanted)
    return [
        *_compare("users", tuple(point.users for point in sweep.points), wanted.users),
        *_compare("workload", sweep.conditions.workload, wanted.workload),
    ]


def _compare_fields(kept: msgspec.Struct, wanted: msgspec.Struct) -> list[str]:
    names: Sequence[str] = wanted.__struct_fields__
    return [one for name in names for one in _compare(name, getattr(kept, name), getattr(wanted, name))]


def _compare(name: str, kept: object, wanted: object) -> list[str]:
    """Short values are told, long ones named."""
    if kept == wanted:
        return []
    told = f"{name} {kept}, now {wanted}"
    return [told if len(told) <= 80 else name]
