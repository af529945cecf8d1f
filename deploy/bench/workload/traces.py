"""Public traces as workloads: Azure's CSV and Mooncake's JSONL. They hold lengths and times, never text.

Prompts are made up to the given length and the output length is forced, as the publishers prescribe. What does not fit
the served model is scaled or left out by the caller's choice, and counted.
"""

import csv
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from deploy.bench.workload.names import WorkloadError
from deploy.bench.workload.prompts import Purpose, TokenIds
from deploy.bench.workload.request import BenchRequest, Session

MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's hash ids stands for."""

Length = Annotated[int, Meta(ge=0, le=1 << 31)]


class TraceRow(msgspec.Struct, frozen=True):
    """One request of a trace."""

    at_s: float
    prompt_tokens: Length
    output_tokens: Length
    hash_ids: tuple[int, ...] = ()
    """Names of the prompt's blocks: equal names, equal tokens. Empty: the prompt is like no other."""


class _MooncakeRow(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Length
    output_length: Length
    hash_ids: tuple[Annotated[int, Meta(ge=0)], ...] = ()


class TraceWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's requests in its order, with its times."""

    path: Path
    ids: TokenIds
    rows: tuple[TraceRow, ...]
    length_scale: float = 1.0
    """Factor on prompt and output lengths, so that a trace of a large model can be played on a small one."""
    max_model_len: int | None = None
    """Requests with more tokens of prompt and output are left out; None: no bound."""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    def describe(self) -> dict[str, str | int | float]:
        """Source, scale, and how many requests were left out."""
        return {
            "trace": self.path.name,
            "trace_rows": len(self.rows),
            "left_out": sum(not self._fits(row) for row in self.rows),
            "length_scale": self.length_scale,
            "seed": self.ids.seed,
        }

    def sessions(self) -> Iterator[Session]:
        """Those that fit, each one once."""
        fitting = [row for row in self.rows if self._fits(row)]
        start_s = fitting[0].at_s if fitting else 0.0
        for number, row in enumerate(fitting):
            request = BenchRequest(prompt=self._prompt(number, row), output_tokens=self._scaled(row.output_tokens))
            yield Session((request,), at_s=row.at_s - start_s)

    def _fits(self, row: TraceRow) -> bool:
        if self.max_model_len is None:
            return True
        return self._scaled(row.prompt_tokens) + self._scaled(row.output_tokens) <= self.max_model_len

    def _scaled(self, length: int) -> int:
        return max(1, round(length * self.length_scale))

    def _prompt(self, number: int, row: TraceRow) -> tuple[int, ...]:
        length = self._scaled(row.prompt_tokens)
        block = self._scaled(MOONCAKE_BLOCK)
        shared = [self.ids.draw(Purpose.BLOCK, name, block) for name in row.hash_ids[: -(-length // block)]]
        prompt = tuple(token for ids in shared for token in ids)[:length]
        return prompt + self.ids.draw(Purpose.UNIQUE, number, length - len(prompt))


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """The rows of an Azure CSV or a Mooncake JSONL, by the file's ending, in order of time. Raises WorkloadError."""
    try:
        rows = _read_azure(path) if path.suffix == ".csv" else _read_mooncake(path)
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: not a text file") from None
    if not rows:
        raise WorkloadError(f"{path}: no requests in it")
    return tuple(sorted(rows, key=lambda row: row.at_s))


def _read_azure(path: Path) -> list[TraceRow]:
    rows: list[TraceRow] = []
    start: datetime.datetime | None = None
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            try:
                # Python reads at most six digits of a second's fraction; the trace has seven.
                at = datetime.datetime.fromisoformat(line["TIMESTAMP"][:26])
                lengths = int(line["ContextTokens"]), int(line["GeneratedTokens"])
            except (KeyError, TypeError, ValueError):
                raise WorkloadError(
                    f"{path}, row {len(rows) + 1}: expected the columns TIMESTAMP, ContextTokens, GeneratedTokens"
                ) from None
            start = start or at
            rows.append(TraceRow((at - start).total_seconds(), *lengths))
    return rows


def _read_mooncake(path: Path) -> list[TraceRow]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    rows: list[TraceRow] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise WorkloadError(f"{path}, line {number}: {error}") from None
            rows.append(TraceRow(row.timestamp / 1e3, row.input_length, row.output_length, row.hash_ids))
    return rows
