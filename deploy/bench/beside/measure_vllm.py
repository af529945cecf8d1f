"""Runs vLLM's scheduler beside ours, in one sitting, with the Python of an environment that has vLLM in it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from deploy.bench.errors import BenchError

_SCRIPT = Path(__file__).with_name("vllm_scheduler.py")
_TIMEOUT_S = 600.0


def measure_vllm_scheduler(python: Path, num_steps: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Its version, and figures by size as ours are. Raises BenchError with the end of what it said."""
    command = [str(python), str(_SCRIPT), str(num_steps), *map(str, sizes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        if done.returncode == 0:
            found: dict[str, Any] = msgspec.json.decode(done.stdout.splitlines()[-1])
            return found
    except OSError as error:
        raise BenchError(f"{python}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"vLLM's scheduler took longer than {_TIMEOUT_S:g} s") from None
    except (IndexError, msgspec.MsgspecError):
        raise BenchError("vLLM's scheduler printed no figures") from None
    raise BenchError(f"vLLM's scheduler failed: {done.stderr.strip().rpartition(chr(10))[2]}")
