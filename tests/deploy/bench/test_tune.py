"""The search against a made-up server whose best settings are known, and its journal."""

import asyncio
from pathlib import Path
from typing import Self

import msgspec
import pytest

import chairlift
from chairlift.runtime.settings_loader import load_settings
from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.figures.slo import Objectives
from deploy.bench.load.client import TargetModel
from deploy.bench.load.record import Outcome as End
from deploy.bench.load.record import RequestRecord
from deploy.bench.observe.machine import describe_machine, describe_software
from deploy.bench.output.result import RunConditions, RunResult
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.tune.evidence import find_tuning_differences
from deploy.bench.tune.journal import Journal, JournalError, JournalHead
from deploy.bench.tune.plant import OwnStackPlant, PlantFacts, SimulatedPlant, TrialLoad, make_ladders
from deploy.bench.tune.search import Bounds, Ladder
from deploy.bench.tune.trial import KnobValue, Setting, SettingRefusedError, Trial, TrialRun, TuneObjectives
from deploy.bench.tune.tuned_file import render_tuned_file
from deploy.bench.tune.tuner import Tuned, tune
from deploy.bench.workload.catalogue import WorkloadOptions

OBJECTIVES = TuneObjectives(ttft_p99_ms=1000, itl_p99_ms=100)
HEAD = JournalHead(objectives=OBJECTIVES, workload="mixed", workload_details={}, plant="made up")
LADDERS = [
    Ladder(name="max_num_seqs", values=(4, 8, 16, 32, 64), start=8),
    Ladder(name="max_num_batched_tokens", values=(64, 128, 256, 512, 1024, 2048), start=None),
]


class MadeUpPlant:
    """Batches up to its seats; each row costs 2 ms of a gap and a large token budget much more."""

    def __init__(
        self, *, breaks_after: int | None = None, base_ms: float = 10.0, max_num_seqs: int | None = None
    ) -> None:
        self.refused: list[Setting] = []
        self.max_num_seqs = max_num_seqs
        self.settings: list[Setting] = []
        self.breaks_after = breaks_after
        self.base_ms = base_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def describe(self) -> PlantFacts:
        return PlantFacts(knobs={"max_num_seqs": 8, "max_num_batched_tokens": None}, defaults={})

    async def run(self, setting: Setting, repetition: int) -> TrialRun:
        if self.breaks_after is not None and len(self.settings) >= self.breaks_after:
            raise BenchError("broken off")
        seats = int(setting.knobs["max_num_seqs"] or 8)
        budget = int(setting.knobs["max_num_batched_tokens"] or 1024)
        assert budget >= seats
        if self.max_num_seqs is not None and seats > self.max_num_seqs:
            self.refused.append(setting)
            raise SettingRefusedError(f"started for {self.max_num_seqs} at most")
        self.settings.append(setting)
        riding = min(seats, setting.concurrency)
        gap_ms = self.base_ms + 2 * riding + budget / 50
        wait_ms = 50.0 + 400 * max(0, setting.concurrency - seats) / seats + 20_000 / budget
        records = []
        for number in range(100):
            start = number // riding * round((wait_ms + 10 * gap_ms) * 1e6)
            one = RequestRecord(number=number, session=number, turn=0, wanted_tokens=11, intended_ns=start)
            for token in range(11):
                one.take_delta(start + round((wait_ms + token * gap_ms) * 1e6), 1)
            one.ended_ns, one.outcome = one.delta_ns[-1], End.OK
            records.append(one)
        conditions = RunConditions(
            date="2026-01-01",
            backend="made up",
            model=TargetModel(name="m", fingerprint="f"),
            workload="mixed",
            workload_details={"seed": 0},
            request_rate=None,
            burstiness=None,
            max_concurrency=setting.concurrency,
            num_warmups=0,
            objectives=Objectives(),
            machine=describe_machine(),
            software=describe_software(),
        )
        return TrialRun(RunResult(conditions=conditions, records=records))


def search(plant: MadeUpPlant, journal: Journal, repetitions: int = 0, max_trials: int = 60) -> Tuned:
    trials: list[Trial] = []
    bounds = Bounds(max_concurrency=128, max_trials=max_trials)
    return asyncio.run(
        tune(plant, LADDERS, bounds, OBJECTIVES, journal, repetitions, lambda trial, _: trials.append(trial))
    )


