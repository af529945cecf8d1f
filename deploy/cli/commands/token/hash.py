"""`chairlift token hash`: reads a token from standard input and prints its hash for gateway.auth_file."""

import argparse
import sys

from chairlift.runtime.process import ExitCode
from chairlift.runtime.token_hash import MIN_TOKEN_CHARS, hash_token
from deploy.cli.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: a secret is no argument, which every user of the machine could see."""


def run(arguments: argparse.Namespace) -> int:
    """One line in, one line out."""
    token = sys.stdin.readline().strip()
    if len(token) < MIN_TOKEN_CHARS:
        message = (
            f"a token must have at least {MIN_TOKEN_CHARS} characters, and be random: its hash could be guessed else"
        )
        raise CommandError(message, ExitCode.USAGE)
    print(hash_token(token))
    return ExitCode.OK
