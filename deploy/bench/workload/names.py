"""Names of the workloads, and what is wrong with a name or a file. Imports nothing heavy, for `--help`."""

from deploy.bench.errors import BenchUsageError

RANDOM_WORKLOADS = ("short-short", "short-long", "long-short", "long-long", "mixed", "sparse")
NOISY_NEIGHBOUR = "noisy-neighbour"
FLOODING_TENANT, QUIET_TENANT = "flooding", "quiet"
WORKLOADS = (
    *RANDOM_WORKLOADS,
    "shared-prefix",
    "chat",
    NOISY_NEIGHBOUR,
    "peers-mixed",
    "peers-single",
    "peers-prefill",
)
SPARSE_RATE = 0.2
"""Requests a second of the workload `sparse` unless another load is asked for: they seldom meet."""


def tenants_of(workload: str) -> tuple[str, ...]:
    """Who sends the requests of the workload so called; empty where there is no more than one."""
    return (FLOODING_TENANT, QUIET_TENANT) if workload == NOISY_NEIGHBOUR else ()


class WorkloadError(BenchUsageError):
    """A workload that does not exist, or a file that cannot be read as one. The message says what was expected."""
