"""The report of a run: what was injected, how long it was felt, and what must be 0."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf

import msgspec

from deploy.bench.chaos.faults import Fault, FaultKind
from deploy.bench.chaos.inject import Injected
from deploy.bench.chaos.load import Stream
from deploy.bench.chaos.verdict import Losses, Spread, recovery_s, spread
from deploy.bench.chaos.watch import MemorySample, Noticed

_DETECTION_WINDOW_S = 12.0
"""What is noticed later than this belongs to another fault."""
_DETECTION_SLACK_S = 4.0
"""And later than this after what lasts is over, too; a short cut need not be noticed at all."""


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """Printed as JSON by ``--json``; names are fixed."""

    streams: int
    """Accepted."""
    streams_lost: int
    tokens_lost: int
    tokens_doubled: int
    blocks_leaked: int
    processes_left: int
    sockets_left: int
    faults: dict[str, int]
    """Injected, by kind."""
    recovery_s: dict[str, Spread]
    """Longest time without anything new, from the fault on, that a stream open then saw before the next fault."""
    detection_s: dict[str, Spread]
    """From the fault until some process noticed; kinds that nobody needs to notice are absent."""
    refused: int
    """Requests turned away before they were accepted, after the client's retries."""
    tokens: int
    seconds: float
    seed: int
    details: list[str]
    """A line for each stream that was lost, and for all else that went wrong."""
    memory: list[MemorySample]
    conditions: list[str] = []
    """What the run went over and how it was secured."""
    problems: int = 0
    """What kept the run from its proper end; told in `details`."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost or left, and every kind of fault was injected."""
        losses = (self.streams_lost, self.tokens_lost, self.tokens_doubled, self.blocks_leaked)
        left = (self.processes_left, self.sockets_left)
        is_complete = bool(self.streams) and all(self.faults.get(kind) for kind in FaultKind)
        return is_complete and not any((*losses, *left, self.problems))


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """What the stack left when it was idle and when it was gone."""

    blocks: int
    processes: int
    sockets: int


def make_report(
    *,
    streams: Sequence[Stream],
    losses: Losses,
    injected: Sequence[Injected],
    noticed: Sequence[Noticed],
    remains: Remains,
    memory: Sequence[MemorySample],
    seconds: float,
    seed: int,
    conditions: Sequence[str] = (),
    problems: Sequence[str] = (),
) -> ChaosReport:
    """Sums up."""
    accepted = [stream for stream in streams if not stream.is_refused]
    pauses = [later.at - one.at for one, later in pairwise(injected)] + [inf]
    felt = [recovery_s(accepted, one.at, one.at + pause) for one, pause in zip(injected, pauses, strict=False)]
    recoveries = _by_kind(injected, felt)
    seen = [detection_s(one.fault, one.wall, noticed, pause) for one, pause in zip(injected, pauses, strict=False)]
    detections = _by_kind(injected, seen)
    return ChaosReport(
        streams=len(accepted),
        streams_lost=losses.streams_lost,
        tokens_lost=losses.tokens_lost,
        tokens_doubled=losses.tokens_doubled,
        blocks_leaked=remains.blocks,
        processes_left=remains.processes,
        sockets_left=remains.sockets,
        faults={kind: sum(one.fault.kind is kind for one in injected) for kind in FaultKind},
        recovery_s=recoveries,
        detection_s=detections,
        refused=len(streams) - len(accepted),
        tokens=sum(choice.num_tokens for one in accepted if one.completion for choice in one.completion.choices),
        seconds=seconds,
        seed=seed,
        details=[*losses.details, *problems],
        memory=list(memory),
        conditions=list(conditions),
        problems=len(problems),
    )


def _by_kind(injected: Sequence[Injected], values: Sequence[float | None]) -> dict[str, Spread]:
    found = {}
    for kind in FaultKind:
        own = [
            value for one, value in zip(injected, values, strict=True) if one.fault.kind is kind and value is not None
        ]
        summed = spread(own)
        if summed is not None:
            found[str(kind)] = summed
    return found


_NOTICED_BY: Mapping[FaultKind, frozenset[str]] = {
    FaultKind.WORKER_KILL: frozenset({"restarting", "worker_lost"}),
    FaultKind.WORKER_STOP: frozenset({"hung", "worker_lost"}),
    FaultKind.STEP_THROW: frozenset({"step_failed"}),
    FaultKind.SCHEDULER_KILL: frozenset({"restarting", "scheduler_lost"}),
    FaultKind.GATEWAY_KILL: frozenset({"restarting", "gateway_lost"}),
    FaultKind.LINK_RESET: frozenset({"scheduler_lost", "gateway_lost", "worker_lost", "worker_reconnected"}),
    FaultKind.LINK_PARTITION: frozenset({"scheduler_lost", "gateway_lost", "worker_lost"}),
    FaultKind.DRAIN: frozenset({"scheduler_draining", "gateway_draining", "worker_lost"}),
}


_BY_SUPERVISOR = frozenset({"restarting", "hung"})


def detection_s(fault: Fault, wall: float, noticed: Sequence[Noticed], pause_s: float = inf) -> float | None:
    """Seconds until the first process noticed, before the next fault `pause_s` later; None when nobody did."""
    events = _NOTICED_BY.get(fault.kind, frozenset())
    latest = min(
        _DETECTION_WINDOW_S, fault.duration_s + _DETECTION_SLACK_S if fault.duration_s else _DETECTION_WINDOW_S
    )
    times = [
        one.at - wall
        for one in noticed
        if one.what in events
        and (one.who == fault.target or one.what not in _BY_SUPERVISOR)
        and -0.01 <= one.at - wall <= min(latest, pause_s)
    ]
    return max(0.0, min(times)) if times else None


def render_table(report: ChaosReport) -> str:
    """For people, with a line feed at its end."""
    lines = [
        f"{'fault':<16}{'times':>6}{'noticed after s':>18}{'recovered after s':>20}",
        " " * 22 + "p50 / max".rjust(18),
    ]
    lines[1] += "p50 / max".rjust(20)
    for kind in FaultKind:
        noticed, recovered = report.detection_s.get(kind), report.recovery_s.get(kind)
        lines.append(f"{kind:<16}{report.faults.get(kind, 0):>6}{_pair(noticed):>18}{_pair(recovered):>20}")
    lines += [
        "",
        f"{report.streams:,} streams accepted, {report.tokens:,} tokens, {report.refused} refused before that",
        f"lost: {report.streams_lost} streams, {report.tokens_lost} tokens; doubled: {report.tokens_doubled} tokens",
        f"left: {report.blocks_leaked} KV blocks, {report.processes_left} processes, {report.sockets_left} sockets",
    ]
    lines += [f"with: {line}" for line in report.conditions]
    lines += [f"  {line}" for line in report.details]
    return "\n".join(lines) + "\n"


def _pair(found: Spread | None) -> str:
    return "-" if found is None else f"{found.p50:.2f} / {found.max:.2f}"
