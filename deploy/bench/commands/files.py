"""Reading and writing what the user named, with errors in one line."""

from pathlib import Path

import msgspec

from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.figures.summary import RunSummary
from deploy.bench.output.csv_file import write_csv
from deploy.bench.output.result import RunResult, write_result
from deploy.bench.simulate.device_cost import DeviceCost


def write_text(path: Path, text: str) -> None:
    """Raises BenchError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error


def write_json(path: Path, result: RunResult, summary: RunSummary) -> None:
    """Raises BenchError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_result(path, result, summary)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error


def write_table(path: Path, result: RunResult) -> None:
    """Raises BenchError."""
    try:
        write_csv(path, result.records)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error


def read_cost(path: Path | None) -> DeviceCost:
    """A modelled device from a JSON file; None: the default one. Raises BenchUsageError."""
    if path is None:
        return DeviceCost()
    try:
        return msgspec.json.decode(path.read_bytes(), type=DeviceCost)
    except OSError as error:
        raise BenchUsageError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BenchUsageError(f"{path}: {error}") from error
