"""`chairlift config sample`: prints a settings file with every key, its default and what it is for."""

import argparse

from chairlift.runtime.process import ExitCode
from deploy.settings_sample import render_sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Prints it."""
    print(render_sample(), end="")
    return ExitCode.OK
