"""What every test relies on: reproducible property tests without time limits, and a header that names the machine."""

import os
import platform
import signal
import sys
from importlib.metadata import PackageNotFoundError, version

from hypothesis import settings

# Time limits on single examples would make tests depend on what else the machine does.
settings.register_profile("local", deadline=None, print_blob=True)
# In CI the same examples each time: a red run is about the change, not about luck.
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# Where a shell runs this in the background it ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """The versions that most often explain a difference between two machines."""
    found = []
    for name in ("torch", "grpcio", "protobuf", "msgspec", "pyzmq"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} absent")
    return f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}; {', '.join(found)}"
