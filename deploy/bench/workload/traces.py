"""Public traces as workloads: Azure's CSV and Mooncake's JSONL. They hold lengths and times, never text.

Prompts are made up to the given length and the output length is forced, as the publishers prescribe. What does not fit
the served model is scaled or left out by the caller's choice, and counted.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from deploy.bench.workload.names import WorkloadError
from deploy.bench.workload.prompts import Purpose, TokenIds
from deploy.bench.workload.request import BenchRequest, Session
from scheduler_svc.sim import traces
from scheduler_svc.sim.traces import TraceError
from scheduler_svc.sim.workload import Arrival

MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's hash ids stands for."""


class TraceWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's requests in its order, with its times."""

    path: Path
    ids: TokenIds
    rows: tuple[Arrival, ...]
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
        start_ns = fitting[0].at_ns if fitting else 0
        for number, row in enumerate(fitting):
            request = BenchRequest(prompt=self._prompt(number, row), output_tokens=self._scaled(row.output_len))
            yield Session((request,), at_s=(row.at_ns - start_ns) / 1e9)

    def _fits(self, row: Arrival) -> bool:
        if self.max_model_len is None:
            return True
        return self._scaled(row.prompt_len) + self._scaled(row.output_len) <= self.max_model_len

    def _scaled(self, length: int) -> int:
        return max(1, round(length * self.length_scale))

    def _prompt(self, number: int, row: Arrival) -> tuple[int, ...]:
        length = self._scaled(row.prompt_len)
        block = self._scaled(MOONCAKE_BLOCK)
        shared = [self.ids.draw(Purpose.BLOCK, name, block) for name in row.contents[: -(-length // block)]]
        prompt = tuple(token for ids in shared for token in ids)[:length]
        return prompt + self.ids.draw(Purpose.UNIQUE, number, length - len(prompt))


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """The trace's requests in order of time. Raises WorkloadError."""
    try:
        return tuple(sorted(traces.read_trace(path), key=lambda arrival: arrival.at_ns))
    except TraceError as error:
        raise WorkloadError(str(error)) from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from None
