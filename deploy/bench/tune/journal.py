"""The log of trials as a file, a line each, so that a search that was broken off goes on where it was."""

import os
from pathlib import Path

import msgspec

from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.observe.machine import Machine
from deploy.bench.output.result import RunConditions
from deploy.bench.simulate.device_cost import DeviceCost
from deploy.bench.tune.trial import KnobValue, Trial, TuneObjectives

FORMAT = "chairlift.tune/2"


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials have in common: a journal of another search is refused."""

    format: str = FORMAT
    objectives: TuneObjectives
    workload: str
    workload_details: dict[str, str | int | float]
    plant: str
    """What was tuned: own stacks, the simulator, or an address."""
    fingerprint: str = ""
    """Of the model."""
    knobs: dict[str, KnobValue] = {}
    """As they were at the start."""
    settings: dict[str, str] = {}
    """What the stacks were started with, where they differ from the defaults."""
    device_cost: DeviceCost | None = None
    """Of a simulated device."""
    machine: Machine | None = None
    """None for the simulator, which computes the same anywhere."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One trial."""

    trial: Trial
    conditions: RunConditions | None
    """Of its run; None where it did not run."""


class JournalError(BenchUsageError):
    """A file that is not the journal of this search. The message says why."""


class Journal:
    """Trials by their setting's key. Written line by line; None as the path keeps them in memory."""

    def __init__(self, path: Path | None, head: JournalHead) -> None:
        """Reads what is there. Raises JournalError."""
        self.trials: dict[tuple[object, ...], Trial] = {}
        self.conditions: RunConditions | None = None
        """Of the last run; None before the first."""
        self._path = path
        if path is not None and path.exists() and (content := _read(path)):
            self._take(path, content, head)
        else:
            self._append(head)

    def add(self, trial: Trial, conditions: RunConditions | None) -> None:
        """Keeps one more, with what it ran under. Raises BenchError."""
        entry = JournalEntry(trial=trial, conditions=conditions)
        self._keep(entry)
        self._append(entry)

    def _keep(self, entry: JournalEntry) -> None:
        self.trials[entry.trial.setting.key()] = entry.trial
        self.conditions = entry.conditions or self.conditions

    def _take(self, path: Path, content: bytes, head: JournalHead) -> None:
        """Whole lines only: a last one without its end was broken off while it was written, and is cut off."""
        whole, _, broken = content.rpartition(b"\n")
        first, *rest = whole.split(b"\n")
        try:
            found = msgspec.json.decode(first, type=JournalHead)
            differing = [name for name in head.__struct_fields__ if getattr(found, name) != getattr(head, name)]
            if differing:
                raise JournalError(f"{path}: of another search ({', '.join(differing)}): use a new file")
            entries = [msgspec.json.decode(line, type=JournalEntry) for line in rest]
        except msgspec.MsgspecError as error:
            raise JournalError(f"{path}: not a journal of chairlift tune: {error}") from None
        for entry in entries:
            self._keep(entry)
        if broken:
            os.truncate(path, len(whole) + 1)

    def _append(self, entry: JournalHead | JournalEntry) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            raise BenchError(f"{self._path}: {error.strerror}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
