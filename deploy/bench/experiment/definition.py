"""An experiment as a file says it, checked: what varies, what does not, what is measured and what is claimed."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from deploy.bench.errors import BenchUsageError
from deploy.bench.figures.comparison import METRICS, metric_called
from deploy.bench.figures.slo import Objectives

Value = str | int | float | bool
Number = Annotated[int, Meta(ge=1)]


class ExperimentError(BenchUsageError):
    """An experiment that is not one. The message names the file and the key."""


class WorkloadChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section [workload]: named as the arguments of `chairlift bench serve`."""

    name: str = "mixed"
    seed: int = 0
    num_requests: Number = 64
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    length_scale: Annotated[float, Meta(gt=0)] = 1.0


class LoadChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section [load]: neither `rate` nor `concurrency` sends everything at once."""

    rate: Annotated[float, Meta(gt=0)] | None = None
    burstiness: Annotated[float, Meta(gt=0)] = 1.0
    concurrency: Number | None = None
    timeout_s: Annotated[float, Meta(gt=0)] = 600.0


class VariantChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One [[variant]]: what it sets differently, by path (``scheduler.batching``, ``load.rate``, ``workload.name``)."""

    name: str
    set: dict[str, Value] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    question: str
    primary: str
    variant: list[VariantChoice]
    settings: dict[str, Value] = {}
    workload: WorkloadChoice = WorkloadChoice()
    load: LoadChoice = LoadChoice()
    objectives: Objectives = Objectives()
    repetitions: Number = 3
    warmup: Annotated[int, Meta(ge=0)] = 4


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One variant, whole."""

    name: str
    settings: dict[str, Value]
    """Of the stack, by ``section.key``."""
    workload: WorkloadChoice
    load: LoadChoice


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be found out, and how."""

    name: str
    question: str
    variables: tuple[str, ...]
    """Paths in which the variants differ: one, unless the user allowed more."""
    primary: str
    """The metric that the verdict is about; the others are told beside it."""
    variants: tuple[Variant, ...]
    objectives: Objectives
    repetitions: int
    warmup: int


def ready_made() -> tuple[str, ...]:
    """Names of the experiments that come with the package."""
    folder = files("deploy.bench.experiment") / "ready_made"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def load_experiment(name_or_path: str, *, allows_several_variables: bool = False) -> Experiment:
    """A ready-made experiment by name, or one of the user's by path. Raises ExperimentError."""
    if name_or_path in ready_made():
        file = files("deploy.bench.experiment") / "ready_made" / f"{name_or_path}.toml"
        return parse_experiment(name_or_path, file.read_text(encoding="utf-8"), allows_several_variables)
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise ExperimentError(
            f"{name_or_path}: no such experiment; ready-made: {', '.join(ready_made())}, or a .toml file"
        )
    try:
        return parse_experiment(path.stem, path.read_text(encoding="utf-8"), allows_several_variables)
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def parse_experiment(name: str, text: str, allows_several_variables: bool = False) -> Experiment:
    """Raises ExperimentError."""
    try:
        raw = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ExperimentError(f"{name}: {error}") from None
    if metric_called(raw.primary) is None:
        known = [metric.name for metric in METRICS]
        raise ExperimentError(f"{name}: primary: {raw.primary!r} is no metric; known: {', '.join(known)}")
    names = [variant.name for variant in raw.variant]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ExperimentError(f"{name}: at least two variants, each with a name of its own")
    variables = _find_variables(raw.variant, _paths(raw))
    if not variables:
        raise ExperimentError(f"{name}: the variants do not differ")
    if len(variables) > 1 and not allows_several_variables:
        raise ExperimentError(
            f"{name}: the variants differ in {', '.join(variables)}: what made a difference could not be told "
            "(--allow-several-variables runs it all the same)"
        )
    return Experiment(
        name=name,
        question=raw.question,
        variables=variables,
        primary=raw.primary,
        variants=tuple(_apply(name, raw, variant) for variant in raw.variant),
        objectives=raw.objectives,
        repetitions=raw.repetitions,
        warmup=raw.warmup,
    )


def _paths(raw: _File) -> dict[str, object]:
    """Every value that is in force when a variant sets nothing."""
    values: dict[str, object] = dict(raw.settings)
    values |= {f"workload.{key}": value for key, value in msgspec.structs.asdict(raw.workload).items()}
    return values | {f"load.{key}": value for key, value in msgspec.structs.asdict(raw.load).items()}


def _find_variables(variants: Sequence[VariantChoice], base: Mapping[str, object]) -> tuple[str, ...]:
    unset = object()
    touched = {path for variant in variants for path in variant.set}
    values = {path: [variant.set.get(path, base.get(path, unset)) for variant in variants] for path in touched}
    return tuple(sorted(path for path, found in values.items() if any(one != found[0] for one in found)))


def _apply(name: str, raw: _File, variant: VariantChoice) -> Variant:
    workload, load, settings = (
        msgspec.structs.asdict(raw.workload),
        msgspec.structs.asdict(raw.load),
        dict(raw.settings),
    )
    for path, value in variant.set.items():
        section, _, key = path.partition(".")
        match section:
            case "workload":
                workload[key] = value
            case "load":
                load[key] = value
            case _:
                settings[path] = value
    try:
        return Variant(
            name=variant.name,
            settings=settings,
            workload=msgspec.convert(workload, WorkloadChoice),
            load=msgspec.convert(load, LoadChoice),
        )
    except msgspec.ValidationError as error:
        raise ExperimentError(f"{name}: variant {variant.name}: {error}") from None
