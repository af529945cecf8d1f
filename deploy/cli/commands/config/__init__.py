"""`chairlift config`: shows settings, and the scheduling knobs of a running server, which it changes."""

import argparse
import sys

from deploy.cli.subcommands import add_subcommands
from deploy.cli.subcommands import run_subcommand as run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The modules of this package are its commands."""
    add_subcommands(parser, sys.modules[__name__])
