"""A stand-in for a child process: ready at once, ends at SIGTERM, and fails as it is told.

    stand_in.py PORT LOG NAME [BEHAVIOUR]

Writes a line to LOG for what happens to it. BEHAVIOUR: `serve`, `loading` (never ready), `crash` (dies), `crash-once`,
`stubborn` (ignores SIGTERM), `family` (has a child of its own), `exit:N` (ends at once with code N).
At SIGUSR1 it hangs, and has done so for an age.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import die_with_parent, stop_on_signals


def main(port: str, log: str, name: str, behaviour: str = "serve") -> int:
    die_with_parent()
    file = Path(log)

    def note(event: str) -> None:
        with file.open("a") as out:
            out.write(f"{name} {event}\n")

    note(f"start {os.getpid()}")
    if behaviour.startswith("exit:"):
        return int(behaviour.removeprefix("exit:"))
    if behaviour == "crash-once" and file.read_text().count(f"{name} start") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "family":
        relative = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note(f"start {relative.pid}")
    state = ProcessState(stale_after_s=1e9, sign=LifeSign.inherited())

    def hang(*_: object) -> None:
        state.turned(rest_s=-2e9)
        time.sleep(1e6)

    signal.signal(signal.SIGUSR1, hang)
    probes = ProbeServer(f"127.0.0.1:{port}", state)
    with stop_on_signals() as stop:
        if behaviour == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if behaviour == "crash":
            return 1
        state.set_ready(behaviour != "loading", "loading weights")
        select.select([stop], [], [])
    note("end")
    probes.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
