"""The core's whole state as bytes, and back: where a recording begins in the middle of a life.

A closed format: values, containers and the classes listed here, each object once, references by number. Reading makes
those and nothing else. What is written may first be stripped of everything that a user wrote; see `redaction`.
"""

import enum
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from chairlift.ipc import common, device, front
from scheduler_svc.core import (
    batch,
    blocked,
    blocks,
    columns,
    config,
    cost_model,
    forecast,
    guard,
    host_pool,
    ledger,
    probation,
    queue,
    request,
    revisions,
    sequence,
    spread,
    state,
    steps,
    tenants,
    timers,
)
from scheduler_svc.core.policies import arrival, fair, fcfs, priority, slo

_OBJECTS = (
    state.SchedulerState,
    state.Gateway,
    state.Counters,
    state.Worker,
    batch.Batch,
    blocked.Blocked,
    blocked.VainSearch,
    blocks.BlockPool,
    columns.Confirmed,
    columns.GatewayColumn,
    columns.Offsets,
    cost_model.CostModel,
    cost_model.Window,
    forecast.Forecast,
    guard.GuardWatch,
    host_pool.HostPool,
    host_pool.SwapCost,
    ledger.ClockReading,
    ledger.Passes,
    ledger.WaitClock,
    ledger.WaitLedger,
    probation.Probation,
    queue.Queue,
    request.Request,
    revisions.Revisions,
    sequence.Sequence,
    spread.Spread,
    steps.Step,
    tenants.Tenant,
    tenants.Tenants,
    timers.Timers,
    arrival.ArrivalOrder,
    fair.Fair,
    fcfs.Fcfs,
    priority.Priority,
    slo.Slo,
)
_TUPLES = (
    cost_model.StepShape,
    forecast.Foretold,
    request.RequestKey,
    steps.Chunk,
    steps.Transition,
    timers.Timer,
)
_STRUCTS = (
    common.SamplingParams,
    config.SchedulingConfig,
    cost_model.StepCosts,
    device.Geometry,
    front.DeltaLogprobs,
    front.DeltaPromptLogprobs,
    revisions.Guard,
    revisions.Revision,
    sequence.SequenceEnd,
    tenants.TenantKnobs,
)
_ENUMS = (common.FinishReason, common.WaitReason, revisions.GuardMetric, sequence.SequenceState, timers.TimerKind)

_CLASSES: dict[str, Any] = {one.__name__: one for one in (*_OBJECTS, *_TUPLES, *_STRUCTS, *_ENUMS)}
_LEFT_OUT = {
    ("SchedulerState", "make_hashes"),
    ("SchedulerState", "hashes"),
    ("SchedulerState", "watch"),
    ("GatewayColumn", "_select"),
}
_MAX_INT = 1 << 62

Redact = Callable[[str, str, Any], Any]
"""Gives what is written for (class, attribute, value)."""


class CheckpointError(ValueError):
    """Bytes that are no checkpoint of this version."""


class _Writer:
    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact
        self._numbers: dict[int, int] = {}
        self._kept_alive: list[Any] = []
        self.table: list[Any] = []
        self.attributes: dict[str, list[str]] = {}
        """By class, in the order in which its objects' values are written."""

    def value(self, value: Any) -> Any:
        """A plain value as it is; anything else as a reference, a list with one number."""
        if value is None or type(value) in (bool, float, str, bytes):
            return value
        if type(value) is int and -_MAX_INT < value < _MAX_INT:
            return value
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.table)
            # An id is the object's only while it lives.
            self._kept_alive.append(value)
            self.table.append(None)
            self.table[number] = self._entry(value)
        return [number]

    def _entry(self, value: Any) -> list[Any]:
        name = type(value).__name__
        if isinstance(value, enum.Enum):
            return ["enum", name, value.value]
        match value:
            case int():
                return ["int", str(value)]
            case array():
                return ["array", value.typecode, value.tobytes()]
            case msgspec.Struct():
                return ["struct", name, msgspec.msgpack.encode(value)]
            case tuple():
                return ["tuple", name, [self.value(item) for item in value]]
            case list() | deque():
                return [name, [self.value(item) for item in value]]
            case dict():
                return [name, [[self.value(key), self.value(item)] for key, item in value.items()]]
            case _:
                return ["object", name, self._attributes(value, name)]

    def _attributes(self, value: Any, name: str) -> list[Any]:
        names = self.attributes.get(name)
        if names is None:
            if name not in _CLASSES:
                raise TypeError(f"the state holds a {name}, of which a checkpoint knows nothing")
            slots = getattr(type(value), "__slots__", None)
            names = [one for one in slots or vars(value) if (name, one) not in _LEFT_OUT]
            self.attributes[name] = names
        redact = self._redact
        if redact is None:
            return [self.value(getattr(value, one)) for one in names]
        return [self.value(redact(name, one, getattr(value, one))) for one in names]


class _Reader:
    def __init__(self, table: list[Any], attributes: dict[str, list[str]]) -> None:
        self._table = table
        self._attributes = attributes
        self._made: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        number = value[0]
        if number not in self._made:
            self._make(number)
        return self._made[number]

    def _make(self, number: int) -> None:
        kind, *parts = self._table[number]
        made = self._made
        match kind:
            case "int":
                made[number] = int(parts[0])
            case "enum":
                made[number] = _CLASSES[parts[0]](parts[1])
            case "array":
                made[number] = array(parts[0], parts[1])
            case "struct":
                made[number] = msgspec.msgpack.decode(parts[1], type=_CLASSES[parts[0]])
            case "tuple":
                items = [self.value(item) for item in parts[1]]
                made[number] = tuple(items) if parts[0] == "tuple" else _CLASSES[parts[0]](*items)
            case "list" | "deque":
                container: list[Any] | deque[Any] = [] if kind == "list" else deque()
                made[number] = container
                container.extend(self.value(item) for item in parts[0])
            case "dict" | "OrderedDict":
                mapping: dict[Any, Any] = {} if kind == "dict" else OrderedDict()
                made[number] = mapping
                for key, item in parts[0]:
                    mapping[self.value(key)] = self.value(item)
            case "object":
                self._make_object(number, *parts)
            case _:
                raise CheckpointError(f"a checkpoint has no {kind}")

    def _make_object(self, number: int, name: str, values: list[Any]) -> None:
        cls = _CLASSES[name]
        self._made[number] = value = cls.__new__(cls)
        for attribute, item in zip(self._attributes[name], values, strict=True):
            setattr(value, attribute, self.value(item))
        if isinstance(value, columns.GatewayColumn):
            value.forget_selection()


def dump_state(whole: state.SchedulerState, redact: Redact | None = None) -> bytes:
    """The state between two events."""
    writer = _Writer(redact)
    root = writer.value(whole)
    return msgspec.msgpack.encode([root, writer.table, writer.attributes])


def load_state(packed: bytes, make_hashes: Any) -> state.SchedulerState:
    """The state again, with block hashes from `make_hashes`. Raises CheckpointError."""
    try:
        root, table, attributes = msgspec.msgpack.decode(packed)
        whole = _Reader(table, attributes).value(root)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint of this version: {type(error).__name__}: {error}") from None
    if not isinstance(whole, state.SchedulerState):
        raise CheckpointError("a checkpoint holds a scheduler's state, this one something else")
    whole.make_hashes = make_hashes
    whole.watch = None
    whole.hashes = make_hashes(1 if whole.worker is None else whole.worker.geometry.block_size)
    return whole
