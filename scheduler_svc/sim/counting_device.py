"""A worker that only counts: what a plan samples, with no token in it that means anything.

For simulation and measurement, where a device must cost next to nothing. Outputs end by `max_tokens`.
"""

from chairlift.ipc import device
from chairlift.ipc.tokens import unpack_u32


class CountingDevice:
    """One life of a worker. Trusts the plans that it gets."""

    def __init__(self, worker_epoch: int) -> None:
        self.worker_epoch = worker_epoch
        self._gaps: dict[int, int] = {}
        """Tokens known and not computed, of rows that have not closed their gap."""

    def execute(self, plan: device.Plan) -> device.StepDone:
        """The result of one step: as many ids as rows sample."""
        return device.StepDone(self.worker_epoch, plan.step, bytes(4 * self.num_sampled(plan)))

    def num_sampled(self, plan: device.Plan) -> int:
        """Rows of the plan that sample, the plan's changes taken in."""
        for boarded in plan.boarded:
            self._gaps[boarded.row] = len(boarded.tokens) // 4 - boarded.computed
        count = len(plan.decode) // 4
        if plan.chunks:
            pairs = unpack_u32(plan.chunks)
            for at in range(0, len(pairs), 2):
                row, num_tokens = pairs[at], pairs[at + 1]
                self._gaps[row] -= num_tokens
                if self._gaps[row] == 0:
                    # After a void step a row may close a gap of one again and again.
                    self._gaps[row] = 1
                    count += 1
        return count
