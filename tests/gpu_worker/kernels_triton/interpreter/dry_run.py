"""``deploy/bench/gpu_check.py --dry`` under the repaired interpreter: what a GPU machine will run, on tiny sizes.

Its logic must not fail for the first time on a machine that is at hand for minutes.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from deploy.bench.gpu_check import main
from tests.gpu_worker.kernels_triton.interpreter import repair

_PARTS = {"machine", "ceilings", "correct", "decode", "prefill", "elementwise", "int8", "cuda", "engine", "service"}
_SEED = "3"


def _check(folder: Path) -> None:
    code = main([str(folder), "--dry", "--seed", _SEED])
    held = json.loads((folder / "gpu_check.json").read_text())
    assert code == 0, f"exit code {code}"
    assert held["failures"] == [], held["failures"]
    assert set(held["parts"]) >= _PARTS, f"parts {sorted(held['parts'])}"
    failed = [row for rows in held["parts"].values() for row in rows if "FAILED" in row]
    assert not failed, failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    repair.install()
    with tempfile.TemporaryDirectory() as made:
        _check(Path(made))
    sys.exit(0)
