"""OpenAI's own Python client against the HTTP port: streams, whole answers, errors as its exceptions."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import pack_f32, pack_u32

MESSAGES: Any = [{"role": "user", "content": "say it"}]
Spell = Callable[[str], list[int]]


async def answer(rig: Any, spell: Spell, text: str, reason: FinishReason = FinishReason.LENGTH) -> front.Submit:
    """Takes the next request in and gives it `text`, a token a byte."""
    submit: front.Submit = await rig.scheduler.accept()
    for choice in range(submit.n):
        ids = spell(text)
        for offset, token_id in enumerate(ids):
            rig.scheduler.tokens(submit.handle + choice, offset, token_id)
        rig.scheduler.finish(
            submit.handle + choice, len(ids), reason, request_ended=choice == submit.n - 1, cached_tokens=2
        )
    return submit


async def test_chat_streams_with_usage_last(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    client = make_openai(http_rig)
    answering = asyncio.create_task(answer(http_rig, spell, "Hé!", FinishReason.EOS))
    stream = await client.chat.completions.create(
        model="test", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    await answering
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hé!"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert not last.choices
    assert last.usage.completion_tokens == 4
    assert last.usage.total_tokens == last.usage.prompt_tokens + 4
    assert last.usage.prompt_tokens_details.cached_tokens == 2
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_an_answer_goes_back_as_history(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    client = make_openai(http_rig)
    answering = asyncio.create_task(answer(http_rig, spell, "ab"))
    first = await client.chat.completions.create(model="test", messages=MESSAGES)
    await answering
    said = first.choices[0].message.model_dump()
    assert said["annotations"] is None
    history = [*MESSAGES, said, *MESSAGES, said | {"tool_calls": [], "annotations": []}, *MESSAGES]
    answering = asyncio.create_task(answer(http_rig, spell, "cd"))
    second = await client.chat.completions.create(model="test", messages=history)
    await answering
    assert second.choices[0].message.content == "cd"


async def test_chat_whole_with_several_choices(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    client = make_openai(http_rig)
    answering = asyncio.create_task(answer(http_rig, spell, "ab"))
    whole = await client.chat.completions.create(model="test", messages=MESSAGES, n=3, max_completion_tokens=2)
    submit = await answering
    assert (submit.n, submit.max_tokens) == (3, 2)
    assert [choice.message.content for choice in whole.choices] == ["ab"] * 3
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in whole.choices} == {"length"}
    assert whole.usage.completion_tokens == 6


async def test_chat_has_the_tokens_of_the_grpc_methods_prompt(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    from chairlift.v1 import inference_pb2 as pb

    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=[pb.ContentPart(text="say it")])])
    call = http_rig.stub.Generate(pb.GenerateRequest(messages=chat))
    over_grpc = await http_rig.scheduler.accept()
    answering = asyncio.create_task(answer(http_rig, spell, "x"))
    await make_openai(http_rig).chat.completions.create(model="", messages=MESSAGES)
    assert (await answering).prompt == over_grpc.prompt
    call.cancel()


async def test_every_field_reaches_the_scheduler(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    answering = asyncio.create_task(answer(http_rig, spell, "x"))
    await make_openai(http_rig).chat.completions.create(
        model="test",
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]}
        ],
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias={"7": -100},
        stop=["END"],
        max_tokens=3,
        user="somebody",
        extra_body={"top_k": 4, "min_p": 0.125, "repetition_penalty": 1.5, "min_tokens": 1, "stop_token_ids": [9]}
        | {"ignore_eos": True, "priority": 5, "cache_salt": "salt", "request_id": "mine"},
    )
    submit = await answering
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.5, 4, 0.125)
    assert sampling.top_p == pytest.approx(0.9)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.5)
    assert sampling.repetition_penalty == 1.5
    assert sampling.seed == (1 << 64) - 1
    assert sampling.logit_bias == ((7, -100.0),)
    assert (sampling.min_tokens, sampling.stop_token_ids, sampling.ignore_eos) == (1, (9,), True)
    assert (submit.max_tokens, submit.priority, submit.cache_salt, submit.request_id) == (3, 5, "salt", "mine")


async def test_stop_string_is_held_back_and_cut(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    client = make_openai(http_rig)
    stream = asyncio.create_task(
        client.completions.create(model="test", prompt="go", stop="END", stream=True, max_tokens=9)
    )
    submit = await http_rig.scheduler.accept()
    seen: list[str] = []
    for offset, token_id in enumerate(spell("aENbEND")):
        http_rig.scheduler.tokens(submit.handle, offset, token_id)
    stopped = await http_rig.scheduler.next(front.Stopped)
    http_rig.scheduler.finish(submit.handle, stopped.num_tokens, FinishReason.STOP_STRING)
    reasons = []
    async for chunk in await stream:
        seen.append(chunk.choices[0].text)
        reasons.append(chunk.choices[0].finish_reason)
    assert "".join(seen) == "aENb"
    assert reasons[-1] == "stop"


def described(handle: int, offset: int, ids: list[int]) -> front.DeltaLogprobs:
    return front.DeltaLogprobs(handle, offset, pack_u32(ids), pack_f32([-0.5 - at for at in range(len(ids))]))


async def test_logprobs_of_a_chat(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    client = make_openai(http_rig)
    asking = asyncio.create_task(
        client.chat.completions.create(model="test", messages=MESSAGES, logprobs=True, top_logprobs=2)
    )
    submit = await http_rig.scheduler.accept()
    assert submit.sampling.logprobs == 2
    a, b, c = spell("abc")
    entry = described(submit.handle, 0, [a, b, c])
    http_rig.scheduler.tokens(submit.handle, 0, a, logprobs=(entry,))
    http_rig.scheduler.finish(submit.handle, 1)
    [told] = (await asking).choices[0].logprobs.content
    assert (told.token, told.logprob, told.bytes) == ("a", -0.5, [97])
    assert [(other.token, other.logprob) for other in told.top_logprobs] == [("b", -1.5), ("c", -2.5)]


async def test_logprobs_of_a_completion_stand_at_their_text(http_rig: Any, make_openai: Any, spell: Spell) -> None:
    client = make_openai(http_rig)
    asking = asyncio.create_task(client.completions.create(model="test", prompt=spell("go"), logprobs=1))
    submit = await http_rig.scheduler.accept()
    ids = spell("aé")
    for offset, token_id in enumerate(ids):
        entry = described(submit.handle, offset, [token_id, ids[0]])
        http_rig.scheduler.tokens(submit.handle, offset, token_id, logprobs=(entry,))
    http_rig.scheduler.finish(submit.handle, 3)
    choice = (await asking).choices[0]
    assert choice.text == "aé"
    assert choice.logprobs.tokens == ["a", "\ufffd", "\ufffd"]
    assert choice.logprobs.text_offset == [0, 1, 2]
    assert choice.logprobs.token_logprobs == [-0.5] * 3
    assert choice.logprobs.top_logprobs[0] == {"a": -1.5}


async def test_refusals_are_the_clients_own_exceptions(plain_rig: Any, make_openai: Any) -> None:
    client = make_openai(plain_rig)
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="test", prompt="go", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="other", prompt="go")
    asking = asyncio.create_task(client.completions.create(model="test", prompt="go", stream=True))
    submit = await plain_rig.scheduler.next(front.Submit)
    plain_rig.scheduler.send(front.Refused(submit.handle, Reason.QUEUE_FULL, "full", retry_after_ns=2_500_000_000))
    with pytest.raises(openai.RateLimitError) as full:
        await asking
    assert full.value.response.headers["retry-after"] == "3"
    assert full.value.code == "queue_full"


async def test_client_tries_a_full_queue_again(plain_rig: Any, make_openai: Any, spell: Spell) -> None:
    asking = asyncio.create_task(make_openai(plain_rig, max_retries=2).completions.create(model="test", prompt="go"))
    submit = await plain_rig.scheduler.next(front.Submit)
    plain_rig.scheduler.send(front.Refused(submit.handle, Reason.QUEUE_FULL, "full", retry_after_ns=1_000_000))
    await answer(plain_rig, spell, "ok")
    assert (await asking).choices[0].text == "ok"


async def test_failure_in_a_stream_is_its_last_event(plain_rig: Any, make_openai: Any, spell: Spell) -> None:
    stream = asyncio.create_task(make_openai(plain_rig).completions.create(model="test", prompt="go", stream=True))
    submit = await plain_rig.scheduler.accept()
    plain_rig.scheduler.tokens(submit.handle, 0, *spell("ab"))
    plain_rig.scheduler.finish(
        submit.handle, 2, FinishReason.ERROR, failure_reason=Reason.STEP_FAILED, failure_message="the step failed"
    )
    seen: list[str] = []

    async def read_all() -> None:
        async for chunk in await stream:
            seen.append(chunk.choices[0].text)

    with pytest.raises(openai.APIError, match="the step failed"):
        await read_all()
    assert "".join(seen) == "ab"


async def test_models(plain_rig: Any, make_openai: Any) -> None:
    client = make_openai(plain_rig)
    [model] = [model async for model in client.models.list()]
    assert model.id == "test"
    assert (await client.models.retrieve("test")).id == "test"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("a/b")
