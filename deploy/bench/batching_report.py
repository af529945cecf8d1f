"""`python -m deploy.bench.batching_report FOLDER`: measures what batching gives on this machine, and writes a report.

Each part is kept as a file in FOLDER/data: a report that was broken off goes on where it was, so that the machine need
not be quiet for all of it at once. What `chairlift tune --output FOLDER/data/tuned.toml` wrote is quoted.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.batching.parts import CHUNKED, SHAPES, SWEEP, Part, Shape, Sweep, experiment_of, run_part
from deploy.bench.batching.render import chart_name, render_markdown, sweep_charts
from deploy.bench.batching.sweep import run_sweep
from deploy.bench.commands.files import write_text
from deploy.bench.experiment.definition import load_experiment
from deploy.bench.experiment.laboratory import Laboratory, OwnStackLaboratory, SimulatedLaboratory
from deploy.bench.output.svg import Chart, render_chart_file
from deploy.bench.simulate.device_cost import DeviceCost

USERS = (1, 2, 4, 8, 16, 32, 64, 128)
SWEEP_SETTINGS = ("scheduler.enable_prefix_caching=false",)

_T = TypeVar("_T")


def main() -> int:
    """Runs what is missing, then writes FOLDER/batching.md with its charts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="of each variant (3)")
    parser.add_argument("--parts", type=int, metavar="N", help="measure at most N parts now, and write no report yet")
    parser.add_argument("--simulate", action="store_true", help="on the simulator, without the sweep")
    arguments = parser.parse_args()
    return _Report(arguments.folder, arguments.repetitions, arguments.parts, is_simulated=arguments.simulate).write()


class _Report:
    def __init__(self, folder: Path, repetitions: int, max_parts: int | None, *, is_simulated: bool) -> None:
        self._folder = folder
        self._repetitions = repetitions
        self._parts_left = max_parts
        self._is_simulated = is_simulated

    def write(self) -> int:
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        shapes = [self._experiment(shape.name, partial(self._run_shape, shape)) for shape in SHAPES]
        chunked = self._experiment(CHUNKED, self._run_chunked)
        sweep = None if self._is_simulated else self._part(SWEEP, Sweep, _run_sweep)
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

    def _experiment(self, name: str, run: Callable[[], Coroutine[None, None, Part]]) -> Part | None:
        return self._part(name, Part, run)

    def _part(self, name: str, kind: type[_T], run: Callable[[], Coroutine[None, None, _T]]) -> _T | None:
        """From its file, or measured now; None where no more parts are to be measured."""
        path = self._folder / "data" / f"{name.replace(', ', '-').replace(' ', '-')}.json"
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=kind)
        if self._parts_left == 0:
            return None
        if self._parts_left is not None:
            self._parts_left -= 1
        print(f"measuring: {name}", file=sys.stderr)
        found = asyncio.run(run())
        path.write_bytes(msgspec.json.encode(found))
        return found

    async def _run_shape(self, shape: Shape) -> Part:
        experiment = experiment_of(shape, self._repetitions)
        return await run_part(experiment, self._laboratory(), "e2el", is_simulated=self._is_simulated)

    async def _run_chunked(self) -> Part:
        experiment = load_experiment(CHUNKED)
        return await run_part(experiment, self._laboratory(), "itl", is_simulated=self._is_simulated)

    def _laboratory(self) -> Laboratory:
        return SimulatedLaboratory(None, (), DeviceCost()) if self._is_simulated else OwnStackLaboratory(None, ())


async def _run_sweep() -> Sweep:
    return await run_sweep(load_settings(None, SWEEP_SETTINGS), USERS, requests_a_user=2)


if __name__ == "__main__":
    sys.exit(main())
