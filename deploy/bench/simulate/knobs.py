"""From the settings' units to the core's. The scheduler's own shell does the same; it is no library for others."""

from chairlift.runtime.settings import SchedulerSettings
from scheduler_svc.core.config import PARTS_PER_MILLION, SchedulingConfig


def to_scheduling_config(settings: SchedulerSettings) -> SchedulingConfig:
    """The knobs that the core has, by name."""
    knobs: dict[str, object] = {}
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if name == "watermark":
            knobs["watermark_ppm"] = round(value * PARTS_PER_MILLION)
        elif name.endswith("_ms") and value is not None:
            knobs[name.removesuffix("_ms") + "_ns"] = round(value * 1_000_000)
        elif name.endswith("_s") and value is not None:
            knobs[name.removesuffix("_s") + "_ns"] = round(value * 1_000_000_000)
        else:
            knobs[name] = value
    known = {name: value for name, value in knobs.items() if name in SchedulingConfig.__struct_fields__}
    return SchedulingConfig(**known)  # type: ignore[arg-type]  # a test holds names and types together
