"""What `chairlift replay` does: the same again, or what other knobs would have made of the same arrivals."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings import SchedulerSettings
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.errors import BenchUsageError
from deploy.bench.study.output import format_comparison
from scheduler_svc.core.checkpoint import CheckpointError
from scheduler_svc.core.config import SchedulingConfig, find_conflict
from scheduler_svc.core.frames import RecordError, TornTail, read_frames, read_header
from scheduler_svc.core.units import to_knob
from scheduler_svc.sim.outcome import Objective, Report
from scheduler_svc.sim.replay import ReplayResult, replay
from scheduler_svc.sim.what_if import read_load, simulate_load


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded arrivals, simulated under the recorded knobs and under others."""

    changes: tuple[str, ...]
    recorded: Report
    changed: Report


def run(arguments: argparse.Namespace) -> int:
    """Raises BenchUsageError for what is no recording or no knob, SettingsError for a value out of bounds."""
    try:
        if arguments.changes:
            compared = _compare(arguments.file, arguments.changes)
            print(msgspec.json.encode(compared).decode() if arguments.json else _describe_comparison(compared))
            return ExitCode.OK
        with arguments.file.open("rb") as file:
            result = replay(read_header(file), read_frames(file, _teller(arguments.file)))
    except OSError as error:
        raise BenchUsageError(f"{arguments.file}: {error.strerror or error}") from None
    except (RecordError, CheckpointError) as error:
        raise BenchUsageError(f"{arguments.file}: {error}") from None
    print(msgspec.json.encode(result).decode() if arguments.json else _describe(result))
    return ExitCode.OK if result.difference is None and result.num_plans else ExitCode.FAILED


def _teller(path: Path) -> Callable[[TornTail], None]:
    return lambda torn: print(f"{path}: {torn}", file=sys.stderr)


def _compare(path: Path, changes: Sequence[str]) -> Comparison:
    with path.open("rb") as file:
        load = read_load(read_header(file), read_frames(file, _teller(path)))
    other = _changed(load.config, changes)
    objective = Objective()
    return Comparison(
        changes=tuple(changes),
        recorded=simulate_load(load, load.config, objective),
        changed=simulate_load(load, other, objective),
    )


def _changed(config: SchedulingConfig, changes: Sequence[str]) -> SchedulingConfig:
    overrides = [change if change.startswith("scheduler.") else f"scheduler.{change}" for change in changes]
    settings: SchedulerSettings = load_settings(None, overrides, {}).scheduler
    knobs: dict[str, object] = {}
    for override in overrides:
        name = override.partition("=")[0].removeprefix("scheduler.").strip()
        knob, value = to_knob(name, getattr(settings, name))
        if knob not in SchedulingConfig.__struct_fields__:
            raise BenchUsageError(f"--with {name}: is no knob of the scheduling")
        knobs[knob] = value
    changed: SchedulingConfig = msgspec.structs.replace(config, **knobs)
    conflict = find_conflict(changed)
    if conflict is not None:
        raise BenchUsageError(f"--with {', '.join(changes)}: {conflict}")
    return changed


def _describe_comparison(compared: Comparison) -> str:
    named = [("as recorded", compared.recorded), (", ".join(compared.changes), compared.changed)]
    return "The recorded arrivals, simulated\n\n" + format_comparison(named)


def _describe(result: ReplayResult) -> str:
    difference = result.difference
    if difference is None and not result.num_plans:
        return f"{result.num_events} events, and no plan among them to compare"
    if difference is None:
        return f"{result.num_events} events, {result.num_plans} plans, every one as it was made then"
    return "\n".join(
        (
            f"event {difference.event_number} ({difference.event}) took another course, after {result.num_plans} plans",
            f"  recorded  {', '.join(difference.recorded) or 'no plan'}",
            f"  replayed  {', '.join(difference.replayed) or 'no plan'}",
            *(f"  {plan}" for plan in difference.plans),
        )
    )
