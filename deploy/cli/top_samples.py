"""What `chairlift top` shows of a replica at one moment, from two loads and the iterations between them."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from chairlift.v1.ops_pb2 import Iteration, ReplicaLoad

MAX_ITERATIONS = 512
"""Columns of the timeline that are kept."""


_Rates: TypeAlias = tuple[float | None, float | None, float | None, float | None]


class Beat(msgspec.Struct, frozen=True):
    """One iteration, as far as the view shows it."""

    step: int
    num_seqs: int
    max_num_seqs: int
    num_tokens: int
    num_prefill_tokens: int
    token_budget: int
    num_waiting: int
    num_boarded: int
    num_departed: int
    num_preempted: int
    plan_ms: float
    device_ms: float
    total_ms: float


class Sample(msgspec.Struct, frozen=True):
    """One replica. Rates are for one second, and None until two loads are known."""

    replica_id: str
    state: str
    num_running: int
    num_waiting: int
    num_preempted: int
    num_swapped: int
    kv_used: int
    kv_total: int
    config_revision: int
    device: str
    output_rate: float | None = None
    prompt_rate: float | None = None
    iteration_rate: float | None = None
    preemption_rate: float | None = None

    @property
    def kv_share(self) -> float:
        """KV blocks in use, 0 to 1."""
        return self.kv_used / self.kv_total if self.kv_total else 0.0


class ReplicaHistory:
    """The last load of one replica and its last iterations."""

    def __init__(self) -> None:
        self.beats: deque[Beat] = deque(maxlen=MAX_ITERATIONS)
        self.num_missed = 0
        self._last: tuple[float, ReplicaLoad] | None = None

    def add_iterations(self, iterations: "Iterable[Iteration]", num_missed: int) -> None:
        """They come in order."""
        self.num_missed += num_missed
        self.beats.extend(map(_beat, iterations))

    def sample(self, load: "ReplicaLoad", now: float) -> Sample:
        """The replica as `load` has it, and how fast it is since the load before. `now` is in seconds."""
        before, self._last = self._last, (now, load)
        rates: _Rates = (None, None, None, None)
        if before is not None and before[1].scheduler_epoch == load.scheduler_epoch and now > before[0]:
            rates = _rates(before[1], load, now - before[0])
        return Sample(
            load.replica_id or "?",
            _state(load),
            load.num_running,
            load.num_waiting,
            load.num_preempted,
            load.num_swapped,
            load.kv_blocks.used,
            load.kv_blocks.total,
            load.config_revision,
            ", ".join(sorted({worker.device for worker in load.workers if worker.device})),
            *rates,
        )


def _rates(before: "ReplicaLoad", load: "ReplicaLoad", elapsed_s: float) -> "_Rates":
    old, new = before.totals, load.totals
    return (
        (new.output_tokens - old.output_tokens) / elapsed_s,
        (new.prompt_tokens - new.cached_tokens - old.prompt_tokens + old.cached_tokens) / elapsed_s,
        (new.iterations - old.iterations) / elapsed_s,
        (new.preemptions - old.preemptions) / elapsed_s,
    )


def _state(load: "ReplicaLoad") -> str:
    from chairlift.v1.ops_pb2 import ReplicaState

    return ReplicaState.Name(load.state).removeprefix("REPLICA_STATE_").lower()


def _beat(iteration: "Iteration") -> Beat:
    return Beat(
        iteration.step,
        iteration.num_seqs,
        iteration.max_num_seqs,
        iteration.num_tokens,
        iteration.num_prefill_tokens,
        iteration.token_budget,
        iteration.num_waiting,
        len(iteration.boarded),
        len(iteration.departed),
        len(iteration.preempted),
        iteration.plan_ms,
        iteration.device_ms,
        iteration.total_ms,
    )