def test_the_best_settings_within_the_objectives_are_found() -> None:
    """Gaps allow 32 riders with a small budget and no more; the start's 8 seats and 1,024 tokens are far from it."""
    plant, journal = MadeUpPlant(), Journal(None, HEAD)
    tuned = search(plant, journal, repetitions=2)
    best = tuned.outcome.best
    assert best is not None
    assert tuned.outcome.baseline is not None
    assert best.is_feasible
    feasible = [trial for trial in journal.trials.values() if trial.is_feasible]
    assert best.output_throughput >= 0.97 * max(trial.output_throughput for trial in feasible)
    assert best.setting.knobs["max_num_seqs"] in (32, 64)
    assert best.setting.concurrency >= 32
    assert best.output_throughput > 4 * tuned.outcome.baseline.output_throughput
    assert tuned.confirmation is not None
    assert {one.metric: one.verdict.value for one in tuned.confirmation.differences}["output_throughput"] == "better"


def test_the_load_is_raised_step_by_step_and_stops_at_the_border() -> None:
    plant = MadeUpPlant()
    search(plant, Journal(None, HEAD))
    first = [setting.concurrency for setting in plant.settings[:5]]
    assert first == [1, 2, 4, 8, 16]
    assert all(setting.concurrency <= 128 for setting in plant.settings)
    assert len({setting.key() for setting in plant.settings}) == len(plant.settings)


def test_nothing_is_chosen_where_one_user_alone_is_too_slow() -> None:
    tuned = search(MadeUpPlant(base_ms=200.0), Journal(None, HEAD))
    assert tuned.outcome.best is None
    assert "one user alone leaves the objectives: p99 ITL" in tuned.outcome.reason


def test_a_search_that_was_broken_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """The same trials in the same order, none twice, although the last line of the journal was cut."""
    whole = MadeUpPlant()
    expected = search(whole, Journal(None, HEAD)).outcome
    path = tmp_path / "journal"
    broken = MadeUpPlant(breaks_after=6)
    with pytest.raises(BenchError):
        search(broken, Journal(path, HEAD))
    with path.open("ab") as file:
        file.write(b'{"setting": {"kno')
    resumed = MadeUpPlant()
    outcome = search(resumed, Journal(path, HEAD)).outcome
    assert broken.settings + resumed.settings == whole.settings
    assert outcome == expected
    again = MadeUpPlant()
    tuned = search(again, Journal(path, HEAD))
    assert (tuned.outcome, again.settings) == (expected, [])
    assert tuned.conditions is not None
    assert "# evidence: " in render_tuned_file(tuned.outcome, None, [], OBJECTIVES, tuned.conditions)


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, HEAD)
    for name, value in {
        "workload": "chat",
        "fingerprint": "another model",
        "knobs": {"max_num_seqs": 4},
        "settings": {"worker.kv_cache_bytes": "1000000"},
        "device_cost": DeviceCost(step_us=1.0),
        "machine": describe_machine(),
    }.items():
        with pytest.raises(JournalError, match=rf"another search \({name}\)"):
            Journal(path, msgspec.structs.replace(HEAD, **{name: value}))
    path.write_text("no\n")
    with pytest.raises(JournalError, match="not a journal"):
        Journal(path, HEAD)


def test_the_number_of_trials_is_bounded() -> None:
    plant = MadeUpPlant()
    tuned = search(plant, Journal(None, HEAD), max_trials=7)
    assert len(plant.settings) == 7
    assert tuned.outcome.reason == "7 trials were run"


def test_the_tuned_file_is_settings_with_the_evidence(tmp_path: Path) -> None:
    journal = Journal(None, HEAD)
    tuned = search(MadeUpPlant(), journal, repetitions=2)
    assert tuned.outcome.best is not None
    text = render_tuned_file(
        tuned.outcome, tuned.confirmation, list(journal.trials.values()), OBJECTIVES, tuned.conditions
    )
    path = tmp_path / "tuned.toml"
    path.write_text(text)
    settings = load_settings(path, [], {})
    assert settings.scheduler.max_num_seqs == tuned.outcome.best.setting.knobs["max_num_seqs"]
    assert text.count(" tok/s, p99 TTFT") == len(journal.trials)
    assert "fingerprint f" in text
    assert "#   p99_itl_ms " in text
    assert find_tuning_differences(path, chairlift.__version__, "f") == []
    assert find_tuning_differences(path, "0.0.1", "g") == [
        f"version {chairlift.__version__}, here 0.0.1",
        "model f, here g",
    ]
    (tmp_path / "other.toml").write_text("[scheduler]\n# evidence: {}\n")
    assert find_tuning_differences(tmp_path / "other.toml", "0.0.1", "g") == []


