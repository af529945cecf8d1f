"""Asks a process's HTTP port whether it is ready."""

import asyncio

import msgspec

from deploy.launcher.address import Address

_ANSWER_BYTES = 4096


class Readiness(msgspec.Struct, frozen=True):
    """A process's answer, or that there was none."""

    is_ready: bool
    reason: str = ""
    """Why it is not, in its own words; empty while it does not answer."""


async def ask_ready(address: Address, timeout_s: float = 1.0) -> Readiness:
    """One ``GET /readyz``. A process that does not answer in time is not ready."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _get(address, "/readyz")
    except (OSError, TimeoutError):
        return Readiness(False)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    return Readiness(status == [b"200"], body.decode(errors="replace").strip())


async def _get(address: Address, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        await writer.drain()
        answer = bytearray()
        while len(answer) < _ANSWER_BYTES and (part := await reader.read(_ANSWER_BYTES)):
            answer += part
        return bytes(answer)
    finally:
        writer.close()
