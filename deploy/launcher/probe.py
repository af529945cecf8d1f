"""Asks a process's HTTP port whether it is ready, whether it lives, and a scheduler whose fault ends were."""

import asyncio

import msgspec

from chairlift.runtime.addresses import Address
from chairlift.runtime.metric_table import EXCUSED_LOSSES

_ANSWER_BYTES = 4096
_METRICS_BYTES = 1 << 20
_TIMEOUT_S = 1.0


class Answer(msgspec.Struct, frozen=True):
    """What a process said, or that it said nothing."""

    is_yes: bool
    reason: str = ""
    """Why not, in its own words; empty while it does not answer."""


async def ask_ready(address: Address, timeout_s: float = _TIMEOUT_S) -> Answer:
    """One ``GET /readyz``. A process that does not answer in time is not ready."""
    return await _ask(address, "/readyz", timeout_s)


async def ask_live(address: Address, timeout_s: float = _TIMEOUT_S) -> Answer:
    """One ``GET /livez``. A process that does not answer in time is not live."""
    return await _ask(address, "/livez", timeout_s)


async def ask_excused_losses(scheduler: Address, timeout_s: float = _TIMEOUT_S) -> int | None:
    """How many ends of its workers a scheduler has found a request guilty of, over its life.

    None while it does not say: no answer in time, or half of one.
    """
    try:
        async with asyncio.timeout(timeout_s):
            text = (await _get(scheduler, "/metrics", _METRICS_BYTES)).decode(errors="replace")
    except (OSError, TimeoutError):
        return None
    series = f"{EXCUSED_LOSSES.exposed_name} "
    values = [line.removeprefix(series) for line in text.splitlines() if line.startswith(series)]
    return round(float(values[0])) if values and text.endswith("\n") else None


async def _ask(address: Address, path: str, timeout_s: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _get(address, path)
    except (OSError, TimeoutError):
        return Answer(False)
    head, _, body = answer.partition(b"\r\n\r\n")
    return Answer(head.split(b" ", 2)[1:2] == [b"200"], body.decode(errors="replace").strip())


async def _get(address: Address, path: str, most: int = _ANSWER_BYTES) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        await writer.drain()
        answer = bytearray()
        while len(answer) < most and (part := await reader.read(most)):
            answer += part
        return bytes(answer)
    finally:
        writer.close()
