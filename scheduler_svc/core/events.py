"""What can happen to the scheduler. `Core.handle(event, now)` takes one of these.

A gateway is a small integer here: the shell gives each life of a gateway a new one. Events carry the link's own
messages where a message is what happened. Nothing here plans except Tick.
"""

import msgspec

from chairlift.ipc import device, front
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.revisions import Guard


class _Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base: array_like, so that an event log is compact."""


class Submit(_Event, tag=1, frozen=True):
    """A gateway hands in a request (or repeats one, or hands it in again after a scheduler's death)."""

    gateway: int
    message: front.Submit


class Attach(_Event, tag=2, frozen=True):
    """A gateway wants the output of a request that lives here."""

    gateway: int
    message: front.Attach


class Stopped(_Event, tag=3, frozen=True):
    """A gateway found a stop string."""

    gateway: int
    message: front.Stopped


class Detach(_Event, tag=4, frozen=True):
    """A client's stream ended."""

    gateway: int
    message: front.Detach


class Cancel(_Event, tag=5, frozen=True):
    """A client, or an operator, cancels by key."""

    gateway: int
    message: front.Cancel


class Explain(_Event, tag=6, frozen=True):
    """A client asks where its request's time went."""

    gateway: int
    message: front.ExplainQuery


class StepDone(_Event, tag=7, frozen=True):
    """A worker's result. Stale ones (another worker epoch, a step not in flight) are counted and dropped."""

    message: device.StepDone


class StepFailed(_Event, tag=8, frozen=True):
    """A step gave no result; the worker refuses plans until a snapshot."""

    message: device.StepFailed


class SnapshotNeeded(_Event, tag=9, frozen=True):
    """The worker missed a plan: what is in flight is void, the next plan is a snapshot."""

    message: device.NeedSnapshot


class GatewayLost(_Event, tag=10, frozen=True):
    """A gateway died or ended: its attachments are detached, never cancelled."""

    gateway: int


class WorkerUp(_Event, tag=11, frozen=True):
    """A worker (group) is ready; its KV cache is empty."""

    worker_epoch: int
    geometry: device.Geometry


class WorkerLost(_Event, tag=12, frozen=True):
    """The worker is gone, and with it the KV cache, the prefix index and what was in flight."""

    worker_epoch: int


class Tick(_Event, tag=13, frozen=True):
    """The shell has handed over everything that arrived: expire what is due, then plan if a plan can be sent.

    The only event that makes plans, so that a burst boards together. Sent after each wake and at each WakeAt.
    """


class ConfigChanged(_Event, tag=14, frozen=True):
    """New knobs, whole; they apply from the next plan on. Answered by ConfigRevised or ConfigRefused."""

    config: SchedulingConfig
    expected_revision: int | None = None
    """Refused unless this revision is in force; None: any."""
    guard: Guard | None = None
    comment: str = ""
    actor: str = ""


class Drain(_Event, tag=15, frozen=True):
    """Stop admitting new requests (or, with `undrain`, admit again)."""

    undrain: bool = False
    deadline_in_ns: int | None = None
    """When what still runs is ended with DRAINING; None: never."""


class FlushPrefixCache(_Event, tag=16, frozen=True):
    """Forget cached blocks that nobody uses."""


class ConfigRolledBack(_Event, tag=17, frozen=True):
    """Back to the values of an earlier revision (None: of the one before). Answered as ConfigChanged is."""

    revision: int | None = None
    expected_revision: int | None = None
    comment: str = ""
    actor: str = ""


Event = (
    Submit
    | Attach
    | Stopped
    | Detach
    | Cancel
    | Explain
    | StepDone
    | StepFailed
    | SnapshotNeeded
    | GatewayLost
    | WorkerUp
    | WorkerLost
    | Tick
    | ConfigChanged
    | Drain
    | FlushPrefixCache
    | ConfigRolledBack
)
