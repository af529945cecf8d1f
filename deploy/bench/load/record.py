"""What is known of one request afterwards. Times are of the client's own clock; the server's account stands beside."""

import enum
import hashlib
from collections.abc import Sequence

import msgspec

from deploy.bench.workload.request import BenchRequest


class Outcome(enum.StrEnum):
    """How a request ended, as the client saw it."""

    OK = "ok"
    SHORT = "short"
    """It ended in good order with fewer tokens than were asked for."""
    REFUSED = "refused"
    """Not taken: queue full, over quota, invalid, draining."""
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    """Taken, and then broken off or ended with an error."""
    ABANDONED = "abandoned"
    """The client went away, as the workload says."""


class ServerAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a request went, by the server's own measurement. None: not told."""

    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_max_ms: float | None = None
    preemptions: int = 0
    cached_tokens: int = 0


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request. Filled while its stream runs. Times in ns of the load's clock."""

    number: int
    session: int
    turn: int
    wanted_tokens: int
    intended_ns: int
    """When it was to be sent: latencies count from here, so that a generator that falls behind hides nothing."""
    sent_ns: int = 0
    ended_ns: int = 0
    delta_ns: list[int] = msgspec.field(default_factory=list)
    """When each delta came."""
    delta_tokens: list[int] = msgspec.field(default_factory=list)
    """Tokens of each delta."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    outcome: Outcome = Outcome.FAILED
    reason: str = ""
    """Code, reason or message of what went wrong; never text of prompt or output."""
    finish_reason: str = ""
    server: ServerAccount = ServerAccount()
    digest: str = ""
    """Hash of the output's token ids, where they were asked for."""
    tenant: str = ""
    """Who sent it, in workloads with several tenants."""

    def take_delta(self, now_ns: int, num_tokens: int) -> None:
        """Tokens came. Mutates the record."""
        self.delta_ns.append(now_ns)
        self.delta_tokens.append(num_tokens)
        self.output_tokens += num_tokens

    @property
    def is_measured(self) -> bool:
        """Whether its latencies count: it came to its end in good order."""
        return self.outcome in (Outcome.OK, Outcome.SHORT) and bool(self.delta_ns)

    @property
    def ttft_ms(self) -> float:
        """From the intended sending to the first token."""
        return (self.delta_ns[0] - self.intended_ns) / 1e6

    @property
    def e2el_ms(self) -> float:
        """From the intended sending to the last token, as vLLM's benchmark counts it."""
        return (self.delta_ns[-1] - self.intended_ns) / 1e6

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.delta_ns[-1] - self.delta_ns[0]) / (self.output_tokens - 1) / 1e6

    def inter_token_ms(self) -> list[float]:
        """The gaps between tokens. A delta of n tokens after a gap gives n gaps of an nth of it; the tokens that came
        together with the first one give none, since when they were made cannot be seen."""
        gaps: list[float] = []
        for before, after, num_tokens in zip(self.delta_ns, self.delta_ns[1:], self.delta_tokens[1:], strict=False):
            gaps += [(after - before) / num_tokens / 1e6] * num_tokens
        return gaps

    def inter_chunk_ms(self) -> list[float]:
        """The gaps between deltas, however many tokens they carry."""
        return [(after - before) / 1e6 for before, after in zip(self.delta_ns, self.delta_ns[1:], strict=False)]


def digest_tokens(token_ids: Sequence[int]) -> str:
    """16 hex digits that two outputs share only when they are equal."""
    packed = b"".join(token.to_bytes(4, "little") for token in token_ids)
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


def new_record(number: int, session: int, turn: int, request: BenchRequest, intended_ns: int) -> RequestRecord:
    """The record of a request that is about to be sent."""
    return RequestRecord(
        number=number,
        session=session,
        turn=turn,
        wanted_tokens=request.output_tokens,
        intended_ns=intended_ns,
        tenant=request.tenant,
    )
