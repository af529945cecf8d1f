"""Submit, plans, results, deltas, Finished: the path of a request that nothing disturbs."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from chairlift.ipc.common import FinishReason, SamplingParams
from chairlift.ipc.tokens import unpack_u32

if TYPE_CHECKING:
    from tests.scheduler_svc.core.conftest import World


def test_one_request_streams_all_its_tokens_and_ends(make_world: "Callable[..., World]") -> None:
    world = make_world()
    prompt = list(range(10, 17))
    stream = world.submit(prompt, max_tokens=9)
    world.run()
    assert stream.outputs[0] == world.expected(prompt, 9)
    assert stream.reason is FinishReason.LENGTH
    assert stream.finished[0].request_ended
    load = world.core.load()
    assert (load.running, load.waiting, load.blocks_used, load.requests_ended) == (0, 0, 0, 1)
    assert world.core.is_idle


def test_many_requests_of_mixed_lengths(make_world: "Callable[..., World]") -> None:
    world = make_world()
    prompts = [list(range(100 * i, 100 * i + 3 + 5 * i % 23)) for i in range(9)]
    streams = [world.submit(prompt, max_tokens=3 + i, gateway=1 + i % 3) for i, prompt in enumerate(prompts)]
    world.run()
    for i, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
        assert stream.outputs[0] == world.expected(prompt, 3 + i)
    assert world.core.load().discarded_rows == 0


def test_a_prompt_longer_than_a_step_is_cut_into_chunks(make_world: "Callable[..., World]") -> None:
    world = make_world(long_prefill_token_threshold=5)
    prompt = list(range(20, 83))
    stream = world.submit(prompt, max_tokens=4)
    world.run()
    assert stream.outputs[0] == world.expected(prompt, 4)
    chunks = [unpack_u32(plan.chunks)[1] for plan in world.sent_plans if plan.chunks]
    assert chunks == [5] * 12 + [3]


def test_eos_ends_a_choice_with_its_token(make_world: "Callable[..., World]") -> None:
    world = make_world()
    sampling = SamplingParams(temperature=0.0, seed=3)
    streams = [world.submit([40 + i] * 5, sampling=sampling, max_tokens=200) for i in range(6)]
    world.run()
    for i, stream in enumerate(streams):
        assert stream.outputs[0] == world.expected([40 + i] * 5, 200, sampling)
        assert stream.reason is FinishReason.EOS
        assert stream.finished[0].stop_token_id == stream.outputs[0][-1] == 2
