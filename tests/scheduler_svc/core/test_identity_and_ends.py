"""One request, one key, one end: duplicates, attachments, cancellation, stop strings, deadlines, and being gone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome, FinishReason, Reason, SamplingParams
from chairlift.ipc.tokens import pack_u32, unpack_u32
from scheduler_svc.core import events

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World

MS = 1_000_000


# ---- the same id again (vllm#10583, #15041; vllm#23697; vllm#20520) ----


def test_the_same_request_again_attaches_from_offset_0(make_world: "Callable[..., World]") -> None:
    world = make_world()
    first = world.submit([1, 2, 3], request_id="a", max_tokens=10)
    for _ in range(4):
        world.step()
    again = world.submit([1, 2, 3], request_id="a", max_tokens=10, gateway=2)
    assert again.attached is not None
    assert again.outputs[0] == first.outputs[0] != []
    assert first.is_superseded
    world.run()
    assert again.outputs[0] == world.expected([1, 2, 3], 10)
    assert world.core.load().requests_accepted == 1


def test_the_same_id_with_other_fields_is_refused_and_the_first_is_untouched(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world()
    first = world.submit([1, 2, 3], request_id="a", max_tokens=10)
    other = world.submit([9], request_id="a", digest=b"o" * 16)
    assert other.refused is not None
    assert other.refused.reason == Reason.REQUEST_ID_IN_USE
    world.run()
    assert first.outputs[0] == world.expected([1, 2, 3], 10)


def test_the_same_id_of_another_tenant_is_another_request(make_world: "Callable[..., World]") -> None:
    world = make_world()
    one = world.submit([1], request_id="a", tenant="x", max_tokens=3)
    two = world.submit([2], request_id="a", tenant="y", max_tokens=3)
    world.run()
    assert one.outputs[0] == world.expected([1], 3)
    assert two.outputs[0] == world.expected([2], 3)


def test_an_id_used_again_while_its_cancelled_rows_are_in_flight_is_a_new_request(
    make_world: "Callable[..., World]",
) -> None:
    world = make_world()
    world.submit([1, 2], request_id="a", max_tokens=30)
    for _ in range(3):
        world.step()
    assert world.cancel("a") is CancelOutcome.WAS_RUNNING
    second = world.submit([5, 6], request_id="a", max_tokens=4)
    assert second.accepted is not None
    world.run()
    assert second.outputs[0] == world.expected([5, 6], 4)
    assert world.core.load().discarded_rows == 2


# ---- ends that come from outside (lmdeploy#1788, llama.cpp#11414) ----


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_a_cancelled_requests_blocks_are_free_at_once(make_world: "Callable[..., World]", num_steps: int) -> None:
    world = make_world(long_prefill_token_threshold=4)
    stream = world.submit([1] * 10, request_id="a", max_tokens=30)
    for _ in range(num_steps):
        world.step()
    outcome = world.cancel("a")
    assert outcome is (CancelOutcome.WAS_RUNNING if num_steps else CancelOutcome.WAS_WAITING)
    assert world.core.load().blocks_used == 0
    assert stream.reason is FinishReason.CANCELLED
    assert world.cancel("a") is CancelOutcome.ALREADY_ENDED
    assert world.cancel("never was") is CancelOutcome.UNKNOWN
    world.run()


def test_what_is_known_of_ended_requests_is_bounded(make_world: "Callable[..., World]") -> None:
    """TRT-LLM#8131: the set of cancelled ids does not grow for ever."""
    world = make_world(max_ended_requests_kept=3)
    for i in range(10):
        world.submit([i], request_id=f"r{i}", detach_grace_ns=1000)
        world.cancel(f"r{i}")
    assert world.cancel("r6") is CancelOutcome.UNKNOWN
    assert world.cancel("r7") is CancelOutcome.ALREADY_ENDED
    assert len(world.core.state.by_number) == 3


def test_a_detached_request_without_grace_ends(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1, 2], request_id="a", max_tokens=30)
    world.step()
    world.detach(stream)
    assert world.core.is_idle
    assert world.core.load().blocks_used == 0


