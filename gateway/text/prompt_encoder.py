"""From what a client sends to prompt ids, without holding up the event loop.

Chats are marked, rendered in the template process, sealed and encoded; long texts are encoded in threads, where the
tokenizer runs without the GIL.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gateway.text.chat_template import Chat, ChatTurn
from gateway.text.errors import ChatTemplateError, TemplateProblem
from gateway.text.model_text import ModelText
from gateway.text.template_process import TemplateSetup
from gateway.text.template_renderer import TemplateRenderer
from gateway.text.tokenizer import ChatGuards, TextTokenizer

_INLINE_CHARS = 4096
_THREADS = 2
_TEMPLATE_MEMORY_BYTES = 1 << 30


class PromptEncoder:
    """Encodes for one model. `max_chars` bounds what a chat may render to."""

    def __init__(self, model: ModelText, *, template_timeout_s: float, max_chars: int) -> None:
        self._tokenizer: TextTokenizer = model.tokenizer
        self._guards: ChatGuards | None = model.guards
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenize")
        self._renderer: TemplateRenderer | None = None
        if model.template_source is not None:
            setup = TemplateSetup(model.template_source, model.special_tokens, max_chars, _TEMPLATE_MEMORY_BYTES)
            self._renderer = TemplateRenderer(setup, template_timeout_s)

    async def start(self) -> None:
        """Starts the template process, where there is a template. Raises ChatTemplateError."""
        if self._renderer is not None:
            await self._renderer.start()

    async def close(self) -> None:
        """Ends process and threads."""
        if self._renderer is not None:
            await self._renderer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt; see `TextTokenizer.encode_prompt`."""
        return await self._encode(partial(self._tokenizer.encode_prompt, add_special_tokens=add_special_tokens), text)

    async def encode_chat(self, chat: Chat, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a chat by the model's template. What messages spell never becomes a special token.

        Raises ChatTemplateError.
        """
        if self._renderer is None or self._guards is None:
            raise ChatTemplateError(TemplateProblem.MISSING, "the model has no chat template; send text or token ids")
        rendered = await self._renderer.render(_mark(chat, self._guards))
        encode = partial(self._tokenizer.encode_rendered, add_special_tokens=add_special_tokens)
        return await self._encode(encode, self._guards.seal(rendered))

    async def _encode(self, encode: Callable[[str], list[int]], text: str) -> list[int]:
        if len(text) <= _INLINE_CHARS:
            return encode(text)
        return await asyncio.get_running_loop().run_in_executor(self._threads, encode, text)


def _mark(chat: Chat, guards: ChatGuards) -> Chat:
    turns = tuple(
        ChatTurn(
            role=guards.mark(turn.role, turn.role),
            content=guards.mark(turn.content, turn.role),
            name=None if turn.name is None else guards.mark(turn.name, turn.role),
        )
        for turn in chat.turns
    )
    return Chat(turns, chat.add_generation_prompt, chat.continue_final_message)
