"""`chairlift serve`: starts and supervises gateway, scheduler and worker on this machine."""

import argparse
import asyncio
import sys

from chairlift.runtime.line_stream import LineStream
from deploy.cli.errors import stack_errors
from deploy.cli.stack_flags import add_serve_flags, settings_from
from deploy.cli.terminal import is_coloured
from deploy.cli.tuning_warning import warn_of_tuning
from deploy.launcher.progress import Progress
from deploy.launcher.run import run_until_stopped
from deploy.launcher.stack import Stack, prepare_stack
from deploy.launcher.supervisor import Supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Settings, and short forms of the most used ones."""
    add_serve_flags(parser)
    parser.epilog = (
        "SIGTERM or Ctrl-C drains: running requests get gateway.drain_timeout_s to end. A second Ctrl-C ends at once.\n"
        "Exit codes: 0 stopped, 1 failed, 2 usage or settings, 3 the model cannot be loaded.\n"
        "All settings: chairlift config sample"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal, or until a process cannot be kept running."""
    with stack_errors(), prepare_stack(settings_from(arguments)) as stack:
        return asyncio.run(_serve(stack, warn_of_tuning(arguments.config, stack.settings.model)))


async def _serve(stack: Stack, warning: str | None) -> int:
    progress = Progress()
    if warning is not None:
        progress.say(f"warning: {warning}")

    async def print_banner() -> None:
        from deploy.launcher.banner import ask_facts, render_banner

        banner = render_banner(stack, await ask_facts(stack), is_coloured=is_coloured(sys.stdout))
        LineStream(sys.stdout).write(banner)

    progress.say(f"loading {stack.settings.model.source} on {stack.settings.worker.device}")
    supervisor = Supervisor(stack.children, stack.settings.supervisor, progress)
    return await run_until_stopped(supervisor, progress, print_banner)
