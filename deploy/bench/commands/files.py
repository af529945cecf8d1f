"""Writing what the user asked for, with errors in one line."""

from pathlib import Path

from deploy.bench.errors import BenchError
from deploy.bench.figures.summary import RunSummary
from deploy.bench.output.csv_file import write_csv
from deploy.bench.output.result import RunResult, write_result


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
