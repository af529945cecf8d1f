"""The same events at the same times give the same effects, byte for byte, in any process."""

import os
import subprocess
import sys
from pathlib import Path

_RUN = Path(__file__).with_name("pure_run.py")


def _effects(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(_RUN), "1500"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_effects_do_not_depend_on_pythons_hash_seed() -> None:
    """Nothing may iterate over a set, or compare by identity."""
    one, other = _effects("1"), _effects("7777")
    assert one == other
    assert int(one.split()[2]) > 500


def test_the_core_imports_nothing_that_could_tell_time_or_touch_the_world() -> None:
    """In a fresh interpreter: parents' imports count too, which the import linter does not see."""
    forbidden = (
        "zmq",
        "grpc",
        "torch",
        "asyncio",
        "threading",
        "random",
        "logging",
        "structlog",
        "opentelemetry",
        "numpy",
    )
    # What the interpreter and msgspec bring along themselves is not the core's doing.
    code = (
        "import sys, msgspec; before = set(sys.modules); import scheduler_svc.core.core; "
        f"print([name for name in {forbidden!r} if name in sys.modules and name not in before])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
