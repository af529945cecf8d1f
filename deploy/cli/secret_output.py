"""Writes a secret into a file that is its owner's alone from the start."""

import os
from pathlib import Path

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError


def write_secret(path: Path, text: str) -> None:
    """Makes the file with mode 0600. Raises CommandError; one that is there already is never written over."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path}: is there already; a secret is not written over", ExitCode.USAGE) from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", ExitCode.USAGE) from None
