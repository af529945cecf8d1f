"""Calls that may hang, beside an event loop and without a hold on the process: its end waits for none of them.

What `asyncio.to_thread` starts is waited for when the process ends; a file on a server that is away would hold it.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def run_aside(function: Callable[[], _T], name: str) -> _T:
    """What `function` returns or raises, run in a daemon thread of that name. A cancelled wait leaves it running."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()

    def succeed(result: _T) -> None:
        if not outcome.cancelled():
            outcome.set_result(result)

    def fail(error: Exception) -> None:
        if not outcome.cancelled():
            outcome.set_exception(error)

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  # the waiter's
            _hand_over(loop, functools.partial(fail, error))
        else:
            _hand_over(loop, functools.partial(succeed, result))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome


def _hand_over(loop: asyncio.AbstractEventLoop, settle: Callable[[], object]) -> None:
    # The loop may have been closed since.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
