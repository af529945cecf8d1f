"""Runs a recording through the core again and compares every plan with the one that was made then."""

from collections.abc import Callable, Iterator

import msgspec

from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.core.frames import Frame, Header
from scheduler_svc.core.hash_source import HashKey, HashSource, RecordedHashes, TokenHashes, known_hashes
from scheduler_svc.core.plan_hash import PLAN_HASH_BYTES, plan_hash


class Difference(msgspec.Struct, frozen=True):
    """The first event at which a replay took another course."""

    event_number: int
    """From 1."""
    now: int
    event: str
    recorded: tuple[str, ...]
    """Hashes of the plans that were made then, as hexadecimal."""
    replayed: tuple[str, ...]
    plans: tuple[str, ...]
    """What the replay's plans order, in words."""


class ReplayResult(msgspec.Struct, frozen=True):
    """What was replayed."""

    num_events: int
    num_plans: int
    difference: Difference | None


def make_core(header: Header, known: dict[HashKey, bytes]) -> Core:
    """The core at the beginning of a recording; block hashes that it needs are taken from `known` at that time."""

    def make_hashes(block_size: int) -> HashSource:
        return TokenHashes(header.hash_key, block_size) if header.has_tokens else RecordedHashes(known, block_size)

    if header.checkpoint:
        return Core.restored(header.checkpoint, make_hashes)
    return Core(header.config, header.hash_key, header.epoch, make_hashes)


def replay(header: Header, frames: Iterator[Frame], check: Callable[[Core, int], None] | None = None) -> ReplayResult:
    """Replays up to the first difference. `check` is called after each event (`invariants.check`, for instance).

    Raises RecordError and CheckpointError for what is none.
    """
    known: dict[HashKey, bytes] = {}
    core = make_core(header, known)
    num_events = num_plans = 0
    for frame in frames:
        num_events += 1
        known.update(known_hashes(frame.hashes))
        plans = [one.plan for one in core.handle(frame.event, frame.now) if isinstance(one, SendPlan)]
        replayed = [plan_hash(plan) for plan in plans]
        recorded = [frame.plans[at : at + PLAN_HASH_BYTES] for at in range(0, len(frame.plans), PLAN_HASH_BYTES)]
        if replayed != recorded:
            difference = Difference(
                num_events,
                frame.now,
                type(frame.event).__name__,
                tuple(one.hex() for one in recorded),
                tuple(one.hex() for one in replayed),
                tuple(
                    f"step {plan.step}: {len(plan.boarded)} board, {len(plan.left) // 4} leave, "
                    f"{len(plan.decode) // 4} decode, {len(plan.chunks) // 8} chunks"
                    for plan in plans
                ),
            )
            return ReplayResult(num_events, num_plans, difference)
        num_plans += len(plans)
        if check is not None:
            check(core, frame.now)
    return ReplayResult(num_events, num_plans, None)
