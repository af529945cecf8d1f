"""What `generate_many` of both clients takes and gives."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from chairlift.client.errors import ChairliftError, InvalidArgumentError
from chairlift.client.recovery import RetryPolicy
from chairlift.client.requests import GenerateOptions, Prompt, build_generate
from chairlift.client.results import Completion
from chairlift.v1 import inference_pb2 as pb

BatchItem: TypeAlias = Completion | ChairliftError
"""A result, or in its place what it failed with."""

OnResult: TypeAlias = Callable[[int, BatchItem], None]
"""Called with (position, result) as each one ends."""


class Job(msgspec.Struct, frozen=True):
    """A prompt with options of its own."""

    prompt: Prompt
    options: GenerateOptions = {}


class Prepared(msgspec.Struct, frozen=True):
    """A request of a batch, ready to be sent."""

    request: pb.GenerateRequest
    timeout: float | None


def prepare_batch(
    items: Iterable[Prompt | Job], options: GenerateOptions, timeout: float | None
) -> list[Prepared | InvalidArgumentError]:
    """Every request of a batch; `options` and `timeout` hold where a `Job` has none of its own.

    What no request can hold becomes its item's error. Raises TypeError, before anything is sent.
    """
    return [_prepare(item if isinstance(item, Job) else Job(item), options, timeout) for item in items]


def _prepare(job: Job, options: GenerateOptions, timeout: float | None) -> Prepared | InvalidArgumentError:
    merged: GenerateOptions = {**options, **job.options}
    try:
        return Prepared(build_generate(job.prompt, merged), merged.get("timeout", timeout))
    except InvalidArgumentError as error:
        return error


def patient(policy: RetryPolicy) -> RetryPolicy:
    """A batch has time: want of room is waited out."""
    return msgspec.structs.replace(policy, wait_for_room=True)


def check_concurrency(concurrency: int) -> None:
    """Raises ValueError."""
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
