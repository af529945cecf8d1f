"""What tuned settings were found with, as one comment line of their file, for whoever serves with them elsewhere.

Imports little, so that `chairlift serve` can ask without the extra `bench`.
"""

from pathlib import Path

import msgspec

from deploy.bench.observe.machine import Machine, describe_machine

_MARK = "# evidence: "


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what the settings were found."""

    version: str
    commit: str
    model_fingerprint: str | None
    config_revision: int | None
    machine: Machine


def render_evidence(evidence: Evidence) -> str:
    """A comment line."""
    return _MARK + msgspec.json.encode(evidence).decode()


def read_evidence(path: Path) -> Evidence | None:
    """What a tuned file says of itself; None for a file that `chairlift tune` did not write, or that cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        if line.startswith(_MARK):
            try:
                return msgspec.json.decode(line.removeprefix(_MARK), type=Evidence)
            except msgspec.MsgspecError:
                return None
    return None


def find_tuning_differences(path: Path, version: str, model_fingerprint: str | None) -> list[str]:
    """In what this installation differs from the one that the settings at `path` were tuned on; empty: in nothing."""
    evidence = read_evidence(path)
    if evidence is None:
        return []
    found = []
    if evidence.version != version:
        found.append(f"version {evidence.version}, here {version}")
    if None not in (evidence.model_fingerprint, model_fingerprint) and evidence.model_fingerprint != model_fingerprint:
        found.append(f"model {evidence.model_fingerprint}, here {model_fingerprint}")
    here = describe_machine()
    for name in ("architecture", "cpu", "num_cores", "memory_gib"):
        then, now = getattr(evidence.machine, name), getattr(here, name)
        if then != now:
            found.append(f"{name} {then}, here {now}")
    return found