def test_a_detached_request_goes_on_for_its_grace_and_can_be_resumed(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1, 2], request_id="a", max_tokens=12, detach_grace_ns=50 * MS, gateway_state=b"opaque")
    world.step()
    world.step()
    world.detach(stream)
    world.step()
    world.step()
    resumed = world.attach("a", gateway=2)
    assert resumed.attached is not None
    assert resumed.attached.gateway_state == b"opaque"
    told = resumed.attached.submit
    assert told is not None
    assert list(unpack_u32(told.prompt)) == [1, 2]
    assert resumed.attached.prompt_tokens == 2
    assert len(resumed.outputs[0]) == 4
    world.run()
    assert resumed.outputs[0] == world.expected([1, 2], 12)
    world.wait(1000 * MS)


def test_a_detached_request_is_cancelled_when_its_grace_is_over(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1, 2], request_id="a", detach_grace_ns=50 * MS)
    world.detach(stream)
    world.wait(50 * MS - 1)
    assert not world.core.is_idle
    world.wait(1)
    assert world.core.is_idle


def test_an_ended_request_can_be_attached_to_for_its_grace(make_world: "Callable[..., World]") -> None:
    world = make_world()
    world.submit([1, 2], request_id="a", max_tokens=5, n=2, detach_grace_ns=50 * MS)
    world.run()
    late = world.attach("a", gateway=2)
    assert late.outputs == [world.expected([1, 2], 5), world.expected([1, 2], 5, choice=1)]
    assert len(late.finished) == 2
    world.wait(51 * MS)
    too_late = world.attach("a", gateway=2)
    assert too_late.refused is not None
    assert too_late.refused.reason == Reason.UNKNOWN_REQUEST


def test_a_stream_token_of_a_request_before_does_not_reach_the_one_after(make_world: "Callable[..., World]") -> None:
    world = make_world()
    first = world.submit([1], request_id="a", max_tokens=2)
    assert first.accepted is not None
    world.run()
    world.submit([2], request_id="a", max_tokens=20)
    wrong = world.attach("a", epoch=7, number=first.accepted.number)
    assert wrong.refused is not None
    other_life = world.attach("a", epoch=6, number=first.accepted.number)
    assert other_life.attached is not None


def test_a_lost_gateways_requests_wait_for_their_clients(make_world: "Callable[..., World]") -> None:
    world = make_world(gateway_loss_grace_ns=100 * MS)
    world.submit([1, 2], request_id="a", max_tokens=40, gateway=3)
    world.submit([3, 4], request_id="b", max_tokens=40, gateway=3)
    for _ in range(4):
        world.step()
    world.gateway_lost(3)
    back = world.attach("a", gateway=4)
    assert len(back.outputs[0]) == 4
    world.wait(101 * MS)
    assert world.core.load().running == 1
    world.run()
    assert back.outputs[0] == world.expected([1, 2], 40)


# ---- stop strings ----


@pytest.mark.parametrize("num_tokens", [1, 3, 5])
def test_a_stop_string_cuts_the_record_where_its_gateway_says(
    make_world: "Callable[..., World]", num_tokens: int
) -> None:
    """More tokens may have been made meanwhile: they do not count."""
    world = make_world()
    stream = world.submit([1, 2], request_id="a", max_tokens=30, detach_grace_ns=MS)
    for _ in range(5):
        world.step()
    assert len(stream.outputs[0]) == 5
    world.stopped(stream, num_tokens)
    assert stream.reason is FinishReason.STOP_STRING
    assert stream.finished[0].num_tokens == num_tokens
    assert world.core.load().blocks_used == 0
    late = world.attach("a")
    assert len(late.outputs[0]) == num_tokens
    world.run()


def test_a_stop_string_found_in_a_choice_that_ended_by_length_stands(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1, 2], request_id="a", max_tokens=5, detach_grace_ns=MS)
    world.run()
    assert stream.reason is FinishReason.LENGTH
    world.stopped(stream, 3)
    late = world.attach("a")
    assert late.reason is FinishReason.STOP_STRING
    assert late.outputs[0] == world.expected([1, 2], 3)


