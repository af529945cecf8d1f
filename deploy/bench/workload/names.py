"""Names of the workloads, and what is wrong with a name or a file. Imports nothing heavy, for `--help`."""

from deploy.bench.errors import BenchUsageError

RANDOM_WORKLOADS = ("short-short", "short-long", "long-short", "long-long", "mixed", "sparse")
WORKLOADS = (*RANDOM_WORKLOADS, "shared-prefix", "chat", "peers-mixed", "peers-single", "peers-prefill")
SPARSE_RATE = 0.2
"""Requests a second of the workload `sparse` unless another load is asked for: they never meet."""


class WorkloadError(BenchUsageError):
    """A workload that does not exist, or a file that cannot be read as one. The message says what was expected."""
