"""A rolling restart of every process under load fails no request. Real processes; devices compute nothing."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

import grpc
import grpc.aio
import msgspec
import pytest

from chairlift.client import AsyncClient
from chairlift.runtime.settings import GatewaySettings, SchedulerSettings, Settings, SupervisorSettings, WorkerSettings
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as rpc
from deploy.bench.chaos.loopback import LOOPBACK, proxy_network
from deploy.bench.chaos.stack import StackPlan, chaos_stack
from deploy.bench.chaos.watch import Watch
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.ports import HeldPort
from deploy.launcher.supervisor import Supervisor

PATIENCE_S = 60.0
NUM_TOKENS = 12
NUM_GATEWAYS = 3
"""A channel looks for a gateway that is back after a second or two, and needs another one until then."""
SETTINGS = Settings(
    gateway=GatewaySettings(drain_timeout_s=20.0),
    scheduler=SchedulerSettings(drain_timeout_s=20.0),
    worker=WorkerSettings(num_threads=1),
    supervisor=SupervisorSettings(restart_backoff_s=0.0),
)


class Rolling:
    """Gateways with an address each, two replicas, and what restarts them."""

    def __init__(self, watch: Watch, gateways: list[str]) -> None:
        self._watch = watch
        self.gateways = gateways

    async def restart(self, *names: str) -> None:
        """Those processes at once, as a pod's; returns when all of them are ready again."""
        before = {name: self._watch.pids[name] for name in names}
        for pid in before.values():
            os.kill(pid, signal.SIGTERM)
        await until(lambda: all(self._is_new(name, pid) for name, pid in before.items()))

    def _is_new(self, name: str, before: int) -> bool:
        return self._watch.pids[name] != before and self._watch.is_ready(name)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true in time"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def rolling() -> AsyncIterator[Rolling]:
    watch = Watch(lambda text: print(text, flush=True))
    held = [HeldPort(LOOPBACK) for _ in range(NUM_GATEWAYS)]
    plan = StackPlan(settings=SETTINGS, num_replicas=2, num_gateways=NUM_GATEWAYS)
    async with proxy_network(0) as network, chaos_stack(plan, network) as stack:
        listen = {f"gateway {index}": str(port.address) for index, port in enumerate(held)}
        supervisor = Supervisor([changed(child, listen) for child in stack.children], SETTINGS.supervisor, watch)
        try:
            await supervisor.start()
            yield Rolling(watch, list(listen.values()))
        finally:
            await supervisor.stop()
            for port in held:
                port.close()


def changed(child: ChildSpec, listen: dict[str, str]) -> ChildSpec:
    """A gateway gets an address of its own, a worker computes nothing."""

    def prepare() -> Launch:
        launch = child.prepare()
        argv = []
        for part in launch.argv:
            if part.startswith("gateway.listen="):
                argv.append(f"gateway.listen={listen.get(child.name, '')}")
            else:
                argv.append("deploy.bench.overload.worker" if part == "gpu_worker" else part)
        return msgspec.structs.replace(launch, argv=tuple(argv))

    return msgspec.structs.replace(child, prepare=prepare)


class Users:
    """One stream after another, until told to stop; what fails is raised by `finish`."""

    def __init__(self, num_users: int) -> None:
        self.served = 0
        self._numbers = itertools.count()
        self._is_over = False
        self._tasks = [asyncio.create_task(self._user()) for _ in range(num_users)]

    async def _user(self) -> None:
        while not self._is_over:
            await self._ask(next(self._numbers))
            self.served += 1

    async def _ask(self, number: int) -> None:
        raise NotImplementedError

    async def some_more(self) -> None:
        """Returns when a few more were served, or one has failed."""
        wanted = self.served + 4
        await until(lambda: self.served >= wanted or any(task.done() for task in self._tasks))

    async def finish(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


class LibraryUsers(Users):
    """By the client library, which knows all gateways."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        super().__init__(3)

    async def _ask(self, number: int) -> None:
        completion = await self._client.generate(
            [1000 + number] * 20, max_tokens=NUM_TOKENS, token_ids=True, ignore_eos=True, timeout=PATIENCE_S
        )
        assert len(completion.choices[0].token_ids) == NUM_TOKENS


class RawUsers(Users):
    """By the stubs alone and the service config that comes with them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.InferenceServiceStub(channel)
        super().__init__(3)

    async def _ask(self, number: int) -> None:
        request = pb.GenerateRequest(
            request_id=f"raw-{number}",
            token_ids=pb.TokenIds(ids=[2000 + number] * 20),
            stopping=pb.Stopping(max_tokens=NUM_TOKENS, ignore_eos=True),
        )
        offset, num_ends = 0, 0
        async for response in self._stub.Generate(request, timeout=PATIENCE_S):
            delta = response.event.delta
            if response.event.HasField("delta"):
                assert delta.offset == offset
                offset += delta.num_tokens
            num_ends += response.event.HasField("finished")
        assert (offset, num_ends) == (NUM_TOKENS, 1)


@pytest.mark.timeout(240)
async def test_no_request_fails_while_every_process_is_restarted_in_turn() -> None:
    config = files("chairlift.v1").joinpath("service_config.json").read_text()
    async with rolling() as stack, AsyncClient(stack.gateways) as client:
        target = f"ipv4:{','.join(stack.gateways)}"
        async with grpc.aio.insecure_channel(target, options=(("grpc.service_config", config),)) as channel:
            everyone: list[Users] = [LibraryUsers(client), RawUsers(channel)]

            async def restart_in_turn(*groups: tuple[str, ...]) -> None:
                for names in groups:
                    for users in everyone:
                        await users.some_more()
                    await stack.restart(*names)

            await asyncio.gather(
                restart_in_turn(*((f"gateway {index}",) for index in range(NUM_GATEWAYS))),
                restart_in_turn(("scheduler 0", "worker 0"), ("scheduler 1", "worker 1")),
            )
            for users in everyone:
                await users.some_more()
                await users.finish()
