"""Renders chats with one model's chat template, as transformers' ``apply_chat_template`` does.

Runs in the template process (`template_process`), which bounds its time and memory. Knows no tokens.
"""

from typing import Any

import msgspec
from jinja2 import nodes

from gateway.text.errors import ChatTemplateError, TemplateProblem
from gateway.text.template_sandbox import TemplateRefusal, make_environment

# The space tells whether the template trims the message. The characters are no text: see `special_text`.
_END_MARK = "\ufdd0\ufdd5 "


class ChatTurn(msgspec.Struct, frozen=True, array_like=True):
    """One message of a chat."""

    role: str
    content: str
    name: str | None = None


class Chat(msgspec.Struct, frozen=True, array_like=True):
    """What is rendered. At most one of the two flags is set."""

    turns: tuple[ChatTurn, ...]
    add_generation_prompt: bool = True
    """The assistant's header follows, so that the model begins a turn."""
    continue_final_message: bool = False
    """The prompt ends within the last message, so that the model goes on with it."""


class TemplateText(msgspec.Struct, frozen=True):
    """What can be said of a template by reading it."""

    literals: str
    """Everything that it may write of its own, pieces apart."""
    refusals: frozenset[str]
    """Messages that it may refuse with and that hold nothing of a chat."""


def read_template(source: str) -> TemplateText:
    """Parses without running anything. Raises jinja2.TemplateSyntaxError."""
    tree = make_environment().parse(source)
    written = [each.data for each in tree.find_all(nodes.TemplateData)]
    written += [each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)]
    refusals = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "raise_exception" and call.args:
            message = call.args[0]
            if isinstance(message, nodes.Const) and isinstance(message.value, str):
                refusals.add(message.value)
    return TemplateText("\0".join(written), frozenset(refusals))


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, special_tokens: dict[str, str], max_chars: int) -> None:
        """`special_tokens` are handed to the template by name (``bos_token``). Raises jinja2.TemplateSyntaxError."""
        self._template = make_environment().from_string(source)
        self._refusals = read_template(source).refusals
        self._special_tokens = special_tokens
        self._max_chars = max_chars

    def render(self, chat: Chat) -> str:
        """The chat as the model's prompt, special tokens spelled out. Raises ChatTemplateError."""
        turns: list[dict[str, Any]] = []
        for turn in chat.turns:
            turns.append({"role": turn.role, "content": turn.content})
            if turn.name is not None:
                turns[-1]["name"] = turn.name
        if chat.continue_final_message and turns:
            turns[-1]["content"] += _END_MARK
        rendered = self._generate(turns, add_generation_prompt=chat.add_generation_prompt)
        if not chat.continue_final_message:
            return rendered
        return _cut_after_final_message(rendered, chat.turns[-1].content)

    def _generate(self, turns: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        variables = dict(
            self._special_tokens,
            messages=turns,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        )
        parts, length = [], 0
        try:
            for part in self._template.generate(variables):
                length += len(part)
                if length > self._max_chars:
                    raise ChatTemplateError(
                        TemplateProblem.TOO_LARGE, f"the chat renders to more than {self._max_chars} characters"
                    )
                parts.append(part)
        except TemplateRefusal as refusal:
            # A message that the template puts together may quote the chat; one that stands in it as a whole cannot.
            reason = refusal.message if refusal.message in self._refusals else "no reason that may be repeated"
            raise ChatTemplateError(
                TemplateProblem.REFUSED, f"the model's chat template refuses these messages: {reason}"
            ) from None
        except MemoryError:
            raise ChatTemplateError(TemplateProblem.TOO_LARGE, "the chat template needs too much memory") from None
        except ChatTemplateError:
            raise
        except Exception as error:  # noqa: BLE001  # template code may raise anything, and its text may quote the chat
            raise ChatTemplateError(
                TemplateProblem.FAILED, f"the model's chat template fails on these messages ({type(error).__name__})"
            ) from None
        return "".join(parts)


def _cut_after_final_message(rendered: str, content: str) -> str:
    """What stands before the end of the last message; where the template trims it, so is the cut."""
    place = rendered.rfind(_END_MARK.strip())
    if place < 0 or content.strip() not in rendered:
        raise ChatTemplateError(
            TemplateProblem.NOT_CONTINUABLE, "the model's chat template does not keep the final message as it is"
        )
    kept = rendered[:place]
    return kept if rendered.startswith(_END_MARK, place) else kept.rstrip()
