"""The `chairlift` command.

Every command is a module of `deploy.cli.commands` (or of a package in it, for commands of two words) with a docstring
whose first line says what it does, `add_arguments(parser)` and `run(arguments) -> exit code`. Adding the module adds
the command.
"""

from deploy.cli.main import main

__all__ = ["main"]
