"""What a process tells of itself: version, commit, age, where it runs."""

import os
import socket
import time
from pathlib import Path

import chairlift
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, ProcessFacts

COMMIT_ENV = "CHAIRLIFT_COMMIT"
"""Set where the code was built from a commit and no repository lies beside it, as in an image."""
_MAX_COMMIT_CHARS = 64


def find_commit(folder: Path | None = None) -> str:
    """The commit that this code was built from: by the environment or the repository that it lies in; or empty."""
    told = os.environ.get(COMMIT_ENV, "")
    if told:
        return told[:_MAX_COMMIT_CHARS]
    start = Path(chairlift.__file__).resolve().parent if folder is None else folder
    # An installed package may lie in somebody else's repository: only ours has this file at its root.
    for root in start.parents:
        if (root / ".git").exists():
            return _head(root / ".git") if (root / "hatch_build.py").is_file() else ""
    return ""


def process_facts(epoch: int, started_ns: int) -> ProcessFacts:
    """This process; `started_ns` is a reading of the monotonic clock."""
    return ProcessFacts(
        version=chairlift.__version__,
        commit=find_commit(),
        ipc_version=f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}",
        epoch=epoch,
        uptime_ns=time.monotonic_ns() - started_ns,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def _head(folder: Path) -> str:
    """The commit that a repository's HEAD names; empty where that cannot be read."""
    try:
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:_MAX_COMMIT_CHARS]
        name = head.removeprefix("ref: ")
        loose = folder / name
        if loose.is_file():
            return loose.read_text().strip()[:_MAX_COMMIT_CHARS]
        for line in (folder / "packed-refs").read_text().splitlines():
            commit, _, ref = line.partition(" ")
            if ref == name:
                return commit
    except (OSError, UnicodeDecodeError):
        return ""
    return ""
