"""``deploy/bench/gpu_check.py --dry`` under the repaired interpreter: what a GPU machine will run, on tiny sizes."""

import sys
import warnings

import torch

from deploy.bench.gpu_check import main
from tests.gpu_worker.kernels_triton.interpreter import repair

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    repair.install()
    sys.exit(main([*sys.argv[1:], "--dry", "--seed", "3"]))
