"""The log of trials as a file, a line each, so that a search that was broken off goes on where it was."""

from pathlib import Path

import msgspec

from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.tune.trial import Trial, TuneObjectives

FORMAT = "chairlift.tune/1"


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials have in common: a journal of another search is refused."""

    format: str = FORMAT
    objectives: TuneObjectives
    workload: str
    workload_details: dict[str, str | int | float]
    plant: str
    """What was tuned: own stacks or the simulator."""
    fingerprint: str = ""


class JournalError(BenchUsageError):
    """A file that is not the journal of this search. The message says why."""


class Journal:
    """Trials by their setting's key. Written line by line; None as the path keeps them in memory."""

    def __init__(self, path: Path | None, head: JournalHead) -> None:
        """Reads what is there. Raises JournalError."""
        self.trials: dict[tuple[object, ...], Trial] = {}
        self._path = path
        lines = [] if path is None or not path.exists() else _read_lines(path)
        if lines:
            self._take(lines, head)
        else:
            self._append(head)

    def add(self, trial: Trial) -> None:
        """Keeps one more. Raises BenchError."""
        self.trials[trial.setting.key()] = trial
        self._append(trial)

    def _take(self, lines: list[bytes], head: JournalHead) -> None:
        try:
            found = msgspec.json.decode(lines[0], type=JournalHead)
            trials = [msgspec.json.decode(line, type=Trial) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise JournalError(f"{self._path}: not a journal of chairlift tune: {error}") from None
        if found != head:
            raise JournalError(
                f"{self._path}: of another search (objectives, workload, model or plant): use a new file"
            )
        self.trials = {trial.setting.key(): trial for trial in trials}

    def _append(self, entry: JournalHead | Trial) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            raise BenchError(f"{self._path}: {error.strerror}") from error


def _read_lines(path: Path) -> list[bytes]:
    """Whole lines only: a last one without its end was broken off while it was written."""
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    return whole.split(b"\n") if whole else []
