"""`python -m deploy.bench.batching_report FOLDER`: measures what batching gives on this machine, and writes a report.

Each part is kept as a file in FOLDER/data: a report that was broken off goes on where it was, so that the machine need
not be quiet for all of it at once. A part that was made otherwise than is asked for now is refused. What
`chairlift tune --output FOLDER/data/tuned.toml` wrote is quoted.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.arguments import non_negative_int, positive_int
from deploy.bench.batching.parts import CHUNKED, SHAPES, SWEEP, Part, Sweep, SweepRecipe, experiment_of, run_part
from deploy.bench.batching.recipe import find_part_differences, find_sweep_differences
from deploy.bench.batching.render import chart_name, render_markdown, sweep_charts
from deploy.bench.batching.sweep import run_sweep
from deploy.bench.commands.files import write_text
from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.experiment.definition import Experiment, load_experiment
from deploy.bench.experiment.laboratory import Laboratory, OwnStackLaboratory, SimulatedLaboratory
from deploy.bench.output.svg import Chart, render_chart_file
from deploy.bench.simulate.device_cost import DeviceCost

USERS = (1, 2, 4, 8, 16, 32, 64, 128)
SWEEP_RECIPE = SweepRecipe(
    workload="mixed", users=USERS, requests_a_user=2, settings=("scheduler.enable_prefix_caching=false",)
)

_T = TypeVar("_T")


class PartError(BenchUsageError):
    """A kept part that cannot be used. The message says why."""


def main() -> int:
    """Runs what is missing, then writes FOLDER/batching.md with its charts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=positive_int, default=3, metavar="N", help="of each variant (3)")
    parser.add_argument(
        "--parts", type=non_negative_int, metavar="N", help="measure at most N parts now, no report yet"
    )
    parser.add_argument("--simulate", action="store_true", help="on the simulator, without the sweep")
    arguments = parser.parse_args()
    report = _Report(arguments.folder, arguments.repetitions, arguments.parts, is_simulated=arguments.simulate)
    try:
        return report.write()
    except asyncio.CancelledError:
        print("batching_report: ended; the parts that are done are kept", file=sys.stderr)
        return ExitCode.FAILED
    except OSError as error:
        print(f"batching_report: {arguments.folder}: {error.strerror}", file=sys.stderr)
        return ExitCode.FAILED
    except BenchError as error:
        print(f"batching_report: {error}", file=sys.stderr)
        return ExitCode.USAGE if isinstance(error, BenchUsageError) else ExitCode.FAILED


class _Report:
    def __init__(self, folder: Path, repetitions: int, max_parts: int | None, *, is_simulated: bool) -> None:
        self._folder = folder
        self._repetitions = repetitions
        self._parts_left = max_parts
        self._is_simulated = is_simulated

    def write(self) -> int:
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        shapes = [self._experiment(experiment_of(shape, self._repetitions), "e2el") for shape in SHAPES]
        chunked = self._experiment(load_experiment(CHUNKED), "itl")
        sweep = None if self._is_simulated else self._sweep()
        known = [part for part in shapes if part is not None]
        if self._parts_left is not None or len(known) < len(shapes):
            return ExitCode.OK
        tuned = self._folder / "data" / "tuned.toml"
        text = tuned.read_text(encoding="utf-8") if tuned.exists() else None
        write_text(self._folder / "batching.md", render_markdown(known, chunked, sweep, text))
        charts: list[Chart] = [] if chunked is None else list(chunked.charts)
        for chart in charts + ([] if sweep is None else sweep_charts(sweep)):
            write_text(self._folder / chart_name(chart), render_chart_file(chart))
        return ExitCode.OK

    def _experiment(self, wanted: Experiment, latency: str) -> Part | None:
        return self._part(
            wanted.name,
            Part,
            lambda part: find_part_differences(part, wanted, is_simulated=self._is_simulated),
            lambda: run_part(wanted, self._laboratory(), latency, is_simulated=self._is_simulated),
        )

    def _sweep(self) -> Sweep | None:
        return self._part(
            SWEEP,
            Sweep,
            lambda sweep: find_sweep_differences(sweep, SWEEP_RECIPE),
            lambda: run_sweep(SWEEP_RECIPE),
        )

    def _part(
        self,
        name: str,
        kind: type[_T],
        compare: Callable[[_T], list[str]],
        run: Callable[[], Coroutine[None, None, _T]],
    ) -> _T | None:
        """From its file, or measured now; None where no more parts are to be measured. Raises PartError."""
        path = self._folder / "data" / f"{name.replace(', ', '-').replace(' ', '-')}.json"
        if path.exists():
            return _read(path, kind, compare)
        if self._parts_left == 0:
            return None
        if self._parts_left is not None:
            self._parts_left -= 1
        print(f"measuring: {name}", file=sys.stderr)
        found = asyncio.run(run())
        path.write_bytes(msgspec.json.encode(found))
        return found

    def _laboratory(self) -> Laboratory:
        return SimulatedLaboratory(None, (), DeviceCost()) if self._is_simulated else OwnStackLaboratory(None, ())


def _read(path: Path, kind: type[_T], compare: Callable[[_T], list[str]]) -> _T:
    try:
        part = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise PartError(f"{path}: no part of this report: {error}") from None
    if differences := compare(part):
        raise PartError(f"{path}: made otherwise ({'; '.join(differences)}): use another folder, or remove it")
    return part


if __name__ == "__main__":
    sys.exit(main())
