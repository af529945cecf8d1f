"""What `chairlift simulate` does."""

import argparse
from pathlib import Path

import msgspec

from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.commands.files import write_text
from deploy.bench.errors import BenchUsageError
from deploy.bench.output.svg import render_chart_file
from deploy.bench.study.load import StudyLoad
from deploy.bench.study.measured_cost import measure_model_cost
from deploy.bench.study.model_cost import ModelCost, read_model_cost
from deploy.bench.study.output import charts, format_study, render_study
from deploy.bench.study.run import StudyResult, run_study
from scheduler_svc.core.units import to_config
from scheduler_svc.sim.outcome import Objective
from scheduler_svc.sim.simulator import SimulatedHardware
from scheduler_svc.sim.traces import TraceError

_LABEL = "simulated"


def run(arguments: argparse.Namespace) -> int:
    """Raises BenchError, SettingsError, and for a measured cost what the launcher raises."""
    settings = load_settings(arguments.config, arguments.overrides)
    load = StudyLoad(
        source=arguments.trace,
        rate=arguments.rate,
        rate_scale=arguments.rate_scale,
        num_requests=arguments.num_requests,
        lengths=arguments.lengths,
        num_tenants=arguments.tenants,
        flood_rate=arguments.flood,
        seed=arguments.seed,
    )
    hardware = _hardware(arguments)
    objective = Objective(ttft_ms=arguments.slo_ttft_ms, tpot_ms=arguments.slo_tpot_ms)
    try:
        study = run_study(load.arrivals(), to_config(settings.scheduler), hardware, objective)
    except (TraceError, UnicodeDecodeError) as error:
        raise BenchUsageError(str(error)) from None
    except OSError as error:
        raise BenchUsageError(f"{arguments.trace}: {error.strerror or error}") from None
    except ValueError as error:
        raise BenchUsageError(str(error)) from None
    _write(arguments, load, study)
    print(msgspec.json.encode(study.report).decode() if arguments.json else format_study(study.report))
    return ExitCode.OK


def _hardware(arguments: argparse.Namespace) -> SimulatedHardware:
    match arguments.model_cost:
        case None:
            return ModelCost().hardware()
        case "measured":
            return measure_model_cost(arguments.config, tuple(arguments.overrides))
        case path:
            return read_model_cost(Path(path))


def _write(arguments: argparse.Namespace, load: StudyLoad, study: StudyResult) -> None:
    named = [(_LABEL, study)]
    if arguments.html is not None:
        conditions = "; ".join((f"{load.source}, {load.rate_scale:g} times as fast", *arguments.overrides))
        write_text(arguments.html, render_study("A simulated replica", conditions, named))
    if arguments.svg is not None:
        try:
            arguments.svg.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchUsageError(f"{arguments.svg}: {error.strerror or error}") from None
        for name, chart in charts(named).items():
            write_text(arguments.svg / f"{name}.svg", render_chart_file(chart))
