"""The scheduler's core: events in, effects out.

Owns nothing but the order of things; see the modules beside it for each part. Pure: no clock, no socket, no log, no
randomness. The same events at the same times give the same effects, byte for byte.
"""

from chairlift.ipc import front
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.effects import Effect
from scheduler_svc.core.events import Event


class Core:
    """One replica's scheduler.

    `hash_key` keys the prefix index's hashes (at most 64 bytes), `epoch` numbers this life of the scheduler.
    """

    def __init__(self, config: SchedulingConfig, hash_key: bytes, epoch: int) -> None:
        self.config = config
        self.epoch = epoch

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Takes one event in; what is to be done comes out, in order.

        `now` is integer monotonic nanoseconds and never decreases. Raises only when an invariant is broken.
        """
        raise NotImplementedError

    def load(self) -> front.Load:
        """This replica's account of itself at this moment."""
        raise NotImplementedError

    def limits(self) -> front.ReplicaLimits:
        """Limits in force."""
        raise NotImplementedError

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken: a worker has been up, and is or may come back, and nothing drains."""
        raise NotImplementedError

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because this replica is to end."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        """Whether no request lives here."""
        raise NotImplementedError

    @property
    def model(self) -> front.ModelInfo | None:
        """What the workers serve; None until the first is up."""
        raise NotImplementedError
