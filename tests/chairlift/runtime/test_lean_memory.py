"""What a process lets go of once it has started."""

import subprocess
import sys

import pytest

_PROGRAM = """
import decimal, hashlib, json, re, ssl, zmq
from chairlift.runtime.lean_memory import let_go_of_code, settle
def resident():
    found, kib = False, 0
    for line in open("/proc/self/smaps"):
        if "-" in line.split(" ", 1)[0]:
            found = line.split()[1] == "r-xp" and "/" in line
        elif found and line.startswith("Rss:"):
            kib += int(line.split()[1])
    return kib
before = resident()
let_go_of_code()
after = resident()
settle()
# Whatever was dropped runs as before.
context = ssl.create_default_context()
assert json.loads(json.dumps([1.5])) == [1.5] and hashlib.sha256(b"").digest() and decimal.Decimal(1) / 3
assert zmq.Context().socket(zmq.DEALER).getsockopt(zmq.LINGER) == -1
print(before, after)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the pages of a process are told by Linux's /proc")
def test_code_that_only_ran_at_the_start_is_let_go_of_and_runs_again() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < 0.7 * before
