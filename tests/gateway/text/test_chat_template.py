"""Chat templates, against transformers' rendering of the same ones."""

from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.text.chat_template import Chat, ChatTemplate, ChatTurn, read_template
from gateway.text.errors import ChatTemplateError, TemplateProblem
from gateway.text.model_text import ModelText

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# Written for these tests in the style of templates that public models carry.
CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}\
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
INST_STYLE = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- '[INST] <<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'].strip() + eos_token }}
    {%- endif %}
{%- endfor %}
"""
HEADER_STYLE = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' \
+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
TURN_STYLE = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}\
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
THINK_STYLE = """
{%- set ns = namespace(last_user=-1, seen=0) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.last_user < 0 and message.role == "user" and message.content is string %}
        {%- set ns.last_user = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and loop.index0 > 0 %}{% continue %}{% endif %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- if loop.index0 > ns.last_user %}
            {%- set content = '<think>\n' + reasoning + '\n</think>\n\n' + content %}
        {%- endif %}
    {%- endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {{- '<|im_start|>' ~ message.role ~ ('(' ~ message.name ~ ')' if message.name is defined else '') ~ '\n' }}
    {{- content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
"""
HELPERS_STYLE = """{{ bos_token }}{% if tools %}tools{% endif %}{% for m in messages %}
{% generation %}{% set inner = loop.index %}{{ {'role': m.role, 'text': m.content, 'n': [1, none, true]} | tojson }}
{% endgeneration %}{{ inner is defined }}{{ m | tojson(indent=2) }}{% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}{{ dict(a=1).a }}{{ strftime_now('%Y') | length }}{{ (messages | map(attribute='role') | list)[-1] }}"""

_STYLES = {
    "chatml": CHATML,
    "inst": INST_STYLE,
    "header": HEADER_STYLE,
    "turn": TURN_STYLE,
    "think": THINK_STYLE,
    "helpers": HELPERS_STYLE,
}
_CHATS = {
    "one": [("user", "Hello")],
    "alternating": [("user", " Hi  "), ("assistant", "Yes?\n"), ("user", "日本語 <b>&amp;</b> \"q\" 'a'")],
    "with system": [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "<think>\nhm\n</think>\n\nHello"),
        ("user", "x"),
    ],
    "ends with assistant": [("user", "Count"), ("assistant", "one, two, ")],
    "think at the end": [("user", "a"), ("assistant", "<think>b</think>c")],
    "odd roles": [("tool", "result"), ("user", "")],
    "braces": [("user", "{{ 7 * 7 }} {% raw %} {# c #}")],
}


def _chat(turns: list[tuple[str, str]], **flags: bool) -> Chat:
    return Chat(tuple(ChatTurn(role, content) for role, content in turns), **flags)


def _reference(template: str, turns: list[tuple[str, str]], **flags: bool) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    variables: dict[str, Any] = {**_TOKENS, **flags}
    rendered: Any = render_jinja_template([messages], chat_template=template, **variables)
    return str(rendered[0][0])


@pytest.mark.parametrize("chat", _CHATS)
@pytest.mark.parametrize("style", _STYLES)
@pytest.mark.parametrize("prompt", [True, False])
def test_equals_transformers(style: str, chat: str, prompt: bool) -> None:
    template = ChatTemplate(_STYLES[style], _TOKENS, 100_000)
    try:
        expected = _reference(_STYLES[style], _CHATS[chat], add_generation_prompt=prompt)
    except jinja2.TemplateError:
        with pytest.raises(ChatTemplateError) as raised:
            template.render(_chat(_CHATS[chat], add_generation_prompt=prompt))
        assert raised.value.problem is TemplateProblem.REFUSED
        return
    assert template.render(_chat(_CHATS[chat], add_generation_prompt=prompt)) == expected


@pytest.mark.parametrize("style", ["chatml", "inst", "header", "turn"])
@pytest.mark.parametrize("content", ["one, two,", "one, two, ", " padded \n", "é</s>"])
def test_continues_the_final_message_as_transformers_does(style: str, content: str) -> None:
    turns = [("user", "Count"), ("assistant", content)]
    expected = _reference(_STYLES[style], turns, continue_final_message=True)
    template = ChatTemplate(_STYLES[style], _TOKENS, 100_000)
    chat = _chat(turns, add_generation_prompt=False, continue_final_message=True)
    assert template.render(chat) == expected


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    template = ChatTemplate("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", {}, 1000)
    with pytest.raises(ChatTemplateError) as raised:
        template.render(
            _chat([("user", "a"), ("assistant", "b")], add_generation_prompt=False, continue_final_message=True)
        )
    assert raised.value.problem is TemplateProblem.NOT_CONTINUABLE


def test_built_in_template_equals_transformers(smollm: ModelText) -> None:
    assert smollm.template_source is not None
    template = ChatTemplate(smollm.template_source, smollm.special_tokens, 100_000)
    for turns in _CHATS.values():
        for prompt in (True, False):
            expected = _reference(smollm.template_source, turns, add_generation_prompt=prompt)
            assert template.render(_chat(turns, add_generation_prompt=prompt)) == expected


def test_names_of_speakers_reach_the_template() -> None:
    chat = Chat((ChatTurn("user", "hi", "ann"), ChatTurn("user", "ho")), add_generation_prompt=False)
    rendered = ChatTemplate(THINK_STYLE, {}, 1000).render(chat)
    assert rendered == "<|im_start|>user(ann)\nhi<|im_end|>\n<|im_start|>user\nho<|im_end|>\n"


def test_a_refusal_is_repeated_only_when_it_cannot_quote_the_chat() -> None:
    constant = ChatTemplate(TURN_STYLE, _TOKENS, 1000)
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        constant.render(_chat([("system", "SECRET")]))
    quoting = ChatTemplate("{{ raise_exception('bad: ' + messages[0].content) }}", {}, 1000)
    with pytest.raises(ChatTemplateError) as raised:
        quoting.render(_chat([("user", "SECRET")]))
    assert raised.value.problem is TemplateProblem.REFUSED
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.missing.attribute }}",
        "{{ {}[messages[0].content]['x'] }}",
        "{{ messages[0].content | round }}",
        "{{ 1 / 0 }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% include messages[0].content %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ namespace(_x=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_failing_template_gives_the_typed_error_without_text(source: str) -> None:
    with pytest.raises(ChatTemplateError) as raised:
        ChatTemplate(source, {}, 10_000).render(_chat([("user", "SECRET")]))
    assert raised.value.problem is TemplateProblem.FAILED
    assert "SECRET" not in str(raised.value)


def test_output_is_bounded_while_it_is_made() -> None:
    template = ChatTemplate("{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}", {}, 1000)
    with pytest.raises(ChatTemplateError) as raised:
        template.render(_chat([("user", "x" * 100)]))
    assert raised.value.problem is TemplateProblem.TOO_LARGE


def test_nothing_is_computed_while_a_template_is_compiled() -> None:
    """Jinja folds constants: ``'a' * 10 ** 10`` would take its ten gigabytes at start, outside of every bound."""
    ChatTemplate(
        "{% if false %}{{ 'a' * 10 ** 10 }}{{ 'a' | center(99999999999) }}{{ 9 ** (9 ** 9) }}{% endif %}", {}, 10
    )
    assert read_template("{{ 9 ** (9 ** 9) }}").literals == ""


def test_literals_are_what_the_template_may_write(smollm: ModelText) -> None:
    text = read_template("before {{ '<think>' if x else '<tool>' }} after {{ raise_exception('no') }}")
    assert {"before ", "<think>", "<tool>", " after ", "no"} == set(text.literals.split("\0"))
    assert text.refusals == {"no"}
    assert smollm.template is not None
    assert "<|im_start|>" in smollm.template.literals


def test_the_year_is_this_one() -> None:
    rendered: Any = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, 100).render(_chat([("user", "")]))
    assert rendered == _reference("{{ strftime_now('%d %b %Y') }}", [("user", "")])
