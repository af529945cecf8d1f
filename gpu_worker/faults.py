"""Faults put in on purpose, for tests of what the rest of the service does about them.

Switched on by the environment only, so that nothing that comes over a network can reach them:

- ``CHAIRLIFT_FAULT_TOKEN=ID`` strikes at every step that computes a request whose prompt holds that token id, with the
  fault that ``CHAIRLIFT_FAULT_KIND`` names (`FaultKind`; default ``throw``).
- ``CHAIRLIFT_FAULT_FILE=PATH`` strikes once at the next step after the file ``PATH.PID`` appears, PID being this
  process's id; the file holds the kind, and is removed first.
"""

import enum
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from gpu_worker.batch.columns import Column, PlanColumns

FAULT_TOKEN_ENV = "CHAIRLIFT_FAULT_TOKEN"  # noqa: S105 - the name of a variable
FAULT_KIND_ENV = "CHAIRLIFT_FAULT_KIND"
FAULT_FILE_ENV = "CHAIRLIFT_FAULT_FILE"


class InjectedFaultError(RuntimeError):
    """The fault that was asked for."""


class FaultKind(enum.StrEnum):
    """What happens in the step that is struck."""

    THROW = "throw"
    OUT_OF_MEMORY = "oom"
    DIE = "die"
    """The process is gone at once, as after a crash in native code."""
    HANG = "hang"
    """The step never ends; other threads go on."""


class FaultInjector:
    """Watches boarding rows for the marked token and the file, and strikes. Does nothing unless told to."""

    def __init__(self, token: int | None = None, kind: FaultKind = FaultKind.THROW, file: Path | None = None) -> None:
        self._token = token
        self._kind = kind
        self._file = file
        self._rows: set[int] = set()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "FaultInjector":
        """By the variables of the module's docstring. Raises ValueError when one cannot be used."""
        token, file = environ.get(FAULT_TOKEN_ENV), environ.get(FAULT_FILE_ENV)
        kind = FaultKind(environ.get(FAULT_KIND_ENV) or FaultKind.THROW)
        return cls(int(token) if token else None, kind, Path(f"{file}.{os.getpid()}") if file else None)

    @property
    def is_armed(self) -> bool:
        """Whether rows are watched for a token."""
        return self._token is not None

    def boarded(self, row: int, prompt: Column) -> None:
        """A sequence took a row."""
        self._rows.discard(row)
        if self._token is not None and (prompt == self._token).any():
            self._rows.add(row)

    def check(self, columns: PlanColumns) -> None:
        """Strikes when the step computes a marked row."""
        if self._rows and self._rows.intersection([*columns.decode_rows.tolist(), *columns.chunk_rows.tolist()]):
            _strike(self._kind)

    def check_file(self) -> None:
        """Strikes when the file is there."""
        if self._file is None:
            return
        try:
            kind = FaultKind(self._file.read_text().strip())
        except FileNotFoundError:
            return
        self._file.unlink()
        _strike(kind)


def _strike(kind: FaultKind) -> None:
    match kind:
        case FaultKind.THROW:
            raise InjectedFaultError
        case FaultKind.OUT_OF_MEMORY:
            raise MemoryError
        case FaultKind.DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultKind.HANG:
            threading.Event().wait()
