"""A supervisor of stand-ins in a process of its own, to be signalled.

supervise.py LOG NAME:BEHAVIOUR:START_STAGE:STOP_STAGE…
"""

import asyncio
import os
import sys
from pathlib import Path

from chairlift.runtime.addresses import Address
from chairlift.runtime.settings import SupervisorSettings
from deploy.launcher.child import ChildSpec, Launch
from deploy.launcher.ports import find_free
from deploy.launcher.progress import Progress
from deploy.launcher.run import run_until_stopped
from deploy.launcher.supervisor import Supervisor

STAND_IN = Path(__file__).with_name("stand_in.py")


def make_spec(log: str, text: str) -> ChildSpec:
    name, behaviour, start_stage, stop_stage = text.rsplit(":", 3)

    def prepare() -> Launch:
        probe = find_free(Address("127.0.0.1", 0))
        return Launch((sys.executable, str(STAND_IN), str(probe.port), log, name, behaviour), dict(os.environ), probe)

    return ChildSpec(name, int(start_stage), int(stop_stage), 60.0, prepare)


async def supervise(log: str, *specs: str) -> int:
    progress = Progress()
    settings = SupervisorSettings(max_restarts=2, restart_backoff_s=0.0)
    supervisor = Supervisor([make_spec(log, text) for text in specs], settings, progress)

    async def on_ready() -> None:
        print("all ready", flush=True)

    return await run_until_stopped(supervisor, progress, on_ready)


if __name__ == "__main__":
    sys.exit(asyncio.run(supervise(*sys.argv[1:])))
