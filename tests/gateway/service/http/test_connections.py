"""Connections that ask for nothing, or slowly, and more of them than there may be."""

import asyncio
import contextlib
import os
import resource
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.runtime.addresses import parse_address
from gateway.http.server import HttpServer

WAIT_S = 20.0


async def _until_closed(port: int, sent: bytes, *drops: bytes) -> bytes:
    """What a client gets until the server closes; `drops` come one by one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(WAIT_S):
            for part in (sent, *drops):
                writer.write(part)
                await writer.drain()
            return await reader.read()
    finally:
        writer.close()


async def test_connection_without_a_head_is_closed(start_rig: Any) -> None:
    async with start_rig(http_listen="127.0.0.1:0", http_read_timeout_s=0.2) as rig:
        assert await _until_closed(rig.service.http_port, b"") == b""


async def test_head_that_does_not_end_is_refused(start_rig: Any) -> None:
    async with start_rig(http_listen="127.0.0.1:0", http_read_timeout_s=0.2) as rig:
        answer = await _until_closed(rig.service.http_port, b"GET /livez HTTP/1.1\r\n", b"x-a: b\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"head_timeout"' in answer


async def test_second_head_has_the_same_time(start_rig: Any) -> None:
    async with start_rig(http_listen="127.0.0.1:0", http_read_timeout_s=0.2) as rig:
        asked = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"
        answer = await _until_closed(rig.service.http_port, asked + b"GET /li", b"v", b"ez")
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_rest_of_a_refused_body_has_a_time_too(start_rig: Any) -> None:
    async with start_rig(http_listen="127.0.0.1:0", http_read_timeout_s=0.2) as rig:
        head = b"POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n"
        assert (await _until_closed(rig.service.http_port, head, b"x", b"x")).startswith(b"HTTP/1.1 404 ")


async def test_malformed_rest_of_a_refused_body_ends_the_connection(plain_rig: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", plain_rig.service.http_port)
    async with asyncio.timeout(WAIT_S):
        writer.write(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
        writer.write(b"no length\r\n")
        assert b"HTTP/1.1" not in await reader.read()
    writer.close()


async def test_what_is_no_http_gets_an_error_object(plain_rig: Any) -> None:
    answer = await _until_closed(plain_rig.service.http_port, b"nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"malformed_http"' in answer


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 503), ("/readyz", 200), ("/metrics", 200)])
async def test_full_port_answers_probes(make_http: Any, path: str, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    server = HttpServer(app, parse_address("127.0.0.1:0", "gateway.http_listen"), 1, 30.0)
    port = await server.start()
    idle = await asyncio.open_connection("127.0.0.1", port)
    try:
        answer = await make_http(SimpleNamespace(service=SimpleNamespace(http_port=port))).ask("GET", path)
        assert answer.status == status
        if status == 503:
            assert (answer.error["code"], answer.headers["retry-after"]) == ("too_many_connections", "1")
    finally:
        idle[1].close()
        await server.close()


async def test_no_free_descriptor_is_told_once_and_not_a_thousand_times(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio's way multiplied: a log of megabytes a second, and a loop that did nothing else."""
    server = HttpServer(_nothing, parse_address("127.0.0.1:0", "gateway.http_listen"), 1, 30.0)
    port = await server.start()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(socket.socket()) for _ in range(8)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (_largest_descriptor() + 1, limits[1]))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with contextlib.suppress(OSError):
            while True:  # gaps below the largest
                held.callback(os.close, os.dup(0))
        for client in clients:
            client.connect(("127.0.0.1", port))
        for _ in range(20):
            await asyncio.sleep(0)
    told = [record for record in caplog.records if "out of system resource" in record.message]
    assert len(told) == 1
    await server.close()


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that nobody asks."""


def _largest_descriptor() -> int:
    return max(int(one.name) for one in Path("/proc/self/fd").iterdir())
