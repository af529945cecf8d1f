"""Namespaces of one's own and the wires between them: what each rule does to two ends that talk over TCP."""

import asyncio
import ctypes
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deploy.bench.chaos import namespaces
from deploy.bench.chaos.faults import Fault, FaultKind, Link
from deploy.bench.chaos.namespaces import NamespaceError, own_namespaces
from deploy.bench.chaos.network import FaultyLink, ReplicaPlace
from deploy.bench.chaos.wires import WiredNetwork, delay_discipline, wired_network

PATIENCE_S = 30.0
_CAPABILITY_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def test_without_the_right_to_it_the_error_says_what_is_missing() -> None:
    said: list[str] = []

    def try_it() -> None:
        # Of this thread alone: it gives up every capability.
        ctypes.CDLL(None).capset(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), (ctypes.c_uint32 * 6)())
        try:
            with own_namespaces():
                said.append("entered")
        except NamespaceError as error:
            said.append(str(error))

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert len(said) == 1
    assert "root" in said[0] or "not installed" in said[0]


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_PATH", "/nowhere")
    with pytest.raises(NamespaceError, match="ip is not installed"), own_namespaces():
        pass


def test_a_narrow_link_takes_as_long_for_a_full_frame() -> None:
    assert delay_discipline(0.25, has_netem=True) == ("netem", "delay", "250ms")
    name, _, rate, *_ = delay_discipline(0.25, has_netem=False)
    assert (name, int(rate.removesuffix("bit"))) == ("tbf", round(1514 * 8 / 0.25))


class Wired:
    """A server in the scheduler's namespace, and a client on the gateways' side of ``front 0``."""

    def __init__(self, network: WiredNetwork, place: ReplicaPlace) -> None:
        self.network = network
        self._place = place
        self._link: FaultyLink = network.links["front 0"]
        address = place.ends[Link.FRONT].bind
        scheduler, self._address = network.namespaces.others[0], (address.host, address.port)
        self._listener = scheduler.call(lambda: socket.create_server(self._address))

    async def connect(self) -> None:
        """A fresh connection; both ends of it."""
        self.client = socket.create_connection(self._address, timeout=PATIENCE_S)
        self.server, _ = self._listener.accept()
        for one in (self.client, self.server):
            one.setblocking(False)
        await self.passes(self.client, self.server)
        await self.passes(self.server, self.client)

    async def passes(self, sender: socket.socket, receiver: socket.socket, size: int = 1) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            await loop.sock_sendall(sender, b"x" * size)
            while size:
                size -= len(await loop.sock_recv(receiver, size))

    async def is_reset(self, end: socket.socket) -> bool:
        """Whether this end's connection breaks when it says something; False when nothing happens for a while."""
        try:
            end.send(b"y")
            async with asyncio.timeout(0.4):
                return await asyncio.get_running_loop().sock_recv(end, 1) == b"impossible"
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    async def begin(self, kind: FaultKind, **values: Any) -> Fault:
        fault = Fault(at_s=0.0, kind=kind, target="front 0", **values)
        await self._link.begin(fault)
        return fault

    async def end(self, fault: Fault) -> None:
        await self._link.end(fault)

    def close(self) -> None:
        for one in (self._listener, self.client, self.server):
            one.close()


@pytest_asyncio.fixture
async def wired() -> AsyncIterator[Wired]:
    try:
        context = wired_network()
        network = await context.__aenter__()
    except NamespaceError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        made = Wired(network, await network.add_replica(0))
        await made.connect()
        yield made
        made.close()
        assert network.count_listening() == 0
    finally:
        await context.__aexit__(None, None, None)


async def test_a_cut_holds_back_and_loses_nothing(wired: Wired) -> None:
    fault = await wired.begin(FaultKind.LINK_PARTITION)
    assert not await wired.is_reset(wired.client)
    assert not await wired.is_reset(wired.server)
    await wired.end(fault)
    async with asyncio.timeout(PATIENCE_S):
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(wired.client, 1) == await loop.sock_recv(wired.server, 1) == b"y"
    assert wired.network.count_listening() == 1


async def test_a_reset_reaches_both_ends(wired: Wired) -> None:
    fault = await wired.begin(FaultKind.LINK_RESET)
    assert await wired.is_reset(wired.client)
    assert await wired.is_reset(wired.server)
    await wired.end(fault)
    wired.client.close()
    wired.server.close()
    await wired.connect()


async def test_half_open_the_schedulers_end_is_gone_and_the_other_hears_it_afterwards(wired: Wired) -> None:
    fault = await wired.begin(FaultKind.LINK_PARTITION, is_half_open=True)
    assert await wired.is_reset(wired.server)
    assert not await wired.is_reset(wired.client)
    await wired.end(fault)
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_recv(wired.client, 1)


async def test_a_delay_slows_both_directions_and_other_links_go_on(wired: Wired) -> None:
    loop = asyncio.get_running_loop()
    faults = [await wired.begin(FaultKind.LINK_DELAY, delay_s=0.1) for _ in range(2)]
    for sender, receiver in ((wired.client, wired.server), (wired.server, wired.client)):
        began = loop.time()
        await wired.passes(sender, receiver, 8000)
        assert loop.time() - began > 0.09
    for fault in faults:
        await wired.end(fault)
    await wired.passes(wired.client, wired.server, 100_000)
