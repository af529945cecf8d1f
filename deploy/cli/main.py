"""Entry point: finds the command, runs it, turns failures into one line and an exit code."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence

import chairlift
from chairlift.runtime.process import ExitCode
from deploy.cli import commands
from deploy.cli.errors import CommandError
from deploy.cli.subcommands import build_parser, command_names, describe, load_command

PROGRAM = "chairlift"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `argv` (default: the program's own arguments) and returns the exit code.

    0 done, 1 failed, 2 wrong usage or settings, 3 the model cannot be loaded, 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    # gRPC tells on stderr how connections end; a person sees our errors only.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    _replace_what_the_terminal_has_not()
    name = argv[0] if argv else ""
    if name not in command_names(commands):
        return _help_or_error(argv)
    command = load_command(commands, name)
    assert command is not None, "every module of deploy.cli.commands is a command"
    arguments = build_parser(command, f"{PROGRAM} {name}").parse_args(argv[1:])
    try:
        return command.run(arguments)
    except CommandError as error:
        print(f"{PROGRAM} {name}: {error}", file=sys.stderr)
        return error.exit_code
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        print(f"{PROGRAM} {name}: an argument or the input is not text in UTF-8 ({error.reason})", file=sys.stderr)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader (head, less) has enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED


def _help_or_error(argv: Sequence[str]) -> int:
    """Prints help or the version, or exits with a usage error."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="LLM server with continuous batching.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {chairlift.__version__}")
    choices = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name in command_names(commands):
        command = load_command(commands, name)
        assert command is not None, "every module of deploy.cli.commands is a command"
        choices.add_parser(name, help=describe(command))
    parser.parse_args(argv)
    parser.print_help()
    return ExitCode.OK


def _replace_what_the_terminal_has_not() -> None:
    """What a model writes is any text: a character that the terminal's encoding lacks becomes a question mark."""
    match sys.stdout:
        case io.TextIOWrapper(errors="strict") as stream:
            stream.reconfigure(errors="replace")
