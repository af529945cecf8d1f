"""Finds commands: the modules of a package, imported only when they are needed."""

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol, cast


class Command(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares its flags and arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it and returns the exit code. Raises CommandError."""


def command_names(package: ModuleType) -> Sequence[str]:
    """Names of the commands in `package`, by alphabet. Does not import them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(package.__path__))


def load_command(package: ModuleType, name: str) -> Command | None:
    """The command's module, or None where a module of that name is no command."""
    module = importlib.import_module(f"{package.__name__}.{name.replace('-', '_')}")
    return cast("Command", module) if hasattr(module, "run") else None


def describe(command: Command) -> str:
    """What it does: the first line of its docstring, without its own name."""
    first = (command.__doc__ or "").strip().partition("\n")[0]
    name, colon, rest = first.partition(": ")
    return (rest if colon and name.startswith("`") else first).rstrip(".")


def build_parser(command: Command, program: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    parser = argparse.ArgumentParser(
        prog=program, description=describe(command), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_arguments(parser)
    return parser


def add_subcommands(parser: argparse.ArgumentParser, package: ModuleType) -> None:
    """Makes the modules of `package` commands beneath `parser`'s."""
    choices = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in command_names(package):
        command = load_command(package, name)
        if command is not None:
            child = choices.add_parser(name, help=describe(command), description=describe(command))
            command.add_arguments(child)
            child.set_defaults(run_subcommand=command.run)


def run_subcommand(arguments: argparse.Namespace) -> int:
    """Runs what `add_subcommands` made of the arguments."""
    run = cast("Callable[[argparse.Namespace], int]", arguments.run_subcommand)
    return run(arguments)
