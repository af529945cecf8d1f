"""A stand-in that is started as the real processes are: ``python -m stand_in_service --set …``.

Serves the probe that it was handed, writes its name and id to $STAND_IN_LOG, and ends at SIGTERM.
"""

import os
import select
import sys
from pathlib import Path

from chairlift.runtime.addresses import parse_address
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import die_with_parent, stop_on_signals
from chairlift.runtime.settings_loader import parse_settings


def main() -> int:
    die_with_parent()
    settings = parse_settings(sys.argv[1:], "stand_in_service")
    listens = {name: getattr(settings, name).metrics_listen for name in ("scheduler", "worker", "gateway")}
    (name,) = (name for name, listen in listens.items() if not listen.endswith(":0"))
    with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
        log.write(f"{name} start {os.getpid()}\n")
    state = ProcessState(stale_after_s=1e9, sign=LifeSign.inherited())
    state.set_ready(True)
    offset = settings.gateway.index if name == "gateway" else 0
    probes = ProbeServer(str(parse_address(listens[name], f"{name}.metrics_listen", offset)), state)
    with stop_on_signals() as stop:
        select.select([stop], [], [])
    probes.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
