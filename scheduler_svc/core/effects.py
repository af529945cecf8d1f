"""What the core wants done. The shell carries effects out in order and decides nothing."""

import msgspec

from chairlift.ipc import device, front


class SendPlan(msgspec.Struct, frozen=True, gc=False):
    """Send this plan to the worker (to every rank of it)."""

    plan: device.Plan


class Emit(msgspec.Struct, frozen=True, gc=False):
    """Send this message to that gateway. A gateway that is gone is no error: its loss is an event of its own."""

    gateway: int
    message: front.ToGateway


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send a Tick no later than `at_ns`, whatever else happens. A later WakeAt replaces an earlier one."""

    at_ns: int


Effect = SendPlan | Emit | WakeAt