def test_nonsense_from_a_gateway_changes_nothing(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1, 2], max_tokens=5)
    world.step()
    gateway, handle = world.handle_of(stream)
    for bad, count in ((handle + 9, 1), (handle, -1), (1 << 63, 1), (-5, 0)):
        world.feed(events.Stopped(gateway, front.Stopped(bad, count)))
    world.feed(events.Stopped(99, front.Stopped(handle, 1)))
    world.feed(events.Detach(99, front.Detach(handle)))
    world.feed(events.Detach(gateway, front.Detach(handle + 1)))
    world.feed(events.GatewayLost(55))
    world.run()
    assert stream.outputs[0] == world.expected([1, 2], 5)


# ---- time (triton#6920) ----


def test_a_deadline_is_exact_while_waiting(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1)
    world.submit([1], max_tokens=100)
    waiting = world.submit([2], deadline_in_ns=7 * MS + 1)
    world.tick()
    world.wait(7 * MS)
    assert not waiting.is_over
    world.wait(1)
    assert waiting.reason is FinishReason.DEADLINE
    assert waiting.finished[0].failure_reason == Reason.DEADLINE
    assert waiting.finished[0].total_ns == 7 * MS + 1


def test_a_deadline_stops_a_running_request_and_frees_its_blocks(make_world: "Callable[..., World]") -> None:
    world = make_world()
    stream = world.submit([1] * 9, deadline_in_ns=3 * MS + 500)
    world.step()
    world.step()
    world.wait(2 * MS)
    assert stream.reason is FinishReason.DEADLINE
    assert len(stream.outputs[0]) == 2
    assert world.core.load().blocks_used == 0


def test_a_queue_timeout_holds_until_the_first_seat_only(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_seqs=1)
    first = world.submit([1], max_tokens=20, queue_timeout_in_ns=5 * MS)
    second = world.submit([2], max_tokens=20, queue_timeout_in_ns=5 * MS)
    world.tick()
    world.wait(5 * MS)
    assert second.finished[0].failure_reason == Reason.QUEUE_TIMEOUT
    assert second.finished[0].queue_ns == 5 * MS
    world.run()
    assert first.reason is FinishReason.LENGTH


# ---- an earlier scheduler's requests ----


def test_a_resubmission_goes_on_after_its_emitted_tokens(make_world: "Callable[..., World]") -> None:
    world = make_world(max_num_queued_reqs=1)
    whole = world.expected([4, 5, 6], 20)
    world.submit([1], max_tokens=2)
    again = world.submit([4, 5, 6], max_tokens=20, attempt=2, emitted=(pack_u32(whole[:7]),), age_ns=900 * MS)
    assert again.accepted is not None
    assert again.accepted.queue_position == 0
    world.run()
    assert again.outputs[0] == whole
    assert again.finished[0].ttft_ns is None


def test_choices_that_ended_in_an_earlier_attempt_are_not_ended_again(make_world: "Callable[..., World]") -> None:
    world = make_world()
    sampling = SamplingParams(seed=1, ignore_eos=True)
    done, half = world.expected([4, 5], 9, sampling, 0), world.expected([4, 5], 3, sampling, 1)
    stream = world.submit(
        [4, 5], n=2, max_tokens=9, sampling=sampling, attempt=2, emitted=(pack_u32(done), pack_u32(half)), ended=(0,)
    )
    # The stream that the gateway holds has the first choice's end already.
    stream.finished[0] = front.Finished(0, FinishReason.LENGTH, 9)
    world.run()
    assert stream.outputs == [done, world.expected([4, 5], 9, sampling, 1)]


@pytest.mark.parametrize(
    ("emitted", "sampling", "reason"),
    [
        ([9, 2], SamplingParams(), FinishReason.EOS),
        ([9, 5], SamplingParams(stop_token_ids=(5,)), FinishReason.STOP_TOKEN),
        ([9, 9, 9], SamplingParams(), FinishReason.LENGTH),
    ],
)
def test_a_resubmission_that_was_complete_ends_at_once(
    make_world: "Callable[..., World]", emitted: list[int], sampling: SamplingParams, reason: FinishReason
) -> None:
    """The scheduler before died between the last token and its Finished."""
    world = make_world()
    stream = world.submit([1, 2], max_tokens=3, sampling=sampling, attempt=2, emitted=(pack_u32(emitted),))
    assert stream.reason is reason
    assert stream.outputs[0] == emitted
    assert world.core.is_idle
