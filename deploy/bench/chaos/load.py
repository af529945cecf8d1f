"""Users in a closed loop: each asks for one job of the catalogue after another, by the client library as it comes."""

import asyncio
import random
import time
from collections.abc import Sequence

import msgspec

from chairlift.client import AsyncClient, ChairliftError, Completion
from deploy.bench.chaos.workload import Job


class Stream(msgspec.Struct):
    """One request as its user saw it. Times are of the monotonic clock."""

    job: str
    started: float
    accepted: float | None = None
    progress: list[float] = msgspec.field(default_factory=list)
    """Times at which output came."""
    ended: float | None = None
    completion: Completion | None = None
    """What had arrived at the end."""
    error: ChairliftError | None = None

    @property
    def is_refused(self) -> bool:
        """Whether it was turned away before it was accepted: nothing was promised."""
        return self.error is not None and self.accepted is None


class Load:
    """Runs users until it is told to stop, and keeps what they saw."""

    def __init__(self, client: AsyncClient, jobs: Sequence[Job], num_users: int, seed: int) -> None:
        self._client = client
        self._jobs = jobs
        self._num_users = num_users
        self._chance = random.Random(seed)
        self._is_over = False
        self.streams: list[Stream] = []

    async def run(self) -> None:
        """Returns when `stop` was called and every stream has ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._num_users):
                group.create_task(self._user())

    def stop(self) -> None:
        """No new requests."""
        self._is_over = True

    async def _user(self) -> None:
        while not self._is_over:
            stream = await self._ask(self._chance.choice(self._jobs))
            if stream.is_refused:
                # As a person would: not at once.
                await asyncio.sleep(0.5)

    async def _ask(self, job: Job) -> Stream:
        stream = Stream(job.name, time.monotonic())
        self.streams.append(stream)
        await follow(self._client, job, stream)
        return stream


async def follow(client: AsyncClient, job: Job, stream: Stream) -> None:
    """Asks for `job` and notes in `stream` what comes of it."""
    async with client.stream(job.prompt, **job.options) as generation:
        try:
            async for _ in generation:
                now = time.monotonic()
                if stream.accepted is None:
                    stream.accepted = now
                stream.progress.append(now)
        except ChairliftError as error:
            stream.error = error
        stream.ended = time.monotonic()
        if stream.accepted is None and generation.accepted is not None:
            stream.accepted = stream.ended
        stream.completion = generation.completion


async def run_once(client: AsyncClient, jobs: Sequence[Job], concurrency: int) -> list[Stream]:
    """Every job one time, `concurrency` at once, in the order of `jobs`."""
    streams = [Stream(job.name, 0.0) for job in jobs]
    numbered = iter(zip(jobs, streams, strict=True))

    async def work() -> None:
        for job, stream in numbered:
            stream.started = time.monotonic()
            await follow(client, job, stream)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return streams
