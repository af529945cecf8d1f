"""What the queue and the planner ask of a policy, and which policies there are."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from chairlift.ipc.common import WaitReason
from scheduler_svc.core.sequence import Sequence


class Policy(Protocol):
    """An order of waiting sequences, and the choice of who gives way. Only `add` and `remove` mutate."""

    passed_reason: WaitReason | None
    """What a sequence waits for from the moment on at which one that arrived later has boarded before it; None where
    that is no doing of the policy."""

    def add(self, sequence: Sequence, now: int) -> None:
        """A sequence waits. One that was preempted takes its original place."""

    def remove(self, sequence: Sequence, now: int) -> None:
        """It boards, or has ended. Raises KeyError when it is not in the queue."""

    def __len__(self) -> int:
        """Waiting sequences."""

    def candidates(self, now: int) -> Iterator[Sequence]:
        """Waiting sequences in the order in which they should board; the last one yielded may be removed meanwhile."""

    def victim(self, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Who gives way when memory is short; None when nobody runs.

        A total order that time does not turn round, or two would evict each other for ever.
        """

    def displaced_by(self, sequence: Sequence, running: Iterable[Sequence], now: int) -> Sequence | None:
        """Who of the running gives way for this waiting one to board; None when nobody has to."""

    def num_ahead(self, sequence: Sequence, now: int) -> int:
        """About how many would board before it; also of one that is not in the queue (yet)."""
