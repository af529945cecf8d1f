"""Plays a workload: open loop at given times, or closed loop with a number of users. Owns when, not what or how.

Latencies count from the time at which a request was to be sent, whatever kept it (Tene's coordinated omission): in an
open loop that is its arrival, in a closed loop the moment its user became free.
"""

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.client import Call, StreamClient
from deploy.bench.load.clock import Clock
from deploy.bench.load.record import Outcome, RequestRecord, new_record
from deploy.bench.workload.request import BenchRequest, Session


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload is played. At least one bound must end it, unless the workload ends itself."""

    arrivals: Arrivals | None = None
    """Open loop; None with `concurrency` alone: closed loop; None with neither: all at once."""
    replay_speed: float | None = None
    """Open loop by the workload's own times, so many times faster than they were."""
    concurrency: int | None = None
    """Users in a closed loop; with an open loop, the most sessions at once: the others wait, and their wait counts."""
    num_sessions: int | None = None
    duration_s: float | None = None
    """No session starts later than this."""
    timeout_s: float = 600.0
    """Of one request."""
    wants_ids: bool = False

    @property
    def is_open_loop(self) -> bool:
        """Whether requests come at times of their own."""
        return self.arrivals is not None or self.replay_speed is not None


OnRecord = Callable[[RequestRecord], None]


class LoadGenerator:
    """Plays one workload once. Not reusable."""

    def __init__(self, client: StreamClient, plan: LoadPlan, clock: Clock, on_end: OnRecord | None = None) -> None:
        """`on_end` is told each request that ended, for a progress display."""
        self._client = client
        self._plan = plan
        self._clock = clock
        self._on_end = on_end
        self._records: list[RequestRecord] = []
        self._num_taken = 0
        self._start_ns = 0

    async def run(self, sessions: Iterator[Session]) -> list[RequestRecord]:
        """Plays `sessions` and returns a record for each request, in the order of their sending."""
        self._start_ns = self._clock.now_ns()
        async with asyncio.TaskGroup() as users:
            if self._plan.is_open_loop:
                await self._arrive(sessions, users)
            elif self._plan.concurrency is not None:
                for _ in range(self._plan.concurrency):
                    users.create_task(self._keep_asking(sessions))
            else:
                while (session := self._take(sessions)) is not None:
                    users.create_task(self._play(session, self._num_taken - 1, self._start_ns))
        return self._records

    async def _arrive(self, sessions: Iterator[Session], users: asyncio.TaskGroup) -> None:
        seats = None if self._plan.concurrency is None else asyncio.Semaphore(self._plan.concurrency)
        offsets = None if self._plan.arrivals is None else self._plan.arrivals.offsets()
        while (session := self._take(sessions)) is not None:
            offset_s = (
                next(offsets) if offsets is not None else (session.at_s or 0.0) / (self._plan.replay_speed or 1.0)
            )
            if self._plan.duration_s is not None and offset_s > self._plan.duration_s:
                return
            intended_ns = self._start_ns + round(offset_s * 1e9)
            await self._clock.wait_until(intended_ns)
            users.create_task(self._play_seated(session, self._num_taken - 1, intended_ns, seats))

    async def _play_seated(
        self, session: Session, number: int, intended_ns: int, seats: asyncio.Semaphore | None
    ) -> None:
        if seats is None:
            await self._play(session, number, intended_ns)
        else:
            async with seats:
                await self._play(session, number, intended_ns)

    async def _keep_asking(self, sessions: Iterator[Session]) -> None:
        """One user of a closed loop."""
        limit_s = self._plan.duration_s
        while limit_s is None or self._clock.now_ns() - self._start_ns < limit_s * 1e9:
            session = self._take(sessions)
            if session is None:
                return
            await self._play(session, self._num_taken - 1, self._clock.now_ns())

    def _take(self, sessions: Iterator[Session]) -> Session | None:
        if self._plan.num_sessions is not None and self._num_taken >= self._plan.num_sessions:
            return None
        session = next(sessions, None)
        self._num_taken += session is not None
        return session

    async def _play(self, session: Session, number: int, intended_ns: int) -> None:
        said: tuple[int, ...] = ()
        for turn, request in enumerate(session.turns):
            if turn:
                intended_ns = self._clock.now_ns() + round(request.think_s * 1e9)
                await self._clock.wait_until(intended_ns)
            said += request.prompt
            record = new_record(len(self._records), number, turn, request, intended_ns)
            self._records.append(record)
            output = await self._send(request, said, record, is_last=turn == len(session.turns) - 1)
            if record.outcome not in (Outcome.OK, Outcome.SHORT):
                return
            said += output

    async def _send(
        self, request: BenchRequest, prompt: tuple[int, ...], record: RequestRecord, *, is_last: bool
    ) -> tuple[int, ...]:
        call = Call(
            prompt=prompt,
            output_tokens=request.output_tokens,
            abandon_after=request.abandon_after,
            timeout_s=self._plan.timeout_s,
            wants_ids=self._plan.wants_ids or not is_last,
            tenant=request.tenant,
        )
        record.sent_ns = self._clock.now_ns()
        output = await self._client.stream(call, record)
        record.ended_ns = self._clock.now_ns()
        if self._on_end is not None:
            self._on_end(record)
        return output
