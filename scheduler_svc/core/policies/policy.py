"""What the planner asks of a policy."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from scheduler_svc.core.sequence import Sequence


class Policy(Protocol):
    """The queue of waiting sequences, and the choice of victims. All methods but these two mutate nothing."""

    def add(self, sequence: Sequence, now: int) -> None:
        """A sequence waits. One that was preempted takes its original place."""

    def remove(self, sequence: Sequence, now: int) -> None:
        """It boards, or has ended. Raises KeyError when it is not in the queue."""

    def __len__(self) -> int:
        """Waiting sequences."""

    def candidates(self, now: int) -> Iterator[Sequence]:
        """Waiting sequences in the order in which they should board; the last one yielded may be removed meanwhile."""

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Who gives way when memory is short; None when nobody runs."""

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """How many would board before it."""
