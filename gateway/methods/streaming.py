"""Gives a client what its generation has, until the end. One message a choice at most for each thing that happens."""

import asyncio
import time

from gateway.call import Call
from gateway.streams.generation import Generation, Phase
from gateway.streams.generation_table import GenerationTable


async def stream(generation: Generation, table: GenerationTable, call: Call) -> None:
    """Serves the call that `generation` belongs to. Raises ApiError where its end is not OK.

    The call's end, whatever it is, releases the generation: the scheduler hears at once that a client has gone.
    """
    call.generation = generation
    alarm = _expire_at(call.ends_at, table, generation)
    try:
        await _write_all(generation, call)
    finally:
        if alarm is not None:
            alarm.cancel()
        table.release(generation)
        call.add_trailing("chairlift-replica", generation.replica_id)
    if generation.error is not None:
        raise generation.error


def _expire_at(ends_at: float | None, table: GenerationTable, generation: Generation) -> asyncio.TimerHandle | None:
    if ends_at is None:
        return None
    return asyncio.get_running_loop().call_later(ends_at - time.monotonic(), table.expire, generation)


async def _write_all(generation: Generation, call: Call) -> None:
    output = generation.output
    output.serve_in_this_task()
    try:
        while True:
            messages = generation.take(time.monotonic())
            for message in messages:
                await call.write(message)
            if generation.phase is Phase.ENDED and not output.has_news:
                return
            await output.wait()
    except asyncio.CancelledError:
        if not output.was_interrupted:
            raise
        # Cancelled from here, for a client that does not read: its call ends with a status of its own.
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
