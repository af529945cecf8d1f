"""`chairlift chat`: talks with the served model, turn by turn."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError, server_errors
from deploy.cli.request_flags import (
    add_connection_flags,
    add_sampling_flags,
    chosen_target,
    connection_options,
    request_options,
)
from deploy.cli.terminal import Style

if TYPE_CHECKING:
    from chairlift.client import Client, Completion

_HELP = "/clear forgets the conversation · /exit or Ctrl-D ends · Ctrl-C cancels an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A system message, and how to answer."""
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--json",
        action="store_true",
        help='for programs: a turn a line in ("text" or {"content": "text"}), an event a line out',
    )
    add_sampling_flags(parser)
    add_connection_flags(parser)
    parser.epilog = f"In the conversation: {_HELP}."


def run(arguments: argparse.Namespace) -> int:
    """Until the end of input."""
    from chairlift.client import DEFAULT_TARGET, Client, RetryPolicy

    target = chosen_target(arguments) or DEFAULT_TARGET
    with (
        server_errors(target),
        Client(**connection_options(arguments, target), retry=RetryPolicy(max_attempts=2)) as client,
    ):
        conversation = Conversation(client, arguments.system, request_options(arguments))
        view = _JsonView() if arguments.json else _TerminalView(client.get_model(arguments.served_model or "").id)
        for text in view.turns(conversation):
            conversation.answer(text, view)
    return ExitCode.OK


class Conversation:
    """What was said so far. A turn that failed leaves no trace in it; a cancelled answer stays as far as it came."""

    def __init__(self, client: "Client", system: str | None, options: dict[str, Any]) -> None:
        self._client = client
        self._options = options
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forgets all but the system message."""
        self._messages.clear()

    def answer(self, text: str, view: "_JsonView | _TerminalView") -> None:
        """One turn. Ctrl-C cancels it."""
        from chairlift.client import ChairliftError

        said = [*self._messages, {"role": "user", "content": text}]
        generation = self._client.stream([*self._opening, *said], **self._options)
        try:
            with generation:
                for delta in generation:
                    if delta.text:
                        view.on_text(delta.text)
            view.on_end(generation.completion)
        except KeyboardInterrupt:
            view.on_cancelled(generation.completion)
        except ChairliftError as error:
            view.on_error(error)
            return
        self._messages = [*said, {"role": "assistant", "content": generation.completion.text}]


class _TerminalView:
    """For a person."""

    def __init__(self, model: str) -> None:
        self._style = Style(sys.stdout)
        self._is_interactive = sys.stdin.isatty()
        if self._is_interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() its line editing and history
            print(self._style.dim(f"{model} · {_HELP}"))

    def turns(self, conversation: Conversation) -> Iterator[str]:
        """What the user says, commands left out."""
        while (text := self._ask()) is not None:
            match text.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/clear":
                    conversation.clear()
                    print(self._style.dim("forgotten"))
                case "/help":
                    print(self._style.dim(_HELP))
                case _:
                    yield text

    def _ask(self) -> str | None:
        try:
            return input(self._style.prompt("you ▸ ") if self._is_interactive else "")
        except EOFError:
            if self._is_interactive:
                print()
            return None
        except KeyboardInterrupt:
            if not self._is_interactive:
                raise
            print(self._style.dim("\n(Ctrl-D ends)"))
            return ""

    def on_text(self, text: str) -> None:
        """More of the answer."""
        print(text, end="", flush=True)

    def on_end(self, completion: "Completion") -> None:
        """The whole answer is there."""
        choice = completion.choices[0]
        print()
        if self._is_interactive and choice.timing is not None:
            seconds = choice.timing.total_ms / 1000
            rate = choice.num_tokens / seconds if seconds else 0.0
            print(self._style.dim(f"{choice.num_tokens} tokens, {rate:.1f} tokens/s, {choice.finish_reason}"))

    def on_cancelled(self, completion: "Completion") -> None:
        """The user did not want more."""
        print(self._style.dim(" [cancelled]"))

    def on_error(self, error: Exception) -> None:
        """The turn failed."""
        sys.stdout.flush()
        print(Style(sys.stderr).error(f"\n{error}" if self._is_interactive else str(error)), file=sys.stderr)


class _JsonView:
    """For a program: ``{"event": "delta" | "end" | "cancelled" | "error", …}`` a line."""

    def turns(self, conversation: Conversation) -> Iterator[str]:
        """Each line of standard input."""
        for number, line in enumerate(sys.stdin, 1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise CommandError(f"line {number}: not JSON: {error}", ExitCode.USAGE) from None
            match value:
                case str() as text:
                    yield text
                case {"content": str() as text} if len(value) == 1:
                    yield text
                case {"command": "clear"} if len(value) == 1:
                    conversation.clear()
                case _:
                    raise CommandError(f'line {number}: expected "text" or {{"content": "text"}}', ExitCode.USAGE)

    def on_text(self, text: str) -> None:
        """More of the answer."""
        self._write({"event": "delta", "text": text})

    def on_end(self, completion: "Completion") -> None:
        """The whole answer."""
        self._write({"event": "end", **self._describe(completion)})

    def on_cancelled(self, completion: "Completion") -> None:
        """As far as it came."""
        self._write({"event": "cancelled", **self._describe(completion)})

    def on_error(self, error: Exception) -> None:
        """The turn failed; the conversation goes on without it."""
        from chairlift.client import ChairliftError

        assert isinstance(error, ChairliftError)
        self._write({"event": "error", "code": error.code, "reason": error.reason, "message": str(error)})

    def _describe(self, completion: "Completion") -> dict[str, Any]:
        choice = completion.choices[0]
        return {
            "text": choice.text,
            "finish_reason": choice.finish_reason,
            "usage": completion.usage,
            "timing": choice.timing,
        }

    def _write(self, event: dict[str, Any]) -> None:
        print(msgspec.json.encode(event).decode(), flush=True)
