"""Folders that hold what nobody else may touch: sockets whose peers are trusted."""

import os
import stat
from pathlib import Path


class PrivateFolderError(ValueError):
    """A folder that is not this user's alone. The message names it and says why."""


def make_private_folder(folder: Path) -> Path:
    """`folder`, made with mode 0700 if needed. Raises PrivateFolderError when others may use it, or it cannot be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise PrivateFolderError(f"{folder}: {error.strerror}") from None
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PrivateFolderError(f"{folder}: must belong to this user with mode 0700: whoever can write there can plan")
    return folder
