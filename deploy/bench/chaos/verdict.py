"""Compares what users saw with the undisturbed run, token for token, and sums it up. Pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from chairlift.client import Choice, Completion, StreamCorruptError
from deploy.bench.chaos.load import Stream


class Losses(msgspec.Struct, kw_only=True):
    """Of accepted streams. All of it must be 0."""

    streams_lost: int = 0
    """Ended without their proper end, or differ from the undisturbed run in anything."""
    tokens_lost: int = 0
    """Missing, or another than in the undisturbed run."""
    tokens_doubled: int = 0
    details: list[str] = msgspec.field(default_factory=list)
    """A line a stream that was lost."""


def compare_streams(streams: Sequence[Stream], undisturbed: Mapping[str, Completion]) -> Losses:
    """Judges every accepted stream by the undisturbed completion of its job."""
    losses = Losses()
    for stream in streams:
        if not stream.is_refused:
            _judge(stream, undisturbed[stream.job], losses)
    return losses


def _judge(stream: Stream, wanted: Completion, losses: Losses) -> None:
    found, faults = stream.completion, []
    lost = doubled = 0
    if isinstance(stream.error, StreamCorruptError) and "came twice" in stream.error.message:
        doubled += 1
    if stream.error is not None:
        faults.append(f"{type(stream.error).__name__}: {stream.error}")
    if found is None:
        faults.append("never ended")
    choices = found.choices if found is not None else ()
    for number, choice in enumerate(wanted.choices):
        missing, extra, difference = _compare(choices[number] if number < len(choices) else None, choice)
        lost += missing
        doubled += extra
        if difference:
            faults.append(f"choice {number}: {difference}")
    losses.tokens_lost += lost
    losses.tokens_doubled += doubled
    if faults:
        losses.streams_lost += 1
        losses.details.append(f"{stream.job}: {'; '.join(faults)}")


def _compare(found: Choice | None, wanted: Choice) -> tuple[int, int, str]:
    """Tokens missing or changed, tokens too many, and what differs in words."""
    if found is None:
        return len(wanted.token_ids), 0, "is missing"
    pairs = list(zip(found.token_ids, wanted.token_ids, strict=False))
    changed = sum(one != other for one, other in pairs)
    missing, extra = len(wanted.token_ids) - len(pairs), len(found.token_ids) - len(pairs)
    if changed or missing or extra:
        first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
        return changed + missing, extra, f"{changed} tokens changed, {missing} missing, {extra} too many, from {first}"
    if found.text != wanted.text:
        return 0, 0, "the same tokens, another text"
    if found.logprobs != wanted.logprobs:
        return 0, 0, "the same tokens, other log-probabilities"
    if (found.finish_reason, found.stop) != (wanted.finish_reason, wanted.stop):
        return 0, 0, f"ends by {found.finish_reason} instead of {wanted.finish_reason}"
    return 0, 0, ""


def recovery_s(streams: Sequence[Stream], at: float, until: float) -> float:
    """The longest time without anything new that a stream open at `at` saw before `until`, when the next fault comes.

    A pause that began before counts from `at` on, one under way at `until` to its end. 0 when no stream was open.
    """
    longest = 0.0
    for stream in streams:
        if stream.accepted is None or stream.accepted > at or (stream.ended is not None and stream.ended < at):
            continue
        ends = stream.progress if stream.ended is None else [*stream.progress, stream.ended]
        for begin, end in pairwise([stream.accepted, *ends]):
            if end > at and begin < until:
                longest = max(longest, end - max(begin, at))
    return longest


class Spread(msgspec.Struct, frozen=True):
    """Of several times."""

    p50: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median (the upper of two) and largest; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(round(ordered[len(ordered) // 2], 3), round(ordered[-1], 3))
