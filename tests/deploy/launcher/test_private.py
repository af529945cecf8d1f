"""A stack for the time of a block: there when it runs, gone when it ends, however it ends."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.runtime.settings import Settings, SupervisorSettings
from deploy.launcher import kinds
from deploy.launcher.private import private_stack
from deploy.launcher.supervisor import StackError

SETTINGS = msgspec.structs.replace(Settings(), supervisor=SupervisorSettings(max_restarts=0))


@pytest.fixture(autouse=True)
def stand_in_modules(stand_ins: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kinds, "MODULES", dict.fromkeys(kinds.MODULES, "stand_in_service"))
    monkeypatch.setenv("STAND_IN_LOG", str(stand_ins.log))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


async def test_the_stack_is_there_for_the_block_and_gone_afterwards(stand_ins: Any, tmp_path: Path) -> None:
    async with private_stack(SETTINGS, stand_ins.progress) as stack:
        assert stack.public.host == "127.0.0.1"
        assert stack.public.port not in (0, 50051)
        assert len(stand_ins.alive()) == 3
        assert stand_ins.events()[-1] == "gateway start"
    assert stand_ins.alive() == []
    assert list((tmp_path / "run").iterdir()) == []


async def test_a_private_stack_has_the_gateways_that_were_asked_for(stand_ins: Any) -> None:
    """And none of the addresses, replicas and endpoints: those belong to the stack of every day."""
    replace = msgspec.structs.replace
    chosen = replace(
        SETTINGS,
        gateway=replace(SETTINGS.gateway, listen="0.0.0.0:50051", replicas=("tcp://127.0.0.1:1",)),
        ipc=replace(SETTINGS.ipc, gateway_endpoint="tcp://127.0.0.1:1", run_dir="/nonexistent"),
        supervisor=replace(SETTINGS.supervisor, gateways=2),
    )
    async with private_stack(chosen, stand_ins.progress) as stack:
        assert stand_ins.events().count("gateway start") == 2
        assert len({address.port for address in (stack.public, *stack.ops)}) == 3
        assert all(address.is_loopback for address in (stack.public, *stack.ops))
        assert stack.settings.gateway.replicas == ()
        assert stack.settings.ipc.gateway_endpoint is None


async def test_a_block_that_raises_leaves_nothing(stand_ins: Any) -> None:
    with pytest.raises(KeyError):
        async with private_stack(SETTINGS, stand_ins.progress):
            raise KeyError
    assert stand_ins.alive() == []


async def test_a_stack_that_gives_up_ends_the_block_with_its_reason(stand_ins: Any) -> None:
    """A batch of thousands must not go on failing prompt by prompt when its worker is gone for good."""

    async def block() -> None:
        async with private_stack(SETTINGS, stand_ins.progress):
            os.kill(stand_ins.pids()[stand_ins.events().index("worker start")], signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(StackError, match="worker killed by SIGKILL, after 0 restarts"):
        await asyncio.create_task(block())
    assert stand_ins.alive() == []


async def test_sigterm_ends_the_block_and_the_stack(stand_ins: Any) -> None:
    async def block() -> None:
        async with private_stack(SETTINGS, stand_ins.progress):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(block())
    assert stand_ins.alive() == []
