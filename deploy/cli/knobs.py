"""Scheduling knobs on the command line: KEY=VALUE as in the settings, and how they are shown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError

if TYPE_CHECKING:
    from chairlift.v1.ops_pb2 import ConfigRevision, ReplicaConfig, SchedulingConfig

DEFAULT = "default"
"""As a value: whatever the device decides."""
_SECTION = "scheduler."
_ENUM_PREFIXES = {"batching": "BATCHING_MODE_", "policy": "SCHEDULING_POLICY_", "preemption": "PREEMPTION_MODE_"}
_SWITCHES = {"true": True, "false": False}


def knob_names() -> Sequence[str]:
    """Every knob that there is."""
    from chairlift.v1.ops_pb2 import SchedulingConfig

    return [field.name for field in SchedulingConfig.DESCRIPTOR.fields]


def parse_assignments(assignments: Iterable[str]) -> tuple["SchedulingConfig", list[str]]:
    """The values, and the knobs that are named. Raises CommandError."""
    from chairlift.v1.ops_pb2 import SchedulingConfig

    config, names = SchedulingConfig(), list[str]()
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise CommandError(f"{assignment}: expected KEY=VALUE", ExitCode.USAGE)
        name = check_knob(key)
        if name in names:
            raise CommandError(f"{assignment}: {name} is set already", ExitCode.USAGE)
        names.append(name)
        if value != DEFAULT:
            _set(config, name, value)
    return config, names


def check_knob(key: str) -> str:
    """A knob's name, with or without its section. Raises CommandError."""
    import difflib

    name, known = key.strip().removeprefix(_SECTION), knob_names()
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
    raise CommandError(f"{key} is no knob that can be changed while the server runs{hint}", ExitCode.USAGE)


def _set(config: "SchedulingConfig", name: str, value: str) -> None:
    field = config.DESCRIPTOR.fields_by_name[name]
    try:
        if name == "tenants":
            config.tenants.extend(_texts(value))
        elif field.enum_type is not None:
            setattr(config, name, field.enum_type.values_by_name[_ENUM_PREFIXES[name] + value.upper()].number)
        elif field.cpp_type == field.CPPTYPE_BOOL:
            setattr(config, name, _SWITCHES[value.lower()])
        elif field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
            setattr(config, name, float(value))
        else:
            setattr(config, name, int(value))
    except (KeyError, ValueError, TypeError):
        raise CommandError(f"{name}={value}: expected {_expected(name, config)}", ExitCode.USAGE) from None


def _texts(value: str) -> list[str]:
    items = json.loads(value)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError(value)
    return items


def _expected(name: str, config: "SchedulingConfig") -> str:
    field = config.DESCRIPTOR.fields_by_name[name]
    if name == "tenants":
        return 'a list of texts, for instance ["acme: weight=2"]'
    if field.enum_type is not None:
        prefix = _ENUM_PREFIXES[name]
        words = [one.name.removeprefix(prefix).lower() for one in field.enum_type.values if one.number]
        return " or ".join(words)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return "true or false"
    is_real = field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT)
    return "a number" if is_real else "a whole number, 0 or more"


# ---- what is shown ----


def knob_values(config: "SchedulingConfig") -> Mapping[str, Any]:
    """By name, in the words of the settings."""
    values: dict[str, Any] = {}
    for field in config.DESCRIPTOR.fields:
        if field.name == "tenants":
            values[field.name] = list(config.tenants)
        elif config.HasField(field.name):  # type: ignore[arg-type]  # the stub wants literals
            value = getattr(config, field.name)
            if field.enum_type is not None:
                word = field.enum_type.values_by_number[value].name
                value = word.removeprefix(_ENUM_PREFIXES[field.name]).lower()
            values[field.name] = value
    return values


def show(value: Any) -> str:
    """A value as it is written after ``KEY=``."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def revision_facts(revision: "ConfigRevision") -> dict[str, Any]:
    """One revision for ``--json``."""
    from chairlift.v1.ops_pb2 import ConfigOrigin, GuardMetric

    facts: dict[str, Any] = {
        "revision": revision.revision,
        "origin": ConfigOrigin.Name(revision.origin).removeprefix("CONFIG_ORIGIN_").lower(),
        "time": revision.time.ToJsonString(),
        "actor": revision.actor,
        "comment": revision.comment,
        "changed": list(revision.changed.paths),
        "config": knob_values(revision.config),
    }
    if revision.HasField("guard"):
        facts["guard"] = {
            "metric": GuardMetric.Name(revision.guard.metric).removeprefix("GUARD_METRIC_").lower(),
            "bound": revision.guard.bound,
            "window_s": revision.guard.window.ToTimedelta().total_seconds(),
        }
    return facts


def revision_line(revision: "ConfigRevision") -> str:
    """One revision for a person: number, how, when, who, what changed, why."""
    facts = revision_facts(revision)
    values = facts["config"]
    words = [f"revision {facts['revision']}", facts["origin"], facts["time"][:19] + "Z"]
    if facts["actor"]:
        words.append(f"by {facts['actor']}")
    words += [f"{name}={show(values[name])}" for name in facts["changed"] if name in values]
    if "guard" in facts:
        words.append("(under guard)")
    return "  ".join(words) + (f"  # {facts['comment']}" if facts["comment"] else "")


def print_results(replicas: Iterable["ReplicaConfig"], *, as_json: bool) -> int:
    """What a change did at each replica; FAILED where one did not take it."""
    exit_code = ExitCode.OK
    told: list[dict[str, Any]] = []
    for replica in replicas:
        failure = replica.failure if replica.HasField("failure") else None
        if failure is not None:
            exit_code = ExitCode.FAILED
            told.append({"replica": replica.replica_id, "failure": failure.reason, "message": failure.message})
        else:
            told.append({"replica": replica.replica_id, **revision_facts(replica.current)})
        if not as_json:
            outcome = revision_line(replica.current) if failure is None else f"{failure.reason}: {failure.message}"
            print(f"{replica.replica_id}: {outcome}")
    if as_json:
        print(json.dumps(told, indent=2))
    return exit_code
