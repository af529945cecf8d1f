"""`chairlift generate`: continues a prompt, or all prompts of a file at once."""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError, server_errors, stack_errors
from deploy.cli.progress_bar import ProgressBar
from deploy.cli.request_flags import (
    add_connection_flags,
    add_sampling_flags,
    chosen_target,
    connection_options,
    request_options,
)
from deploy.cli.stack_flags import add_model_flags, is_stack_wanted, settings_from
from deploy.cli.terminal import Style

if TYPE_CHECKING:
    from chairlift.client import AsyncClient, Job

DEFAULT_CONCURRENCY = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One prompt or a file of them, a server or a model of one's own."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue; - reads it from standard input")
    parser.add_argument("--file", metavar="PROMPTS.jsonl", help="a JSON string or object a line; - is standard input")
    parser.add_argument("--output", metavar="FILE", help="where a file's results go (default: standard output)")
    parser.add_argument("--chat", action="store_true", help="ask as a user in the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message (with --chat)")
    parser.add_argument("--n", type=int, metavar="N", help="number of choices")
    parser.add_argument("--token-ids", action="store_true", help="report token ids (with --file or --json)")
    parser.add_argument("--json", action="store_true", help="print the whole completion as JSON")
    parser.add_argument(
        "--concurrency", type=int, default=DEFAULT_CONCURRENCY, metavar="N", help=f"of a file ({DEFAULT_CONCURRENCY})"
    )
    add_sampling_flags(parser)
    add_connection_flags(parser)
    add_model_flags(parser)
    parser.epilog = (
        "A PROMPT goes to the server at --target; with --model (or --device, --dtype, --config, --set) a stack of its\n"
        "own is started for the time of the run. A --file starts its own, unless --target names a server. Its lines\n"
        'are "text", or {"prompt": …, "max_tokens": 8, …}, or {"messages": [{"role": "user", "content": …}]}.'
    )


def run(arguments: argparse.Namespace) -> int:
    """Streams text to standard output, or writes a line of JSON a prompt, in order."""
    if (arguments.prompt is None) == (arguments.file is None):
        raise CommandError("give either a PROMPT or --file", ExitCode.USAGE)
    if arguments.concurrency < 1:
        raise CommandError("--concurrency must be at least 1", ExitCode.USAGE)
    try:
        with stack_errors():
            return asyncio.run(_one(arguments) if arguments.file is None else _many(arguments))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


async def _one(arguments: argparse.Namespace) -> int:
    from deploy.cli.batch_file import as_messages, describe_result

    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    prompt: Any = as_messages(text, arguments.system) if arguments.chat else text
    options = _options(arguments)
    async with _client(arguments, needs_own=False) as client, client.stream(prompt, **options) as generation:
        is_streamed = not arguments.json and options.get("n", 1) == 1
        async for delta in generation:
            if is_streamed:
                print(delta.text, end="", flush=True)
        completion = generation.completion
    if arguments.json:
        import msgspec

        print(msgspec.json.encode(describe_result(completion)).decode())
    elif is_streamed:
        print()
    else:
        for choice in completion.choices:
            print(Style(sys.stdout).bold(f"── choice {choice.index}") + f"\n{choice.text}")
    return ExitCode.OK


async def _many(arguments: argparse.Namespace) -> int:
    jobs = _read_file(arguments)
    if not jobs:
        return ExitCode.OK
    out = sys.stdout
    try:
        if arguments.output is not None:
            out = open(arguments.output, "w", encoding="utf-8")  # noqa: ASYNC230, PTH123, SIM115 - before any await
        async with _client(arguments, needs_own=True) as client:
            await client.get_model(arguments.served_model or "")  # no server: one error, not one a prompt
            return await _run_batch(client, jobs, arguments.concurrency, out)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise CommandError(f"{error.filename or arguments.output}: {error.strerror}") from None
    finally:
        if out is not sys.stdout:
            out.close()


async def _run_batch(client: "AsyncClient", jobs: "list[Job]", concurrency: int, out: Any) -> int:
    from chairlift.client import Completion
    from deploy.cli.batch_file import ResultWriter

    writer = ResultWriter(out)
    has_failed = False
    with ProgressBar(len(jobs), sys.stderr) as bar:

        def take(position: int, item: Any) -> None:
            nonlocal has_failed
            is_whole = isinstance(item, Completion)
            has_failed |= not is_whole
            writer.put(position, item)
            bar.advance(item.usage.output_tokens if is_whole else 0, has_failed=not is_whole)

        await client.generate_many(jobs, concurrency=concurrency, on_result=take)
    print(f"chairlift generate: {bar.summary()}", file=sys.stderr)
    return ExitCode.FAILED if has_failed else ExitCode.OK


def _read_file(arguments: argparse.Namespace) -> "list[Job]":
    from deploy.cli.batch_file import read_jobs

    options = _options(arguments)
    if arguments.file == "-":
        return read_jobs(sys.stdin, "standard input", options, as_chat=arguments.chat)
    try:
        with open(arguments.file, encoding="utf-8") as lines:  # noqa: PTH123 - the name as it was given
            return read_jobs(lines, arguments.file, options, as_chat=arguments.chat)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CommandError(f"{arguments.file}: {reason}", ExitCode.USAGE) from None


def _options(arguments: argparse.Namespace) -> Any:
    options = request_options(arguments)
    if arguments.n is not None:
        options["n"] = arguments.n
    if arguments.token_ids:
        options["token_ids"] = True
    return options


@asynccontextmanager
async def _client(arguments: argparse.Namespace, *, needs_own: bool) -> "AsyncIterator[AsyncClient]":
    """A client of the server that was named, or of a stack that lives as long as the block."""
    from chairlift.client import DEFAULT_TARGET, AsyncClient, RetryPolicy

    target = chosen_target(arguments)
    if target is not None and is_stack_wanted(arguments):
        raise CommandError("--target names a server, --model and settings a stack to start: give one", ExitCode.USAGE)
    if target is not None or not (needs_own or is_stack_wanted(arguments)):
        where = target or DEFAULT_TARGET
        with server_errors(where):
            once = RetryPolicy(max_attempts=1) if not needs_own else None
            async with AsyncClient(**connection_options(arguments, where), retry=once) as client:
                yield client
        return
    async with _own_stack(arguments) as where:
        with server_errors(where):
            async with AsyncClient(where) as client:
                yield client


@asynccontextmanager
async def _own_stack(arguments: argparse.Namespace) -> AsyncIterator[str]:
    from deploy.launcher.private import private_stack
    from deploy.launcher.progress import Progress

    settings = settings_from(arguments, beneath=["telemetry.log_level=warning"])
    progress = Progress(verbose=sys.stderr.isatty())
    async with private_stack(settings, progress) as stack:
        yield str(stack.public)
