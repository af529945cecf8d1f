"""The scheduler's knobs out of the settings; the conversion itself is the core's, as the scheduler's process has it."""

import msgspec

from chairlift.runtime.settings import SchedulerSettings
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.units import to_config


def to_scheduling_config(settings: SchedulerSettings) -> SchedulingConfig:
    """The knobs that the core has, by name."""
    return to_config(msgspec.structs.asdict(settings))
