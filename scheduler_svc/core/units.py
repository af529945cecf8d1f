"""Between the units that people write and the core's: seconds and milliseconds are nanoseconds, shares parts a million.

By name, as the settings file has them; the one place for the scheduler's process and the simulators. Checks no bounds.
"""

from collections.abc import Iterable

import msgspec

from scheduler_svc.core.config import PARTS_PER_MILLION, SchedulingConfig
from scheduler_svc.core.revisions import Guard, GuardMetric

_FACTORS = {"s": 1_000_000_000, "ms": 1_000_000}
_GUARD_UNITS = {
    GuardMetric.TTFT_P99: ("ttft_p99_ms", 1_000_000),
    GuardMetric.ITL_P99: ("itl_p99_ms", 1_000_000),
    GuardMetric.QUEUE_P99: ("queue_p99_ms", 1_000_000),
    GuardMetric.ERROR_RATIO: ("error_ratio", PARTS_PER_MILLION),
    GuardMetric.PREEMPTION_RATE: ("preemptions_per_second", 1_000),
}
"""Names as operators write them, and what one of their units is in the core's."""


def to_knob(name: str, value: object) -> tuple[str, object]:
    """The core's name and value for a setting such as ``static_batch_wait_ms`` or ``watermark``."""
    knob, factor = _knob_of(name)
    return knob, round(value * factor) if factor is not None and isinstance(value, int | float) else value


def to_config(settings: msgspec.Struct) -> SchedulingConfig:
    """The knobs among the fields of `settings`, by name; what only a shell needs is left out."""
    knobs = dict(to_knob(name, value) for name, value in msgspec.structs.asdict(settings).items())
    known = {name: value for name, value in knobs.items() if name in SchedulingConfig.__struct_fields__}
    return SchedulingConfig(**known)  # type: ignore[arg-type]  # names and types are held together by a test


def from_config(config: SchedulingConfig, names: Iterable[str]) -> dict[str, object]:
    """The settings of those names, as `to_config` would take them; names that are no knobs are left out."""
    settings: dict[str, object] = {}
    for name in names:
        knob, factor = _knob_of(name)
        if knob in SchedulingConfig.__struct_fields__:
            value = getattr(config, knob)
            settings[name] = value if factor is None or value is None else value / factor
    return settings


def guard_bound(guard: Guard) -> tuple[str, str]:
    """The metric and the bound as an operator writes them: ``itl_p99_ms`` and ``80``."""
    name, factor = _GUARD_UNITS[guard.metric]
    return name, f"{guard.bound / factor:.15g}"


def _knob_of(name: str) -> tuple[str, int | None]:
    """The core's name for a setting, and what one of its units is in the core's; None: the same."""
    if name == "watermark":
        return "watermark_ppm", PARTS_PER_MILLION
    stem, _, unit = name.rpartition("_")
    factor = _FACTORS.get(unit)
    return (name, None) if factor is None else (f"{stem}_ns", factor)