@pytest.mark.parametrize("bound", [8, 16])
def test_a_setting_that_is_refused_is_kept_as_such_and_the_search_goes_on(bound: int, tmp_path: Path) -> None:
    """Nothing beyond it is tried, nor it again: also not by a search that goes on from the journal."""
    plant, path = MadeUpPlant(max_num_seqs=bound), tmp_path / "journal"
    journal = Journal(path, HEAD)
    tuned = search(plant, journal)
    assert tuned.outcome.best is not None
    assert tuned.outcome.best.setting.knobs["max_num_seqs"] == bound
    knobs = [setting.knobs for setting in plant.refused]
    assert plant.refused
    assert {one["max_num_seqs"] for one in knobs} == {2 * bound}
    assert all(knobs.count(one) == 1 for one in knobs)
    text = render_tuned_file(tuned.outcome, None, list(journal.trials.values()), OBJECTIVES, tuned.conditions)
    assert f"did not run: started for {bound} at most" in text
    resumed = MadeUpPlant(max_num_seqs=bound)
    assert search(resumed, Journal(path, HEAD)).outcome == tuned.outcome
    assert (resumed.settings, resumed.refused) == ([], [])


def test_a_baseline_that_is_refused_ends_the_search() -> None:
    with pytest.raises(SettingRefusedError):
        search(MadeUpPlant(max_num_seqs=4), Journal(None, HEAD))


def test_a_stack_that_does_not_start_refuses_its_setting() -> None:
    """Its worker ends at once, and says why above."""
    settings = load_settings(None, ["scheduler.max_num_batched_tokens=64"], {})
    load = TrialLoad(workload="short-short", options=WorkloadOptions(), num_requests=1, num_warmups=0, timeout_s=20.0)
    knobs: dict[str, KnobValue] = {"max_num_seqs": 128, "max_num_batched_tokens": 64, "itl_target_ms": None}

    async def run() -> None:
        async with OwnStackPlant(settings, load) as plant:
            await plant.run(Setting(knobs=knobs, concurrency=1), 0)

    with pytest.raises(SettingRefusedError, match="does not start: worker"):
        asyncio.run(run())


def test_moves_begin_at_what_the_server_makes_of_its_defaults() -> None:
    """Up from 64 seats is 128, and below no target is the longest."""
    settings = load_settings(None, ["scheduler.max_num_batched_tokens=512"], {})
    load = TrialLoad(workload="short-short", options=WorkloadOptions(), num_requests=1, num_warmups=0, timeout_s=20.0)
    facts = asyncio.run(SimulatedPlant(settings, load, DeviceCost()).describe())
    ladders = {one.name: one for one in make_ladders(facts, {})}
    assert (ladders["max_num_seqs"].start, ladders["max_num_seqs"].neighbours(None)) == (None, (128, None))
    assert ladders["max_num_batched_tokens"].neighbours(512) == (256, 1024)
    assert ladders["itl_target_ms"].neighbours(None) == (160.0, None)
    assert msgspec.structs.replace(ladders["max_num_seqs"], default=64).neighbours(None) == (32, 128)


def test_ladders_keep_to_the_bounds() -> None:
    (ladder,) = make_ladders(PlantFacts(knobs={"max_num_seqs": None}, defaults={}), {"max_num_seqs": (10, 70)})
    assert ladder.values == (16, 32, 64)
    assert ladder.neighbours(None) == (16, 32)
    assert ladder.neighbours(16) == (None, 32)
    assert ladder.neighbours(64) == (32, None)


def test_errors_of_the_bench_are_told_in_one_line() -> None:
    from deploy.cli.main import main

    assert main(["tune", "--bound", "seats=1:2"]) == 2
    assert main(["experiment", "nothing"]) == 2
    assert main(["compare", "one.json"]) == 2
    assert main(["bench", "serve", "--workload", "nothing"]) == 2
    assert main(["bench", "serve", "--target", "127.0.0.1:1"]) == 1
    assert issubclass(JournalError, BenchUsageError)
