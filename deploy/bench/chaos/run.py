"""Conducts a run: the stack, the undisturbed run, the load with faults, what is left afterwards."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import msgspec

from chairlift.client import AsyncClient, Completion
from chairlift.client.connection import KEEPALIVE_S, make_connection
from chairlift.v1 import ops_pb2, ops_pb2_grpc
from deploy.bench.chaos.faults import plan_faults
from deploy.bench.chaos.inject import Injector
from deploy.bench.chaos.load import Load, Stream, run_once
from deploy.bench.chaos.loopback import proxy_network
from deploy.bench.chaos.network import Network
from deploy.bench.chaos.report import ChaosReport, Remains, make_report
from deploy.bench.chaos.security import Security
from deploy.bench.chaos.stack import ChaosStack, StackPlan, chaos_stack
from deploy.bench.chaos.verdict import compare_streams
from deploy.bench.chaos.watch import MemorySample, Watch, find_leftovers, read_losses, sample_memory, stderr_to
from deploy.bench.chaos.wires import wired_network
from deploy.bench.chaos.workload import Job, make_catalogue, with_stop_strings
from deploy.bench.errors import BenchError
from deploy.bench.load.grpc_client import open_channel
from deploy.launcher.ports import is_free
from deploy.launcher.supervisor import Supervisor

_T = TypeVar("_T")
_IDLE_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 300.0
"""For the last streams, after the load has stopped: beyond their own deadline, which is what would end them."""


class ChaosOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    seconds: float
    seed: int
    num_replicas: int
    num_gateways: int
    num_users: int
    num_jobs: int
    log: Path
    is_root_net: bool = False
    """Links between network namespaces instead of proxies on loopback."""


def run_chaos(security: Security, options: ChaosOptions) -> ChaosReport:
    """A whole run of a stack by the settings in `security`, in the main thread.

    Raises BenchError and what the launcher raises.
    """
    with stderr_to(options.log) as stderr:
        try:
            return asyncio.run(_Run(security, options, stderr).conduct())
        except asyncio.CancelledError:
            raise BenchError("stopped before its end") from None


class _Run:
    def __init__(self, security: Security, options: ChaosOptions, stderr: int) -> None:
        self._security = security
        self._options = options
        self._stderr = stderr
        self._began = time.monotonic()
        self._watch = Watch(self._say)
        self._memory: list[MemorySample] = []
        self._problems: list[str] = []

    def _say(self, text: str) -> None:
        os.write(self._stderr, f"{time.monotonic() - self._began:7.1f} s  {text}\n".encode())

    async def conduct(self) -> ChaosReport:
        """Everything, in order; nothing is left afterwards, whatever happens."""
        options, main = self._options, asyncio.current_task()
        assert main is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        plan = StackPlan(
            settings=self._security.settings,
            num_replicas=options.num_replicas,
            num_gateways=options.num_gateways,
            ipc=self._security.ipc,
        )
        async with _open_network(options) as network:
            async with chaos_stack(plan, network) as stack:
                supervisor = Supervisor(stack.children, plan.settings.supervisor, self._watch)
                try:
                    self._say(f"starting {options.num_replicas} replicas and {options.num_gateways} gateways")
                    await supervisor.start()
                    streams, undisturbed, injector = await _unless_failed(supervisor, self._load(stack))
                    blocks = await _unless_failed(supervisor, self._count_leaked_blocks(stack))
                finally:
                    await supervisor.stop()
            processes = find_leftovers(stack.folder, self._watch.all_pids)
            sockets = (not is_free(stack.public)) + network.count_listening()
        return make_report(
            streams=streams,
            losses=compare_streams(streams, undisturbed),
            injected=injector.injected,
            noticed=[*self._watch.noticed, *read_losses(options.log)],
            remains=Remains(blocks=blocks, processes=len(processes), sockets=sockets),
            memory=self._memory,
            seconds=options.seconds,
            seed=options.seed,
            conditions=[network.conditions, self._security.conditions],
            problems=[*self._problems, *injector.left_out],
        )

    async def _load(self, stack: ChaosStack) -> tuple[list[Stream], dict[str, Completion], Injector]:
        async with AsyncExitStack() as exits:
            target = str(stack.public)
            # Channels of equal options share one connection, and so one gateway.
            clients = [
                await exits.enter_async_context(self._client(target, number))
                for number in range(2 * self._options.num_gateways)
            ]
            jobs, undisturbed = await self._run_undisturbed(clients[0])
            streams, injector = await self._run_disturbed(stack, clients, jobs)
        return streams, undisturbed, injector

    def _client(self, target: str, number: int) -> AsyncClient:
        security = self._security
        token = security.users[number % len(security.users)]
        return AsyncClient(target, token=token, tls=security.tls, keepalive_s=KEEPALIVE_S + number / 100)

    async def _run_undisturbed(self, client: AsyncClient) -> tuple[list[Job], dict[str, Completion]]:
        options = self._options
        plain = make_catalogue(options.seed, options.num_jobs)
        outputs = await self._ask_all(client, plain)
        stopped = with_stop_strings(plain, outputs)
        outputs += await self._ask_all(client, stopped)
        jobs = [*plain, *stopped]
        self._say(f"undisturbed: {len(jobs)} jobs, {sum(one.usage.output_tokens for one in outputs):,} tokens")
        return jobs, {job.name: output for job, output in zip(jobs, outputs, strict=True)}

    async def _ask_all(self, client: AsyncClient, jobs: Sequence[Job]) -> list[Completion]:
        outputs = []
        for stream in await run_once(client, jobs, self._options.num_users):
            if stream.error is not None or stream.completion is None:
                raise BenchError(f"the undisturbed run failed: {stream.job}: {stream.error}")
            outputs.append(stream.completion)
        return outputs

    async def _run_disturbed(
        self, stack: ChaosStack, clients: Sequence[AsyncClient], jobs: Sequence[Job]
    ) -> tuple[list[Stream], Injector]:
        options = self._options
        share = -(-options.num_users // len(clients))
        loads = [Load(client, jobs, share, options.seed * 1000 + number) for number, client in enumerate(clients)]
        injector = Injector(stack, self._watch, self._say)
        faults = plan_faults(options.seed, options.seconds, options.num_replicas, options.num_gateways)
        started = time.monotonic()
        sampling = asyncio.create_task(sample_memory(self._watch, self._memory, started))
        users = [asyncio.create_task(load.run()) for load in loads]
        try:
            await injector.run(faults, started)
            await asyncio.sleep(max(0.0, started + options.seconds - time.monotonic()))
            for load in loads:
                load.stop()
            self._say("no new requests; waiting for the streams that run")
            async with asyncio.timeout(_END_TIMEOUT_S):
                await asyncio.gather(*users)
                await injector.heal()
        except TimeoutError:
            self._problems.append(
                f"{_END_TIMEOUT_S:g} s after the load some streams had not ended, or a fault was not over"
            )
        finally:
            for task in (sampling, *users):
                task.cancel()
            await asyncio.gather(sampling, *users, return_exceptions=True)
        return [stream for load in loads for stream in load.streams], injector

    async def _count_leaked_blocks(self, stack: ChaosStack) -> int:
        """Blocks in use when nothing runs, by every replica's own account."""
        deadline = time.monotonic() + _IDLE_TIMEOUT_S
        while True:
            replicas = await _replica_loads(str(stack.ops[0]), self._security)
            is_idle = not any(one.num_running or one.num_waiting or one.kv_blocks.used for one in replicas)
            if (is_idle and len(replicas) == self._options.num_replicas) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        for one in replicas:
            used = one.kv_blocks.used
            self._say(f"{one.replica_id}: {one.num_running} running, {one.num_waiting} waiting, {used} blocks used")
        if len(replicas) < self._options.num_replicas:
            self._problems.append(f"{len(replicas)} of {self._options.num_replicas} replicas were there at the end")
        return sum(one.kv_blocks.used for one in replicas)


def _open_network(options: ChaosOptions) -> AbstractAsyncContextManager[Network]:
    return wired_network() if options.is_root_net else proxy_network(options.seed)


async def _replica_loads(address: str, security: Security) -> list[ops_pb2.ReplicaLoad]:
    """Empty while the gateway does not answer."""
    connection = make_connection(address, security.operator, security.tls, KEEPALIVE_S, allow_plaintext_token=False)
    async with open_channel(connection) as channel:
        stub = ops_pb2_grpc.OpsServiceStub(channel)
        try:
            reply = await stub.GetLoad(ops_pb2.GetLoadRequest(), timeout=5.0, metadata=connection.metadata)
        except grpc.aio.AioRpcError:
            return []
    return [one for one in reply.replicas if one.kv_blocks.total]


async def _unless_failed(supervisor: Supervisor, work: Awaitable[_T]) -> _T:
    """The result of `work`, or the supervisor's StackError if that comes first."""
    working, failing = asyncio.ensure_future(work), asyncio.create_task(supervisor.wait_failed())
    try:
        await asyncio.wait((working, failing), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise failing.result()
        return working.result()
    finally:
        for task in (working, failing):
            task.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)
