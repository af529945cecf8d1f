"""The template process: what a template does to it stays in it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from gateway.text.chat_template import Chat, ChatTurn
from gateway.text.errors import ChatTemplateError, TemplateProblem
from gateway.text.template_process import TemplateSetup
from gateway.text.template_renderer import TemplateRenderer

_Start = Callable[..., AbstractAsyncContextManager[TemplateRenderer]]


@pytest.fixture
def started() -> _Start:
    @asynccontextmanager
    async def start(source: str, timeout_s: float = 30.0, max_chars: int = 10_000) -> AsyncIterator[TemplateRenderer]:
        setup = TemplateSetup(source, {"bos_token": "<s>"}, max_chars, max_memory_bytes=1 << 30)
        renderer = TemplateRenderer(setup, timeout_s)
        try:
            await renderer.start()
            yield renderer
        finally:
            await renderer.close()

    return start


def _chat(content: str) -> Chat:
    return Chat((ChatTurn("user", content),))


async def test_renders_many_at_once_each_its_own(started: _Start) -> None:
    async with started("{{ bos_token }}{{ messages[0].content }}") as renderer:
        rendered = await asyncio.gather(*(renderer.render(_chat(f"é{i}")) for i in range(50)))
        assert rendered == [f"<s>é{i}" for i in range(50)]
        assert renderer.restarts == 0


@pytest.mark.parametrize(
    "loop",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
async def test_a_template_that_never_ends_is_cut_and_the_next_chat_is_served(started: _Start, loop: str) -> None:
    source = "{% if messages[0].content == 'evil' %}" + loop + "{% endif %}{{ messages[0].content }}"
    async with started(source, timeout_s=0.5) as renderer:
        evil = asyncio.create_task(renderer.render(_chat("evil")))
        good = asyncio.create_task(renderer.render(_chat("good")))
        with pytest.raises(ChatTemplateError) as raised:
            await evil
        assert raised.value.problem is TemplateProblem.TOO_SLOW
        assert await good == "good"
        assert renderer.restarts == 1


@pytest.mark.parametrize(
    "bomb",
    [
        "{% set x = 'a' * (10 ** 10) %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set x = 'a' | center(10 ** 10) %}",
        "{% set x = 'a'.ljust(10 ** 10) %}",
    ],
)
async def test_a_memory_bomb_is_refused_and_the_next_chat_is_served(started: _Start, bomb: str) -> None:
    source = "{% if messages[0].content == 'evil' %}" + bomb + "{% endif %}{{ messages[0].content }}"
    async with started(source) as renderer:
        with pytest.raises(ChatTemplateError) as raised:
            await renderer.render(_chat("evil"))
        assert raised.value.problem is TemplateProblem.TOO_LARGE
        assert await renderer.render(_chat("good")) == "good"


async def test_a_caller_that_goes_away_leaves_the_process_in_step(started: _Start) -> None:
    async with started("{{ messages[0].content }}") as renderer:
        for i in range(20):
            abandoned = asyncio.create_task(renderer.render(_chat(f"abandoned {i}")))
            await asyncio.sleep(0)
            abandoned.cancel()
            with pytest.raises(asyncio.CancelledError):
                await abandoned
            assert await renderer.render(_chat(f"wanted {i}")) == f"wanted {i}"
        assert renderer.restarts == 0


async def test_a_refusal_crosses_the_process_border(started: _Start) -> None:
    async with started("{{ raise_exception('only users may speak') }}") as renderer:
        with pytest.raises(ChatTemplateError, match="only users may speak") as raised:
            await renderer.render(_chat("x"))
        assert raised.value.problem is TemplateProblem.REFUSED


async def test_a_killed_process_is_replaced(started: _Start) -> None:
    async with started("{{ messages[0].content }}") as renderer:
        assert renderer._process is not None
        renderer._process.kill()
        # Whether its death has been noticed by now is the operating system's affair.
        outcomes = await asyncio.gather(
            renderer.render(_chat("lost")), renderer.render(_chat("next")), return_exceptions=True
        )
        assert outcomes[1] == "next"
        match outcomes[0]:
            case ChatTemplateError(problem=problem):
                assert problem is TemplateProblem.FAILED
            case text:
                assert text == "lost"


async def test_a_template_that_does_not_compile_stops_the_start(started: _Start) -> None:
    with pytest.raises(ChatTemplateError, match="cannot be compiled"):
        async with started("{% frobnicate %}"):
            pass


async def test_output_over_the_limit_is_refused(started: _Start) -> None:
    async with started("{{ messages[0].content * 100 }}", max_chars=1000) as renderer:
        with pytest.raises(ChatTemplateError, match="more than 1000 characters"):
            await renderer.render(_chat("x" * 100))
