"""`chairlift keys`: keys that encrypt the links between processes on several hosts."""

import argparse
import sys

from deploy.cli.subcommands import add_subcommands
from deploy.cli.subcommands import run_subcommand as run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The modules of this package are its commands."""
    add_subcommands(parser, sys.modules[__name__])
