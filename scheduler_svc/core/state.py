"""Everything the core knows, in one place; the modules beside it are the rules that change it.

Owns the parts and the small lookups that several rules share. Decides nothing.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from chairlift.ipc import device, front
from chairlift.ipc.common import WaitReason
from scheduler_svc.core.batch import Batch
from scheduler_svc.core.blocked import Blocked, VainSearch
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.columns import Confirmed, GatewayColumn
from scheduler_svc.core.config import PARTS_PER_MILLION, SchedulingConfig
from scheduler_svc.core.cost_model import CostModel
from scheduler_svc.core.effects import Effect, Emit
from scheduler_svc.core.forecast import Forecast
from scheduler_svc.core.guard import GuardWatch
from scheduler_svc.core.hash_source import HashSource
from scheduler_svc.core.host_pool import HostPool, SwapCost
from scheduler_svc.core.iterations import IterationWatch
from scheduler_svc.core.ledger import Passes, WaitClock
from scheduler_svc.core.policies.catalogue import make_policy
from scheduler_svc.core.probation import Probation
from scheduler_svc.core.queue import Queue
from scheduler_svc.core.request import Request, RequestKey
from scheduler_svc.core.revisions import Revisions
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.steps import Step
from scheduler_svc.core.tenants import Tenants
from scheduler_svc.core.timers import Timers


class Gateway:
    """What is known of one life of a gateway: its attachments by base handle, and its share of the decode column."""

    __slots__ = ("attachments", "column")

    def __init__(self) -> None:
        self.attachments: dict[int, Request] = {}
        self.column = GatewayColumn()


class Counters:
    """Totals since the start; see `front.Load`."""

    __slots__ = (
        "accepted",
        "cached_tokens",
        "discarded_rows",
        "ended",
        "excused_losses",
        "failed_steps",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "refused",
        "stale_results",
        "steps",
        "waits_ns",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.ended = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.preemptions = 0
        self.discarded_rows = 0
        self.steps = 0
        self.failed_steps = 0
        self.excused_losses = 0
        """Deaths of workers that a request was found guilty of, and that are no sign of a bad worker."""
        self.stale_results = 0
        self.waits_ns = [0] * (len(WaitReason) + 1)
        """By WaitReason, of requests that have ended."""


class Worker:
    """The worker (group) that is up, or was last."""

    __slots__ = ("epoch", "geometry", "is_abandoned", "is_up", "lost_ns", "lost_pool", "snapshot_needed")

    def __init__(self, epoch: int, geometry: device.Geometry) -> None:
        self.epoch = epoch
        self.geometry = geometry
        self.is_up = True
        self.is_abandoned = False
        """It was lost, and no other came in time."""
        self.lost_ns = 0
        self.lost_pool: BlockPool | None = None
        """While it is lost: what its KV cache holds, if it has only been out of reach and comes back."""
        self.snapshot_needed = True
        """The next plan boards the whole batch anew: the worker has forgotten it, or never knew it."""


class SchedulerState:
    """See the module."""

    def __init__(self, config: SchedulingConfig, make_hashes: Callable[[int], HashSource], epoch: int) -> None:
        self.config = config
        self.epoch = epoch
        self.effects: list[Effect] = []
        # requests
        self.requests: dict[RequestKey, Request] = {}
        """Living ones."""
        self.ended: OrderedDict[RequestKey, Request] = OrderedDict()
        """The last ones that ended, oldest first; those that are still kept can be attached to."""
        self.by_number: dict[int, Request] = {}
        """Both."""
        self.last_number = 0
        """Of the last request that was handed in."""
        self.gateways: dict[int, Gateway] = {}
        # the queue
        self.confirmed = Confirmed()
        self.queue = Queue(make_policy(config, self.confirmed))
        self.tenants = Tenants(config)
        self.num_queued_requests = 0
        """Requests of which no choice ever had a seat."""
        self.blocked = Blocked()
        self.vain_search = VainSearch()
        self.static_members: list[Sequence] = []
        """The static batch under way."""
        self.batch_wait_ns = 0
        """When the next static batch forms at the latest: a timer is set for it."""
        self.clock = WaitClock()
        self.passes = Passes()
        # the device
        self.worker: Worker | None = None
        self.pool = BlockPool(0)
        self.host_pool = HostPool(0)
        self.swap_cost = SwapCost(0)
        self.draft: Step | None = None
        """The plan that is being made."""
        self.make_hashes = make_hashes
        self.hashes = make_hashes(1)
        self.batch = Batch(0)
        self.in_flight: deque[Step] = deque()
        self.full_blocks: deque[Sequence] = deque()
        """Decoding sequences that have filled a block which is not findable yet."""
        self.last_result_ns = 0
        """When the last result was taken in."""
        self.probation = Probation()
        self.cost_model = CostModel()
        self.forecast = Forecast()
        # time
        self.timers = Timers()
        self.is_draining = False
        self.drain_deadline_ns: int | None = None
        self.counters = Counters()
        self.revisions = Revisions(config)
        self.guard_watch: GuardWatch | None = None
        self.watch: IterationWatch | None = None
        """Only while somebody wants to see iterations; decides nothing."""

    # ---- limits in force ----

    @property
    def geometry(self) -> device.Geometry:
        """Of the worker that is up, or was last. Only to be asked for once there was one."""
        assert self.worker is not None
        return self.worker.geometry

    @property
    def is_worker_up(self) -> bool:
        """Whether plans can be sent."""
        return self.worker is not None and self.worker.is_up

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens that one step may compute."""
        limit = self.geometry.max_num_batched_tokens
        wanted = self.config.max_num_batched_tokens
        return limit if wanted is None else min(limit, wanted)

    @property
    def max_num_seqs(self) -> int:
        """Seats; never more than a step has tokens, so that each running sequence advances in every step."""
        limit = min(self.geometry.max_num_seqs, self.max_num_batched_tokens)
        wanted = self.config.max_num_seqs
        return limit if wanted is None else min(limit, wanted)

    @property
    def watermark(self) -> int:
        """Blocks that stay free when a waiting sequence boards."""
        return self.pool.num_blocks * self.config.watermark_ppm // PARTS_PER_MILLION

    @property
    def max_in_flight(self) -> int:
        """Plans that may be on their way at once."""
        return 2 if self.config.overlap and not self.probation.is_on else 1

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.geometry.block_size)

    # ---- what is told to gateways ----

    def emit(self, gateway: int, message: front.ToGateway) -> None:
        """Adds an effect."""
        self.effects.append(Emit(gateway, message))

    def gateway(self, number: int) -> Gateway:
        """The record of a gateway, made when it is first heard of."""
        record = self.gateways.get(number)
        if record is None:
            record = self.gateways[number] = Gateway()
        return record

    # ---- counts ----

    def settle(self, sequence: Sequence) -> None:
        """Brings `outputs` and `computed` of a sequence up to the last result."""
        confirmed = self.confirmed
        if sequence.confirmed_at is not None and sequence.settled_step <= confirmed.step:
            confirmed.settle(sequence)
            if sequence.row is not None:
                sequence.computed = sequence.num_known - 1
