"""Reads public traces of arrival times and lengths; neither kind holds any text.

Azure's (Patel et al., ISCA 2024, github.com/Azure/AzurePublicDataset): CSV of TIMESTAMP, ContextTokens,
GeneratedTokens. Mooncake's (Qin et al., FAST 2025, github.com/kvcache-ai/Mooncake): JSON lines with timestamp in
milliseconds, input_length, output_length and hash_ids, one for 512 prompt tokens, equal where prefixes are.
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from scheduler_svc.sim.workload import Arrival

Length = Annotated[int, Meta(ge=0, le=1 << 24)]


MAX_NS = 31 * 86_400 * 1_000_000_000
"""No arrival is later: what is, is no time but a mistake in a trace or a rate, and would be simulated for hours."""


class TraceError(ValueError):
    """A file that is not what its name says, with the line at fault."""


class _MooncakeRow(msgspec.Struct, gc=False):
    timestamp: Annotated[float, Meta(ge=0, le=MAX_NS / 1e6)]
    input_length: Length
    output_length: Length
    hash_ids: tuple[Annotated[int, Meta(ge=0)], ...] = ()


def read_trace(path: Path, rate_scale: float = 1.0) -> Iterator[Arrival]:
    """The trace's requests in its order, `rate_scale` times as fast. Raises TraceError, OSError."""
    match path.suffix:
        case ".csv":
            arrivals = _azure(path)
        case ".jsonl":
            arrivals = _mooncake(path)
        case _:
            raise TraceError(f"{path}: a trace is a .csv file of Azure's or a .jsonl file of Mooncake's")
    is_empty = True
    for arrival in arrivals:
        is_empty = False
        yield arrival._replace(at_ns=round(arrival.at_ns / rate_scale))
    if is_empty:
        raise TraceError(f"{path}: has no request in it")


def _azure(path: Path) -> Iterator[Arrival]:
    # Spreadsheets begin a file with a byte order mark.
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            yield from _azure_rows(path, reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise TraceError(f"{path}, after line {reader.line_num}: {error}") from None


def _azure_rows(path: Path, reader: "csv.DictReader[str]") -> Iterator[Arrival]:
    if reader.fieldnames is None or {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} - set(reader.fieldnames):
        raise TraceError(f"{path}: needs the columns TIMESTAMP, ContextTokens, GeneratedTokens")
    first: datetime | None = None
    for line, row in enumerate(reader, start=2):
        try:
            # Seven decimals are more than Python's clock has.
            time = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or time
            delta = time - first
            lengths = msgspec.convert(
                (row["ContextTokens"], row["GeneratedTokens"]), tuple[Length, Length], strict=False
            )
        except (ValueError, TypeError, msgspec.ValidationError) as error:
            raise TraceError(f"{path}, line {line}: {error}") from None
        at_ns = (delta.days * 86_400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1000
        if at_ns > MAX_NS:
            raise TraceError(f"{path}, line {line}: is {delta.days} days after the first request")
        yield Arrival(max(at_ns, 0), max(lengths[0], 1), max(lengths[1], 1))


def _mooncake(path: Path) -> Iterator[Arrival]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                row = decoder.decode(text)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                raise TraceError(f"{path}, line {line}: {error}") from None
            yield Arrival(
                round(row.timestamp * 1e6), max(row.input_length, 1), max(row.output_length, 1), contents=row.hash_ids
            )
