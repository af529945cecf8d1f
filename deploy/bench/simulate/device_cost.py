"""How long a step takes on the modelled device. Pure.

Linear in what the step computes: a part for each step (weights are read once), for each row that decodes, for each
prompt token, and for each block that is swapped. Real devices bend; the model is for comparing ways to schedule, not
for predicting a machine.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from chairlift.ipc import device
from chairlift.ipc.tokens import unpack_u32

Microseconds = Annotated[float, Meta(ge=0, le=1e9)]


class DeviceCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The default resembles a 135M model in bfloat16 on two cores."""

    step_us: Microseconds = 15_000.0
    decode_row_us: Microseconds = 1_300.0
    prefill_token_us: Microseconds = 650.0
    swap_block_us: Microseconds = 100.0
    """To copy one block to or from the host's pool."""

    def step_ns(self, plan: device.Plan) -> int:
        """Time of one step."""
        num_decodes = len(unpack_u32(plan.decode))
        num_prefill = sum(unpack_u32(plan.chunks)[1::2])
        num_swapped = (len(unpack_u32(plan.swap_out)) + len(unpack_u32(plan.swap_in))) // 2
        cost_us = self.step_us + self.decode_row_us * num_decodes + self.prefill_token_us * num_prefill
        cost_us += self.swap_block_us * num_swapped
        return round(cost_us * 1_000)
