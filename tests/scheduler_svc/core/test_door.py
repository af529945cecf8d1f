"""What is refused, with which reason, field and limit; and that nothing from the wire gets past or breaks the core."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason, SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MS = 1_000_000


def sound(**changes: Any) -> front.Submit:
    fields: dict[str, Any] = {
        "handle": 256,
        "tenant": "t",
        "request_id": "a",
        "digest": b"d" * 16,
        "prompt": pack_u32([1, 2, 3]),
        "max_tokens": 4,
    }
    return front.Submit(**{**fields, **changes})


def refusal(world: "World", submit: front.Submit) -> front.Refused:
    effects = world.core.handle(events.Submit(1, submit), world.now)
    messages = [effect.message for effect in effects if hasattr(effect, "message")]
    assert len(messages) == 1
    refused = messages[0]
    assert isinstance(refused, front.Refused)
    assert world.core.is_idle
    return refused


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": b""}, "input"),
        ({"prompt": b"abc"}, "input"),
        ({"prompt": pack_u32([1000])}, "input"),
        ({"n": 0}, "sampling.n"),
        ({"n": -1}, "sampling.n"),
        ({"n": 257}, "sampling.n"),
        ({"max_tokens": 0}, "stopping.max_tokens"),
        ({"max_tokens": -5}, "stopping.max_tokens"),
        ({"handle": 255}, ""),
        ({"handle": -256}, ""),
        ({"digest": b""}, ""),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 65}, "request_id"),
        ({"request_id": "é"}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"gateway_state": bytes(65537)}, "stopping"),
        ({"priority": 1 << 40}, "scheduling.priority"),
        ({"attempt": 0}, ""),
        ({"emitted": (b"",), "n": 2}, ""),
        ({"emitted": (b"xyz",)}, ""),
        ({"emitted": (pack_u32([5000]),)}, ""),
        ({"emitted": (pack_u32([5] * 5),), "attempt": 2}, ""),
        ({"ended": (1,)}, ""),
        ({"ended": (0,)}, ""),
        ({"ended": (0, 0), "n": 3}, ""),
        ({"deadline_in_ns": -1}, "scheduling.deadline"),
        ({"queue_timeout_in_ns": 1 << 62}, "scheduling.queue_timeout"),
        ({"ttft_slo_ns": -1}, "scheduling.ttft_slo"),
        ({"itl_slo_ns": -1}, "scheduling.itl_slo"),
        ({"detach_grace_ns": -1}, "delivery.detach_grace"),
        ({"age_ns": -1}, ""),
        ({"sampling": SamplingParams(temperature=-0.1)}, "sampling.temperature"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "sampling.temperature"),
        ({"sampling": SamplingParams(temperature=float("inf"))}, "sampling.temperature"),
        ({"sampling": SamplingParams(top_p=0.0)}, "sampling.top_p"),
        ({"sampling": SamplingParams(top_p=float("nan"))}, "sampling.top_p"),
        ({"sampling": SamplingParams(min_p=1.5)}, "sampling.min_p"),
        ({"sampling": SamplingParams(top_k=-1)}, "sampling.top_k"),
        ({"sampling": SamplingParams(repetition_penalty=0.0)}, "sampling.repetition_penalty"),
        ({"sampling": SamplingParams(presence_penalty=float("nan"))}, "sampling.presence_penalty"),
        ({"sampling": SamplingParams(seed=-1)}, "sampling.seed"),
        ({"sampling": SamplingParams(min_tokens=-1)}, "stopping.min_tokens"),
        ({"sampling": SamplingParams(stop_token_ids=(1000,))}, "stopping.stop_token_ids"),
        ({"sampling": SamplingParams(stop_token_ids=tuple(range(257)))}, "stopping.stop_token_ids"),
        ({"sampling": SamplingParams(logit_bias=((-1, 0.0),))}, "sampling.logit_bias"),
        ({"sampling": SamplingParams(logit_bias=((1, float("nan")),))}, "sampling.logit_bias"),
        ({"sampling": SamplingParams(logit_bias=((1, 1.0),) * 301)}, "sampling.logit_bias"),
        ({"sampling": SamplingParams(logprobs=-1)}, "output.logprobs"),
        ({"sampling": SamplingParams(prompt_logprobs=5000)}, "output.prompt_logprobs"),
    ],
)
def test_what_is_no_request_is_refused_with_its_field(
    make_world: "Callable[..., World]", changes: dict[str, Any], field: str
) -> None:
    """vllm#52693: clear refusal, and nothing else is touched."""
    world = make_world()
    refused = refusal(world, sound(**changes))
    assert (refused.reason, refused.field) == (Reason.INVALID_REQUEST, field)
    assert refused.retry_after_ns is None
    assert world.core.load().requests_refused == 1


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "reason", "field"),
    [
        (200, 1, Reason.KV_CAPACITY_EXCEEDED, "input"),
        (80, 2, Reason.KV_CAPACITY_EXCEEDED, "stopping.max_tokens"),
        (256, 1, Reason.CONTEXT_LENGTH_EXCEEDED, "input"),
        (3, 254, Reason.CONTEXT_LENGTH_EXCEEDED, "stopping.max_tokens"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_limit(
    make_world: "Callable[..., World]", prompt_len: int, max_tokens: int, reason: Reason, field: str
) -> None:
    """vllm#39734: such a request blocked the queue for ever while health stayed good."""
    world = make_world(geometry_changes={"num_blocks": 20})
    refused = refusal(world, sound(prompt=pack_u32([1] * prompt_len), max_tokens=max_tokens))
    assert (refused.reason, refused.field) == (reason, field)
    limits = dict(refused.limits)
    assert limits.get("kv_capacity_tokens") == "80" or limits.get("max_model_len") == "256"
    assert refused.retry_after_ns is None


@pytest.mark.parametrize("num_blocks", [20, 64])
def test_without_max_tokens_a_choice_goes_to_the_end_of_what_fits(
    make_world: "Callable[..., World]", num_blocks: int
) -> None:
    world = make_world(geometry_changes={"num_blocks": num_blocks, "max_model_len": 100})
    stream = world.submit([1] * 30)
    world.run()
    assert stream.reason is FinishReason.CONTEXT_LIMIT
    assert len(stream.outputs[0]) == min(100, num_blocks * 4 + 1) - 30


def test_a_request_that_needs_every_block_runs(make_world: "Callable[..., World]") -> None:
    world = make_world(geometry_changes={"num_blocks": 5}, watermark_ppm=500_000)
    stream = world.submit([1] * 3, max_tokens=18)
    other = world.submit([2] * 3, max_tokens=18)
    world.run()
    assert stream.outputs[0] == world.expected([1] * 3, 18)
    assert other.outputs[0] == world.expected([2] * 3, 18)


def test_a_full_queue_refuses_with_a_time_for_a_retry(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1, max_num_queued_reqs=2)
    streams = [world.submit([i]) for i in range(3)]
    assert streams[2].refused is not None
    assert streams[2].refused.reason == Reason.QUEUE_FULL
    assert streams[2].refused.retry_after_ns
    assert dict(streams[2].refused.limits) == {"max_num_queued_reqs": "2"}
    world.tick()
    assert world.submit([4]).accepted is not None
    assert world.submit([5]).refused is not None


def test_queued_prompt_tokens_are_bounded(make_world: "Callable[..., World]") -> None:
    """sglang#28530: room is counted anew whenever a place is given up."""
    world = make_world(max_num_queued_tokens=100)
    world.submit([1] * 60, request_id="a")
    refused = world.submit([2] * 60).refused
    assert refused is not None
    assert refused.reason == Reason.QUEUE_FULL
    world.cancel("a")
    assert world.submit([2] * 60).accepted is not None


def test_a_prompt_above_the_queues_bound_goes_into_an_empty_queue(make_world: "Callable[..., World]") -> None:
    """vllm#39734: what fits the cache must not be told for ever to come again."""
    world = make_world(max_num_queued_tokens=20)
    first = world.submit([1] * 60, max_tokens=2)
    assert first.accepted is not None
    second = world.submit([2] * 60, max_tokens=2).refused
    assert second is not None
    assert second.reason == Reason.QUEUE_FULL
    world.run()
    assert first.outputs[0] == world.expected([1] * 60, 2)
    assert world.submit([2] * 60, max_tokens=2).accepted is not None


def test_a_resubmission_passes_the_queues_bounds(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_queued_reqs=1)
    world.submit([1])
    assert world.submit([2], attempt=2, emitted=(pack_u32([7]),)).accepted is not None


def test_queue_positions_are_by_arrival(make_world: "Callable[..., World]") -> None:
    world = make_world()
    positions = []
    for age in (0, 0, 500 * MS, 900 * MS):
        stream = world.submit([1], age_ns=age, attempt=2 if age else 1)
        assert stream.accepted is not None
        positions.append(stream.accepted.queue_position)
    assert positions == [0, 1, 0, 0]


# ---- draining ----


def test_draining_refuses_new_requests_and_lets_the_others_finish(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1], request_id="a", max_tokens=9, detach_grace_ns=MS)
    world.step()
    world.feed(events.Drain())
    assert world.core.is_draining
    assert not world.core.is_ready
    refused = world.submit([2]).refused
    assert refused is not None
    assert refused.reason == Reason.DRAINING
    assert world.attach("a").attached is not None
    world.run()
    assert stream.is_over
    assert world.core.is_idle
    world.feed(events.Drain(undrain=True))
    assert world.submit([2]).accepted is not None


def test_a_drain_with_a_deadline_ends_what_is_left(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1)
    streams = [world.submit([1], max_tokens=200), world.submit([2])]
    world.step()
    world.feed(events.Drain(deadline_in_ns=20 * MS))
    world.wait(20 * MS)
    for stream in streams:
        assert stream.reason is FinishReason.ERROR
        assert stream.finished[0].failure_reason == Reason.DRAINING
        assert stream.finished[0].retry_after_ns


def test_an_undrain_takes_the_drains_deadline_back(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1], max_tokens=5)
    world.feed(events.Drain(deadline_in_ns=20 * MS))
    world.feed(events.Drain(undrain=True))
    world.wait(30 * MS)
    assert not stream.is_over
    world.run()
    assert stream.reason is FinishReason.LENGTH
