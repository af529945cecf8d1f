"""Scheduling knobs between the contract and the link: both name them as the settings do."""

import math

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from chairlift.ipc.operator import KnobValue, SchedulingKnobs
from chairlift.v1 import ops_pb2 as pb
from gateway.validation.violations import Violations

_BATCHING: dict[str, int] = {"continuous": pb.BATCHING_MODE_CONTINUOUS, "static": pb.BATCHING_MODE_STATIC}
_POLICIES: dict[str, int] = {
    "fcfs": pb.SCHEDULING_POLICY_FCFS,
    "priority": pb.SCHEDULING_POLICY_PRIORITY,
    "fair": pb.SCHEDULING_POLICY_FAIR,
    "slo": pb.SCHEDULING_POLICY_SLO,
}
_PREEMPTION: dict[str, int] = {
    "auto": pb.PREEMPTION_MODE_AUTO,
    "recompute": pb.PREEMPTION_MODE_RECOMPUTE,
    "swap": pb.PREEMPTION_MODE_SWAP,
}
_WORDS = {"batching": _BATCHING, "policy": _POLICIES, "preemption": _PREEMPTION}
_NUMBERS = {knob: {value: word for word, value in words.items()} for knob, words in _WORDS.items()}

_NONE_AS_ZERO = frozenset(
    {
        "itl_target_ms",
        "queue_timeout_ms",
        "ttft_slo_ms",
        "tenant_max_num_seqs",
        "tenant_max_num_queued_reqs",
        "tenant_token_rate",
    }
)
_DECIDED_BY_DEVICE = frozenset({"max_num_seqs", "max_num_batched_tokens", "static_batch_size"})
_KNOBS = frozenset(field.name for field in pb.SchedulingConfig.DESCRIPTOR.fields)


def config_message(knobs: SchedulingKnobs, *, with_tenants: bool) -> pb.SchedulingConfig:
    """Every knob's value."""
    message = pb.SchedulingConfig()
    for name in sorted(_KNOBS - {"tenants"}):
        value = getattr(knobs, name)
        # A newer scheduler may have a word that this gateway does not know: it stays unset then.
        known = _WORDS[name].get(value) if name in _WORDS else value
        if known is not None:
            setattr(message, name, known)
    if with_tenants:
        message.tenants.extend(knobs.tenants)
    return message


def read_changes(
    config: pb.SchedulingConfig, mask: FieldMask, violations: Violations
) -> tuple[tuple[str, KnobValue], ...]:
    """The knobs that `mask` names, with their new values; None for what the device decides."""
    violations.check_unknown_fields(config, "config")
    violations.check(bool(mask.paths), "update_mask", "names no knob")
    changes: dict[str, KnobValue] = {}
    for position, path in enumerate(mask.paths):
        if violations.is_full:
            break
        if path in _KNOBS:
            changes[path] = _read(config, path, violations)
        else:
            violations.add(f"update_mask.paths[{position}]", "is no scheduling knob")
    return tuple(changes.items())


def _read(config: Message, name: str, violations: Violations) -> KnobValue:
    field = f"config.{name}"
    if name == "tenants":
        return tuple(getattr(config, name))
    if not config.HasField(name):
        violations.check(name in _DECIDED_BY_DEVICE, field, "is named by update_mask and has no value")
        return None
    value = getattr(config, name)
    if name in _NUMBERS:
        word = _NUMBERS[name].get(value)
        violations.check(word is not None, field, f"must be one of {', '.join(_WORDS[name])}")
        return word
    if isinstance(value, float) and not math.isfinite(value):
        violations.add(field, "must be a number")
    return None if value == 0 and name in _NONE_AS_ZERO else value
