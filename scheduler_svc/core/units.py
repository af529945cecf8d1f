"""From the units that people write to the core's: seconds and milliseconds become nanoseconds, shares parts a million.

By name, as the settings file has them; the one place for the scheduler's process and the simulators. Checks no bounds.
"""

from collections.abc import Mapping

from scheduler_svc.core.config import PARTS_PER_MILLION, SchedulingConfig

_FACTORS = {"_s": 1_000_000_000, "_ms": 1_000_000}


def to_knob(name: str, value: object) -> tuple[str, object]:
    """The core's name and value for a setting such as ``static_batch_wait_ms`` or ``watermark``."""
    if name == "watermark" and isinstance(value, int | float):
        return "watermark_ppm", round(value * PARTS_PER_MILLION)
    stem, _, unit = name.rpartition("_")
    factor = _FACTORS.get(f"_{unit}")
    if factor is None:
        return name, value
    return f"{stem}_ns", round(value * factor) if isinstance(value, int | float) else value


def to_config(settings: Mapping[str, object]) -> SchedulingConfig:
    """The knobs among `settings`; what only a shell needs is left out."""
    knobs = dict(to_knob(name, value) for name, value in settings.items())
    known = {name: value for name, value in knobs.items() if name in SchedulingConfig.__struct_fields__}
    return SchedulingConfig(**known)  # type: ignore[arg-type]  # names and types are held together by a test
