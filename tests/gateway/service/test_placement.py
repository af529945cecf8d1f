"""Which replica gets a request, and where replicas are found: by load, prefix, names, files."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.ipc import front
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.settings import GatewaySettings, IpcSettings, Settings
from chairlift.runtime.sockets import EndpointError
from chairlift.v1 import inference_pb2 as pb
from gateway.link.endpoints import EndpointSource
from gateway.link.placement import PORTION_TOKENS, Candidate, PrefixPlacement

NAMES = ("a", "b", "c")


def prompt(*parts: int) -> bytes:
    """A portion of tokens for each number."""
    return pack_u32([part for part in parts for _ in range(PORTION_TOKENS)])


def at(*loads: int) -> list[Candidate]:
    return [Candidate(name, load) for name, load in zip(NAMES, loads, strict=False)]


def test_same_prompt_stays_under_equal_load() -> None:
    placement = PrefixPlacement()
    for number in range(50):
        places = {placement.choose(prompt(number, number), "", at(2, 2, 2)) for _ in range(5)}
        assert len(places) == 1
    # Another gateway that knows nothing comes to the same.
    assert placement.choose(prompt(7), "", at(2, 2, 2)) == PrefixPlacement().choose(prompt(7), "", at(2, 2, 2))


def test_prompts_use_all_replicas() -> None:
    placement = PrefixPlacement()
    assert {placement.choose(prompt(number), "", at(0, 0, 0)) for number in range(40)} == set(NAMES)


def test_longer_conversation_follows_its_beginning() -> None:
    placement = PrefixPlacement()
    first = placement.choose(prompt(1, 2), "", at(0, 0, 0))
    loads = [Candidate(name, 3 if name == first else 0) for name in NAMES]
    assert placement.choose(prompt(1, 2, 3), "", loads) == first
    assert placement.choose(prompt(1, 2, 3, 4, 5), "", loads) == first


def test_load_is_bounded_whatever_the_prefix() -> None:
    placement = PrefixPlacement()
    loads = dict.fromkeys(NAMES, 0)
    for number in range(300):
        chosen = placement.choose(prompt(1, 1000 + number), "", [Candidate(*item) for item in loads.items()])
        loads[chosen] += 1
    assert max(loads.values()) <= 1.25 * 100 + 5


def test_least_loaded_takes_what_is_new() -> None:
    placement = PrefixPlacement()
    assert {placement.choose(prompt(number), "", at(2, 1, 2)) for number in range(20)} == {"b"}
    assert placement.choose(pack_u32([1, 2, 3]), "", at(5, 5, 4)) == "c"


def test_scopes_share_nothing_and_memory_is_bounded() -> None:
    placement = PrefixPlacement(max_known=100)
    placement.choose(prompt(1, 2), "tenant", at(0, 0, 0))
    assert placement.num_known == 2
    placement.choose(prompt(1, 2), "other", at(0, 0, 0))
    assert placement.num_known == 4
    for number in range(200):
        placement.choose(prompt(number, number), "", at(0, 0, 0))
    assert placement.num_known == 100


def source(**gateway: Any) -> EndpointSource:
    return EndpointSource(Settings(gateway=GatewaySettings(**gateway), ipc=IpcSettings(allow_plaintext=True)))


async def test_name_is_as_many_replicas_as_it_has_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["10.0.0.2", "10.0.0.1"]

    async def resolve(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "no name server")
        assert (host, port) == ("schedulers.test", 7000)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    replicas = source(replicas=("tcp://schedulers.test:7000", "tcp://10.9.9.9:1"))
    assert replicas.may_change
    known = ("tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000", "tcp://10.9.9.9:1")
    assert await replicas.current() == known
    addresses.clear()
    assert await replicas.current() == known, "a name server that is away changes nothing"
    addresses.append("10.0.0.3")
    assert await replicas.current() == ("tcp://10.0.0.3:7000", "tcp://10.9.9.9:1")


async def test_file_is_followed_and_a_bad_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "replicas"
    file.write_text("# ours\nipc:///run/a.sock\n\ntcp://10.0.0.1:7000  # far\n")
    replicas = source(replicas_file=str(file))
    known = ("ipc:///run/a.sock", "tcp://10.0.0.1:7000")
    assert await replicas.current() == known
    file.write_text("http://nonsense\n")
    assert await replicas.current() == known
    file.unlink()
    assert await replicas.current() == known
    file.write_text("ipc:///run/b.sock\n")
    assert await replicas.current() == ("ipc:///run/b.sock",)
    with pytest.raises(EndpointError, match="replicas_file"):
        source(replicas_file=str(tmp_path / "missing"))


async def test_replica_comes_and_goes_by_file(start_rig: Any, settings: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    first, second = f"ipc://{run}/gateway.sock", f"ipc://{run}/second.sock"
    file = tmp_path / "replicas"
    file.write_text(first)
    async with start_rig(replicas_file=str(file), replica_poll_interval_s=0.05) as rig:
        call = rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1])))
        submit = await rig.scheduler.accept()
        other = type(rig.scheduler)(second, settings.ipc, rig.scheduler.model, epoch=70)
        other.replica_id = "replica-1"
        await other.start()
        file.write_text(second)
        await other.wait_for_gateway()
        replicas = rig.service._replicas
        await rig.until(lambda: len(replicas.links) == 2 and all(link.is_attached for link in replicas.links))
        # The first takes nothing new, and keeps what it has until that ends.
        again = rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1])))
        moved = await other.accept()
        rig.scheduler.tokens(submit.handle, 0, 5)
        rig.scheduler.finish(submit.handle, 1)
        assert len(await rig.caller.events(call)) == 3
        await rig.until(lambda: [link.endpoint for link in replicas.links] == [second])
        other.finish(moved.handle, 0)
        assert len(await rig.caller.events(again)) == 2
        await other.stop()


async def test_load_decides_between_two(start_rig: Any, settings: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    endpoints = (f"ipc://{run}/gateway.sock", f"ipc://{run}/second.sock")
    async with start_rig(replicas=endpoints) as rig:
        other = type(rig.scheduler)(endpoints[1], settings.ipc, rig.scheduler.model, epoch=70)
        other.replica_id = "replica-1"
        other.load = front.Load(running=50)
        await other.start()
        links = rig.service._replicas.links
        await rig.until(lambda: sum(link.load.running for link in links) == 50)
        calls = [rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1 + n]))) for n in range(6)]
        for _ in calls:
            await rig.scheduler.accept()
        rig.scheduler.load = msgspec.structs.replace(other.load, running=100)
        await rig.until(lambda: any(link.load.running == 100 for link in links))
        calls.append(rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[77]))))
        await other.accept()
        for call in calls:
            call.cancel()
        await other.stop()
