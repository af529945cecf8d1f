"""The process in which a model's chat template runs: ``python -m gateway.text.template_process``.

A template can loop for ever or build a giant string, and no interpreter can be stopped from within. Its process can:
`template_renderer` kills it when time is up; an address-space limit holds its memory. It reads frames from standard
input and answers on standard output (`u32` length, then msgpack), and ends with its input.
"""

import resource
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

import jinja2
import msgspec

from gateway.text.chat_template import Chat, ChatTemplate
from gateway.text.errors import ChatTemplateError, TemplateProblem

_LENGTH_BYTES = 4


class TemplateSetup(msgspec.Struct, frozen=True, array_like=True):
    """First frame to the process."""

    source: str
    special_tokens: dict[str, str]
    max_chars: int
    max_memory_bytes: int


class Rendered(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A chat's prompt; the empty one answers the setup."""

    text: str


class NotRendered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Why there is none."""

    problem: str
    """A `TemplateProblem`."""
    message: str


Answer = Rendered | NotRendered


def to_frame(body: bytes) -> bytes:
    """`body` with its length before it."""
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def _read_frame(stream: BinaryIO) -> bytes | None:
    header = stream.read(_LENGTH_BYTES)
    if len(header) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(header, "little")
    body = stream.read(length)
    return body if len(body) == length else None


def _limit_memory(max_bytes: int) -> None:
    # Not every system enforces it; the time limit holds everywhere.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(template: ChatTemplate, frame: bytes) -> Answer:
    try:
        return Rendered(template.render(msgspec.msgpack.decode(frame, type=Chat)))
    except ChatTemplateError as error:
        return NotRendered(error.problem, error.message)


def serve(requests: BinaryIO, answers: BinaryIO) -> int:
    """Answers frames until there are no more. Returns the exit code."""
    frame = _read_frame(requests)
    if frame is None:
        return 0
    setup = msgspec.msgpack.decode(frame, type=TemplateSetup)
    _limit_memory(setup.max_memory_bytes)
    template = None
    try:
        template = ChatTemplate(setup.source, setup.special_tokens, setup.max_chars)
        answer: Answer = Rendered("")
    except jinja2.TemplateError as error:
        answer = NotRendered(TemplateProblem.FAILED, f"the chat template cannot be compiled: {error.message}")
    answers.write(to_frame(msgspec.msgpack.encode(answer)))
    answers.flush()
    while template is not None and (frame := _read_frame(requests)) is not None:
        answers.write(to_frame(msgspec.msgpack.encode(_answer(template, frame))))
        answers.flush()
    return 0


if __name__ == "__main__":
    # Ctrl-C goes to the whole foreground group; the gateway drains first, and this process ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(serve(sys.stdin.buffer, sys.stdout.buffer))
