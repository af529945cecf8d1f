"""The result of one run as a file: figures by vLLM's names at the top, every request below, and how it came about.

A file holds what is needed to work the figures out again, so readers trust the records and not the figures.
"""

from pathlib import Path
from typing import Any

import msgspec

from deploy.bench.errors import BenchUsageError
from deploy.bench.figures.slo import Objectives
from deploy.bench.figures.statistics import NUM_RESAMPLES
from deploy.bench.figures.summary import RunSummary, summarize_run
from deploy.bench.load.client import TargetModel
from deploy.bench.load.record import RequestRecord
from deploy.bench.observe.generator_health import GeneratorHealth
from deploy.bench.observe.machine import Machine, Software
from deploy.bench.observe.server import IterationSample, LoadSample, ServerTotals

FORMAT = "chairlift.bench/1"


class ResultError(BenchUsageError):
    """A file that is not a result. The message says what was expected."""


class RunConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two results comparable."""

    date: str
    """UTC, ISO 8601."""
    backend: str
    model: TargetModel
    workload: str
    workload_details: dict[str, str | int | float]
    request_rate: float | None
    burstiness: float | None
    max_concurrency: int | None
    num_warmups: int
    objectives: Objectives
    machine: Machine
    software: Software
    config_revision: int | None = None
    """Of the scheduling configuration in force at the end; None: not told."""
    settings: dict[str, str] = {}
    """What the stack was started with, where this program started it."""
    foreign_cores: float | None = None
    """CPU that other programs of the machine used meanwhile; None where the server's cannot be told from theirs."""


class RunResult(msgspec.Struct, kw_only=True):
    """One run."""

    format: str = FORMAT
    label: str = ""
    conditions: RunConditions
    server: ServerTotals | None = None
    why_no_server: str = ""
    generator: GeneratorHealth = msgspec.field(default_factory=GeneratorHealth)
    warnings: list[str] = msgspec.field(default_factory=list)
    records: list[RequestRecord] = msgspec.field(default_factory=list)
    samples: list[LoadSample] = msgspec.field(default_factory=list)
    iterations: list[IterationSample] = msgspec.field(default_factory=list)

    def summarize(self, num_resamples: int = NUM_RESAMPLES) -> RunSummary:
        """The figures, from the records."""
        return summarize_run(self.records, self.conditions.objectives, num_resamples)


def to_json_fields(result: RunResult, summary: RunSummary, *, with_details: bool) -> dict[str, Any]:
    """What ``--json`` prints, and with details what a file holds."""
    conditions = result.conditions
    fields: dict[str, Any] = {
        "format": result.format,
        "label": result.label,
        "date": conditions.date,
        "backend": conditions.backend,
        "model_id": conditions.model.name,
        "workload": conditions.workload,
        "num_prompts": len(result.records),
        "request_rate": conditions.request_rate,
        "burstiness": conditions.burstiness,
        "max_concurrency": conditions.max_concurrency,
        **summary.to_fields(),
        "server": result.server,
        "why_no_server": result.why_no_server,
        "generator": result.generator,
        "warnings": result.warnings,
        "conditions": conditions,
    }
    if with_details:
        fields |= {"records": result.records, "samples": result.samples, "iterations": result.iterations}
    return fields


def write_result(path: Path, result: RunResult, summary: RunSummary) -> None:
    """Writes all of it. Raises OSError."""
    path.write_bytes(msgspec.json.encode(to_json_fields(result, summary, with_details=True)) + b"\n")


def read_result(path: Path) -> RunResult:
    """What `write_result` wrote. Raises ResultError."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=RunResult)
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise ResultError(f"{path}: not a result of chairlift bench with its requests: {error}") from None
    if result.format != FORMAT:
        raise ResultError(f"{path}: format {result.format!r}; this version reads {FORMAT!r}")
    return result


def find_differences(one: RunConditions, other: RunConditions) -> list[str]:
    """Conditions in which two results differ, but for their date: reasons not to compare them, unless meant."""
    found: list[str] = []
    for name in ("backend", "workload", "workload_details", "request_rate", "burstiness", "max_concurrency"):
        _note(found, name, getattr(one, name), getattr(other, name))
    for part in ("model", "machine", "software"):
        ours, theirs = getattr(one, part), getattr(other, part)
        for name in ours.__struct_fields__:
            _note(found, f"{part}.{name}", getattr(ours, name), getattr(theirs, name))
    _note(found, "config_revision", one.config_revision, other.config_revision)
    for name in sorted(one.settings.keys() | other.settings.keys()):
        _note(found, name, one.settings.get(name), other.settings.get(name))
    return found


def _note(found: list[str], name: str, ours: object, theirs: object) -> None:
    if ours != theirs:
        found.append(f"{name}: {_show(ours)} against {_show(theirs)}")


def _show(value: object) -> str:
    return "default" if value is None else str(value)
