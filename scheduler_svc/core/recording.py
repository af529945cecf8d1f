"""Writes down what a core is given and which plans it makes, so that it can be replayed.

Wraps a core: `handle` is the core's own, and leaves a frame with `sink`. Unless token values are asked for, frames hold
none: see `redaction`. What is written where, and for how long, is the shell's.
"""

from collections.abc import Callable

from scheduler_svc.core import events
from scheduler_svc.core.checkpoint import dump_state
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import Effect, SendPlan
from scheduler_svc.core.frames import FORMAT, Frame, Header, pack
from scheduler_svc.core.hash_source import LoggedHashes
from scheduler_svc.core.plan_hash import plan_hash
from scheduler_svc.core.redaction import Redactor


class RecordedCore:
    """A core whose every event is recorded. `name_key` makes the names of tenants and requests in the recording."""

    def __init__(
        self,
        config: SchedulingConfig,
        hash_key: bytes,
        epoch: int,
        sink: Callable[[bytes], object],
        *,
        name_key: bytes,
        with_tokens: bool = False,
    ) -> None:
        self._hash_key = hash_key
        self._epoch = epoch
        self._sink = sink
        self._num_handled = 0
        self._hashes = LoggedHashes(hash_key, 1)
        self.core = Core(config, hash_key, epoch, self._make_hashes)
        self._redactor = None if with_tokens else Redactor(name_key)

    def _make_hashes(self, block_size: int) -> LoggedHashes:
        self._hashes = LoggedHashes(self._hash_key, block_size)
        return self._hashes

    def header(self, version: str) -> bytes:
        """The first bytes of a recording that begins now, between two events: with the state, unless it is new."""
        config = self.core.config
        is_new = self._num_handled == 0
        redact = None if self._redactor is None else self._redactor.state_value
        return pack(
            Header(
                format=FORMAT,
                config=config if self._redactor is None else self._redactor.config(config),
                epoch=self._epoch,
                has_tokens=self._redactor is None,
                hash_key=self._hash_key if self._redactor is None else b"",
                version=version,
                checkpoint=b"" if is_new else dump_state(self.core.state, redact),
            )
        )

    def handle(self, event: events.Event, now: int) -> list[Effect]:
        """See Core."""
        counters = self.core.state.counters
        failed_before = counters.failed_steps
        effects = self.core.handle(event, now)
        self._num_handled += 1
        plans = b"".join([plan_hash(effect.plan) for effect in effects if isinstance(effect, SendPlan)])
        log = self._hashes.take_log()
        if self._redactor is None:
            self._sink(pack(Frame(now, event, plans)))
        else:
            redacted = self._redactor.event(event, was_bad=counters.failed_steps > failed_before)
            self._sink(pack(Frame(now, redacted, plans, tuple(log))))
        return effects
