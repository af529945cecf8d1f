"""What goes wrong when: a seeded schedule of faults. Pure."""

import enum
import random

import msgspec


class FaultKind(enum.StrEnum):
    """Every kind is injected at least once in a run."""

    WORKER_KILL = "worker_kill"
    WORKER_STOP = "worker_stop"
    """SIGSTOP, and SIGCONT after `STOPPED_S`."""
    STEP_THROW = "step_throw"
    SCHEDULER_KILL = "scheduler_kill"
    GATEWAY_KILL = "gateway_kill"
    LINK_DELAY = "link_delay"
    LINK_RESET = "link_reset"
    LINK_PARTITION = "link_partition"
    DRAIN = "drain"
    """SIGTERM to a gateway, a scheduler or a worker."""


class Link(enum.StrEnum):
    """The two links of a replica."""

    FRONT = "front"
    """Between gateways and scheduler."""
    DEVICE = "device"
    """Between scheduler and worker."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong."""

    at_s: float
    """Seconds after the load began."""
    kind: FaultKind
    target: str
    """Process by its name (``worker 0``), or link (``front 1``)."""
    duration_s: float = 0.0
    """Of what lasts: a stop, a delay, a partition, and how long connections are reset."""
    delay_s: float = 0.0
    is_half_open: bool = False
    """A partition in which one end has lost the connection and the other has not noticed."""


LEAD_S = 4.0
"""Load alone before the first fault."""
TAIL_S = 4.0
"""And after the last."""
STOPPED_S = 30.0
RESET_S = 1.0
"""Both ends of a link have said something by then (`ipc.heartbeat_interval_s`)."""
SPACING_S = 11.0
"""Usual time between two faults."""


def plan_faults(seed: int, seconds: float, num_replicas: int, num_gateways: int) -> list[Fault]:
    """Faults in the order of their times, within `seconds`: whole rounds of every kind, shuffled, and part of one."""
    chance = random.Random(seed)
    room = max(1.0, seconds - LEAD_S - TAIL_S)
    count = max(len(FaultKind), int(room / SPACING_S))
    kinds: list[FaultKind] = []
    while len(kinds) < count:
        one_round = list(FaultKind)
        chance.shuffle(one_round)
        kinds += one_round
    gap = room / count
    drains = _turns(chance, num_replicas, num_gateways)
    faults = []
    for number, kind in enumerate(kinds[:count]):
        at_s = LEAD_S + gap * (number + 0.3 * chance.random())
        faults.append(_fault(chance, kind, at_s, num_replicas, num_gateways, drains))
    return faults


def _turns(chance: random.Random, num_replicas: int, num_gateways: int) -> list[str]:
    """Who is drained, in turn: every kind of process has its one."""
    turns = [
        f"gateway {chance.randrange(num_gateways)}",
        f"scheduler {chance.randrange(num_replicas)}",
        f"worker {chance.randrange(num_replicas)}",
    ]
    chance.shuffle(turns)
    return turns


def _fault(
    chance: random.Random, kind: FaultKind, at_s: float, num_replicas: int, num_gateways: int, drains: list[str]
) -> Fault:
    replica = chance.randrange(num_replicas)
    link = f"{chance.choice(list(Link))} {replica}"
    match kind:
        case FaultKind.WORKER_KILL | FaultKind.STEP_THROW:
            return Fault(at_s=at_s, kind=kind, target=f"worker {replica}")
        case FaultKind.WORKER_STOP:
            return Fault(at_s=at_s, kind=kind, target=f"worker {replica}", duration_s=STOPPED_S)
        case FaultKind.SCHEDULER_KILL:
            return Fault(at_s=at_s, kind=kind, target=f"scheduler {replica}")
        case FaultKind.GATEWAY_KILL:
            return Fault(at_s=at_s, kind=kind, target=f"gateway {chance.randrange(num_gateways)}")
        case FaultKind.LINK_DELAY:
            duration_s, delay_s = chance.uniform(3.0, 6.0), chance.uniform(0.02, 0.3)
            return Fault(at_s=at_s, kind=kind, target=link, duration_s=duration_s, delay_s=delay_s)
        case FaultKind.LINK_RESET:
            return Fault(at_s=at_s, kind=kind, target=link, duration_s=RESET_S)
        case FaultKind.LINK_PARTITION:
            duration_s, is_half_open = chance.uniform(1.0, 6.0), chance.random() < 0.5
            return Fault(at_s=at_s, kind=kind, target=link, duration_s=duration_s, is_half_open=is_half_open)
        case FaultKind.DRAIN:
            drains.append(drains.pop(0))
            return Fault(at_s=at_s, kind=kind, target=drains[-1])
