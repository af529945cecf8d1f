"""Calls beside the loop: their outcome comes back, and one that hangs keeps nobody."""

import asyncio
import subprocess
import sys

import pytest

from chairlift.runtime.aside import run_aside


async def test_outcome_comes_back() -> None:
    assert await run_aside(lambda: 7, "t") == 7
    with pytest.raises(ZeroDivisionError):
        await run_aside(lambda: 1 // 0, "t")


HANGING = """
import asyncio, threading
from chairlift.runtime.aside import run_aside

async def main():
    hanging = asyncio.create_task(run_aside(threading.Event().wait, "t"))
    await asyncio.sleep(0)
    hanging.cancel()

asyncio.run(main())
"""


async def test_a_process_ends_while_one_hangs() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HANGING, stderr=subprocess.DEVNULL)
    try:
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
