"""One line a request, for spreadsheets. Times in milliseconds from the run's start."""

import csv
from collections.abc import Sequence
from pathlib import Path

from deploy.bench.load.record import RequestRecord

COLUMNS = (
    "number", "session", "turn", "outcome", "reason", "finish_reason", "intended_ms", "sent_ms", "ended_ms", "ttft_ms",
    "tpot_ms", "e2el_ms", "max_itl_ms", "queue_ms", "prompt_tokens", "cached_tokens", "output_tokens", "wanted_tokens",
    "preemptions", "tenant",
)  # fmt: skip


def write_csv(path: Path, records: Sequence[RequestRecord]) -> None:
    """Writes the records. Raises OSError."""
    start_ns = min((record.intended_ns for record in records), default=0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for record in records:
            writer.writerow(_to_row(record, start_ns))


def _to_row(record: RequestRecord, start_ns: int) -> list[object]:
    came = bool(record.delta_ns)
    gaps = record.inter_token_ms()
    return [
        record.number,
        record.session,
        record.turn,
        record.outcome.value,
        record.reason,
        record.finish_reason,
        *(_ms(at_ns - start_ns) for at_ns in (record.intended_ns, record.sent_ns, record.ended_ns)),
        round(record.ttft_ms, 3) if came else "",
        round(record.tpot_ms, 3) if came and record.tpot_ms is not None else "",
        round(record.e2el_ms, 3) if came else "",
        round(max(gaps), 3) if gaps else "",
        "" if record.server.queue_ms is None else record.server.queue_ms,
        record.prompt_tokens,
        record.server.cached_tokens,
        record.output_tokens,
        record.wanted_tokens,
        record.server.preemptions,
        record.tenant,
    ]


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)
