"""What the core wants done. The shell carries effects out in order and decides nothing."""

import msgspec

from chairlift.ipc import device, front
from scheduler_svc.core.revisions import Revision


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


class ConfigRevised(msgspec.Struct, frozen=True):
    """Other knobs are in force: by ConfigChanged, ConfigRolledBack, or a guard on its own."""

    revision: Revision


class ConfigRefused(msgspec.Struct, frozen=True):
    """A change of the knobs was turned down; nothing has changed."""

    reason: str
    """A `Reason`."""
    message: str


Effect = SendPlan | Emit | WakeAt | ConfigRevised | ConfigRefused
