"""How long a step takes on the modelled device. Pure.

Linear in what the step computes: a part for each step (weights are read once), for each row that decodes, and for each
prompt token. Real devices bend; the model is for comparing ways to schedule, not for predicting a machine.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from chairlift.ipc import device
from chairlift.ipc.tokens import unpack_u32

Microseconds = Annotated[float, Meta(ge=0)]


class DeviceCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The default resembles a 135M model in bfloat16 on two cores."""

    step_us: Microseconds = 15_000.0
    decode_row_us: Microseconds = 1_300.0
    prefill_token_us: Microseconds = 650.0

    def step_ns(self, plan: device.Plan) -> int:
        """Time of one step."""
        num_decodes = len(unpack_u32(plan.decode))
        num_prefill = sum(unpack_u32(plan.chunks)[1::2])
        cost_us = self.step_us + self.decode_row_us * num_decodes + self.prefill_token_us * num_prefill
        return round(cost_us * 1_000)
