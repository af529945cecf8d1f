"""Faults put in on purpose, for tests of what the rest of the service does about them.

Switched on by the environment only: ``CHAIRLIFT_FAULT_TOKEN=ID`` makes every step fail that computes a request whose
prompt holds that token id.
"""

from collections.abc import Mapping

from gpu_worker.batch.columns import Column, PlanColumns

FAULT_TOKEN_ENV = "CHAIRLIFT_FAULT_TOKEN"  # noqa: S105 - the name of a variable


class InjectedFaultError(RuntimeError):
    """The fault that was asked for."""


class FaultInjector:
    """Watches boarding rows for the marked token and fails their steps."""

    def __init__(self, token: int | None = None) -> None:
        self._token = token
        self._rows: set[int] = set()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "FaultInjector":
        """One that does nothing unless the variable is set. Raises ValueError when it is no number."""
        text = environ.get(FAULT_TOKEN_ENV)
        return cls(int(text) if text else None)

    @property
    def is_armed(self) -> bool:
        """Whether there is anything to watch for."""
        return self._token is not None

    def boarded(self, row: int, prompt: Column) -> None:
        """A sequence took a row."""
        self._rows.discard(row)
        if self._token is not None and (prompt == self._token).any():
            self._rows.add(row)

    def check(self, columns: PlanColumns) -> None:
        """Raises InjectedFaultError when the step computes a marked row."""
        if self._rows and self._rows.intersection([*columns.decode_rows.tolist(), *columns.chunk_rows.tolist()]):
            raise InjectedFaultError
