"""`chairlift supervise`: keeps one process running, as `chairlift serve` keeps all of them."""

import argparse
import asyncio

from chairlift.runtime.settings import SupervisorSettings
from chairlift.runtime.settings_loader import add_settings_arguments, load_settings
from deploy.cli.errors import stack_errors
from deploy.launcher.child import ChildSpec
from deploy.launcher.kinds import MODULES
from deploy.launcher.progress import Progress
from deploy.launcher.run import run_until_stopped
from deploy.launcher.single import plan_single
from deploy.launcher.supervisor import Supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which process, and settings."""
    parser.add_argument("process", choices=sorted(MODULES), help="what to keep running")
    add_settings_arguments(parser)
    parser.epilog = (
        "For containers and service managers: a process that crashes or hangs is started again within them, without\n"
        "what it takes to start a container. It dies with its supervisor. Exit codes as of `chairlift serve`."
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs until a signal, or until the process cannot be kept running."""
    with stack_errors():
        settings = load_settings(arguments.config, arguments.overrides)
        spec = plan_single(arguments.process, settings)
    return asyncio.run(_supervise(spec, settings.supervisor))


async def _supervise(spec: ChildSpec, settings: SupervisorSettings) -> int:
    progress = Progress()

    async def say_ready() -> None:
        progress.say(f"{spec.name}: kept running; SIGTERM drains")

    return await run_until_stopped(Supervisor([spec], settings, progress), progress, say_ready)
