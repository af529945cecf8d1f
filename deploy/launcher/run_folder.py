"""The folder for socket files of one run: private, locked while it is in use, gone afterwards.

A supervisor that was killed leaves its folder behind. Its name tells whose it was and its lock dies with that process,
so the next supervisor finds and removes it.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from chairlift.runtime.private_folder import PrivateFolderError, make_private_folder

_PREFIX = "chairlift-run-"
_LOCK = "lock"


class RunFolderError(ValueError):
    """The folder cannot be used. The message names it and says why."""


class RunFolder:
    """A 0700 folder that no other supervisor uses. A context manager: what it made is removed at the end."""

    def __init__(self, chosen: str | None) -> None:
        """Takes `chosen` (made if needed, left in place at the end), or makes a fresh one.

        Raises RunFolderError when it belongs to somebody else, is open to others or is in use.
        """
        self._is_ours = chosen is None
        try:
            self.path = _fresh() if chosen is None else make_private_folder(Path(chosen))
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PrivateFolderError as error:
            raise RunFolderError(str(error)) from None
        except OSError as error:
            raise RunFolderError(f"{chosen or tempfile.gettempdir()}: {error.strerror}") from None
        if not _try_lock(self._lock):
            os.close(self._lock)
            raise RunFolderError(f"{self.path}: in use by another chairlift serve")

    def close(self) -> None:
        """Removes the folder, or from a chosen one the files that belong to this run."""
        if self._is_ours:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            for socket_file in self.path.glob("*.sock"):
                socket_file.unlink(missing_ok=True)
            (self.path / _LOCK).unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fresh() -> Path:
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    _sweep(base)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def _sweep(base: Path) -> None:
    """Removes what killed supervisors of this user left in `base`."""
    for folder in base.glob(f"{_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or _may_be_alive(folder.name):
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made or removed at this moment, or not readable: not ours to judge
        try:
            if _try_lock(lock):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _may_be_alive(name: str) -> bool:
    pid = name.removeprefix(_PREFIX).partition("-")[0]
    if not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
