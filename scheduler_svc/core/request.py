"""A request: what was submitted, its choices, and who is attached to it.

Owns identity and submitted data. Knows no queue, batch or pool.
"""

from array import array
from typing import NamedTuple

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, SamplingParams
from scheduler_svc.core.forecast import Foretold
from scheduler_svc.core.ledger import WaitLedger
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.tenants import Tenant


class RequestKey(NamedTuple):
    """Names a request towards clients: a tenant's own id for it."""

    tenant: str
    request_id: str


class Request:
    """One request, from Submit until it is forgotten. Times are the core's nanoseconds."""

    __slots__ = (
        "arrival_ns",
        "attempt",
        "cached_tokens",
        "charged_prompt",
        "deadline_ns",
        "detach_grace_ns",
        "detached_until_ns",
        "digest",
        "ended_ns",
        "first_boarded_ns",
        "foretold",
        "gateway",
        "gateway_state",
        "handle",
        "itl_slo_ns",
        "kept_until_ns",
        "key",
        "limit_reason",
        "max_tokens",
        "num_unended",
        "number",
        "output_limit",
        "prefill_ns",
        "prefix_root",
        "priority",
        "prompt",
        "prompt_hashes",
        "prompt_len",
        "prompt_logprobs",
        "prompt_logprobs_end",
        "queue_deadline_ns",
        "rank",
        "received_ns",
        "sampling",
        "sequences",
        "tenant",
        "trace_id",
        "ttft_slo_ns",
        "waits",
    )

    def __init__(self, number: int, key: RequestKey, tenant: Tenant, submit: front.Submit, now: int) -> None:
        self.number = number
        """Never used again in this life of the scheduler."""
        self.key = key
        self.tenant = tenant
        self.digest = submit.digest
        self.prompt = submit.prompt
        """Packed u32 ids."""
        self.prompt_len = len(submit.prompt) // 4
        self.sampling: SamplingParams = submit.sampling
        self.priority = submit.priority
        self.prefill_ns = 0
        """What computing its prompt takes, as far as that was known when it came."""
        self.rank: int | None = None
        """Its standing under `priority`, where that is no longer its priority."""
        self.gateway_state = submit.gateway_state
        self.detach_grace_ns = submit.detach_grace_ns
        self.arrival_ns = now - submit.age_ns
        """When it first reached a gateway: its place in the queue."""
        self.received_ns = now
        self.deadline_ns = None if submit.deadline_in_ns is None else now + submit.deadline_in_ns
        self.queue_deadline_ns = None if submit.queue_timeout_in_ns is None else now + submit.queue_timeout_in_ns
        self.foretold: Foretold | None = None
        """Its first token as predicted at the door, until that comes."""
        self.ttft_slo_ns = submit.ttft_slo_ns
        self.itl_slo_ns = submit.itl_slo_ns
        self.max_tokens = submit.max_tokens
        self.attempt = submit.attempt
        self.trace_id = submit.traceparent[3:35]
        self.output_limit = 0
        """Output tokens that a choice may have."""
        self.limit_reason = FinishReason.LENGTH
        """What reaching it is called."""
        self.prefix_root = b""
        """Where its blocks' hash chains begin: tenant and salt are in it."""
        self.prompt_hashes = b""
        """Hashes of the prompt's full blocks."""
        self.cached_tokens = 0
        self.charged_prompt = 0
        """Leading prompt tokens that its tenant is not charged for (again)."""
        self.first_boarded_ns: int | None = None
        self.prompt_logprobs: list[front.DeltaPromptLogprobs] | None = None
        self.prompt_logprobs_end = 1
        """Prompt position up to which they have been emitted; position 0 has none."""
        self.gateway: int | None = None
        self.handle = 0
        """Base handle of the attachment, if there is one."""
        self.detached_until_ns: int | None = None
        self.ended_ns: int | None = None
        self.kept_until_ns = 0
        self.waits = WaitLedger()
        self.sequences: tuple[Sequence, ...] = ()
        self.num_unended = 0

    @property
    def place(self) -> tuple[int, int]:
        """Its place among all requests: by arrival, then by number."""
        return (self.arrival_ns, self.number)

    @property
    def is_ended(self) -> bool:
        """Whether every choice has its end."""
        return self.num_unended == 0

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to come: no cached block may stand in for them."""
        return self.sampling.prompt_logprobs is not None and self.prompt_logprobs_end < self.prompt_len

    def add_choices(self, count: int, emitted: tuple[bytes, ...]) -> None:
        """Makes its sequences, with the outputs of an earlier attempt where there are some."""
        outputs = [array("I", bytes(0)) for _ in range(count)]
        for column, packed in zip(outputs, emitted, strict=False):
            column.frombytes(packed)
        self.sequences = tuple(Sequence(self, choice, column) for choice, column in enumerate(outputs))
        self.num_unended = count

    def queue_cost(self, sequence: Sequence) -> int:
        """Prompt tokens that this choice adds to the queue's length: choices share one prefill."""
        return self.prompt_len if sequence.choice == 0 else 1
