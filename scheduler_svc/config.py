"""What operators see of the core's knobs, and their changes, which are held to the settings' own bounds.

The units are `core.units`'.
"""

from collections.abc import Iterable

import msgspec

from chairlift.ipc import device
from chairlift.ipc.operator import KnobValue, SchedulingKnobs
from chairlift.runtime.settings import SchedulerSettings
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.units import from_config, to_knob

KNOB_NAMES = SchedulingKnobs.__struct_fields__
CHANGEABLE = frozenset(KNOB_NAMES) - {"block_size"}
_SIZED_BY_DEVICE = ("max_num_seqs", "max_num_batched_tokens")


class KnobFaultError(ValueError):
    """A knob that cannot have that value."""

    def __init__(self, knob: str, message: str, **limits: object) -> None:
        super().__init__(f"{knob}: {message}")
        self.knob = knob
        self.message = message
        self.limits = tuple((name, str(value)) for name, value in limits.items())


def changed_config(
    config: SchedulingConfig, changes: Iterable[tuple[str, KnobValue]], geometry: device.Geometry | None
) -> SchedulingConfig:
    """`config` with other values, named and measured as in the settings and bounded as there. Raises KnobFaultError."""
    knobs: dict[str, object] = {}
    for name, value in changes:
        if name == "block_size":
            _check_block_size(value, geometry)
        else:
            knob, converted = to_knob(name, _checked(name, value, geometry))
            knobs[knob] = converted
    return msgspec.structs.replace(config, **knobs)


def _checked(name: str, value: KnobValue, geometry: device.Geometry | None) -> object:
    if name not in CHANGEABLE:
        raise KnobFaultError(name, "is no knob that can be changed while the scheduler runs")
    default = getattr(SchedulerSettings(), name)
    try:
        checked = getattr(msgspec.convert({name: default if value is None else value}, SchedulerSettings), name)
    except msgspec.ValidationError as error:
        raise KnobFaultError(name, str(error).partition(" - at ")[0]) from None
    bound = getattr(geometry, name, None) if name in _SIZED_BY_DEVICE else None
    if bound is not None and isinstance(checked, int) and checked > bound:
        raise KnobFaultError(name, f"the worker was started for {bound} at most", **{name: bound})
    return checked


def _check_block_size(value: KnobValue, geometry: device.Geometry | None) -> None:
    if geometry is None or value != geometry.block_size:
        raise KnobFaultError("block_size", "is fixed at the start")


def scheduling_knobs(config: SchedulingConfig, geometry: device.Geometry | None) -> SchedulingKnobs:
    """The knobs in the settings file's units, as the worker allows them; 0 where that depends on it and none was up."""
    tokens = _bounded(config.max_num_batched_tokens, None if geometry is None else geometry.max_num_batched_tokens)
    seats = _bounded(config.max_num_seqs, None if geometry is None else min(geometry.max_num_seqs, tokens))
    values = {name: 0 if value is None else value for name, value in from_config(config, KNOB_NAMES).items()}
    values |= {
        "max_num_seqs": seats,
        "max_num_batched_tokens": tokens,
        "block_size": 0 if geometry is None else geometry.block_size,
        "static_batch_size": config.static_batch_size or seats,
    }
    return SchedulingKnobs(**values)  # type: ignore[arg-type]  # names and types are held together by a test


def changed_names(before: SchedulingConfig, after: SchedulingConfig) -> tuple[str, ...]:
    """Knobs in which two configurations differ, whatever a worker makes of them."""
    plain = [
        msgspec.structs.replace(scheduling_knobs(config, None), static_batch_size=config.static_batch_size or 0)
        for config in (before, after)
    ]
    return tuple(name for name in KNOB_NAMES if getattr(plain[0], name) != getattr(plain[1], name))


def _bounded(wanted: int | None, bound: int | None) -> int:
    return min((one for one in (wanted, bound) if one is not None), default=0)
