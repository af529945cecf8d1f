"""From the settings file's units to the core's: seconds and milliseconds become nanoseconds, shares parts a million."""

from chairlift.ipc import front
from chairlift.runtime.settings import SchedulerSettings
from scheduler_svc.core.config import PARTS_PER_MILLION, SchedulingConfig

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_CONVERSIONS = {"_s": ("_ns", _NS_PER_S), "_ms": ("_ns", _NS_PER_MS)}
_SHARES = {"watermark": "watermark_ppm"}


def scheduling_config(settings: SchedulerSettings) -> SchedulingConfig:
    """The knobs of `settings`, by name; what only the shell needs is left out."""
    knobs: dict[str, object] = {}
    for name in settings.__struct_fields__:
        knob, value = _convert(name, getattr(settings, name))
        if knob in SchedulingConfig.__struct_fields__:
            knobs[knob] = value
    return SchedulingConfig(**knobs)  # type: ignore[arg-type]  # names and types are held together by a test


def scheduling_knobs(config: SchedulingConfig, limits: front.ReplicaLimits) -> front.SchedulingKnobs:
    """The knobs in force, in the settings file's units; `limits` has what the worker's geometry decided."""
    return front.SchedulingKnobs(
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        limits.block_size,
        config.long_prefill_token_threshold,
        config.watermark_ppm / PARTS_PER_MILLION,
        config.max_num_queued_reqs,
        config.max_num_queued_tokens,
        config.enable_chunked_prefill,
        config.enable_prefix_caching,
        config.batching,
        config.policy,
        config.preemption,
        config.static_batch_size or limits.max_num_seqs,
        config.static_batch_wait_ns / _NS_PER_MS,
        config.max_head_bypass_ns / _NS_PER_MS,
    )


def _convert(name: str, value: object) -> tuple[str, object]:
    if name in _SHARES and isinstance(value, float):
        return _SHARES[name], round(value * PARTS_PER_MILLION)
    for suffix, (new_suffix, factor) in _CONVERSIONS.items():
        if name.endswith(suffix) and isinstance(value, int | float):
            return name.removesuffix(suffix) + new_suffix, round(value * factor)
    return name, value
