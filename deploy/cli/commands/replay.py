"""`chairlift replay`: runs recorded scheduler events through the core again and compares every plan."""

import argparse
import sys
from pathlib import Path

import msgspec

from chairlift.runtime.process import ExitCode
from scheduler_svc.core.checkpoint import CheckpointError
from scheduler_svc.core.frames import RecordError, read_frames, read_header
from scheduler_svc.sim.replay import ReplayResult, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One file of a recording."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of the folder that scheduler.record names")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.epilog = "Exit codes: 0 every plan is the one made then, 1 one differs, 2 the file is no recording."


def run(arguments: argparse.Namespace) -> int:
    """Prints the result, or the first difference."""
    try:
        with arguments.file.open("rb") as file:
            result = replay(read_header(file), read_frames(file))
    except (OSError, RecordError, CheckpointError) as error:
        print(f"chairlift: {arguments.file}: {error}", file=sys.stderr)
        return ExitCode.USAGE
    print(msgspec.json.encode(result).decode() if arguments.json else _describe(result))
    return ExitCode.OK if result.difference is None else ExitCode.FAILED


def _describe(result: ReplayResult) -> str:
    difference = result.difference
    if difference is None:
        return f"{result.num_events} events, {result.num_plans} plans, every one as it was made then"
    return "\n".join(
        (
            f"event {difference.event_number} ({difference.event}) took another course, after {result.num_plans} plans",
            f"  recorded  {', '.join(difference.recorded) or 'no plan'}",
            f"  replayed  {', '.join(difference.replayed) or 'no plan'}",
            *(f"  {plan}" for plan in difference.plans),
        )
    )
