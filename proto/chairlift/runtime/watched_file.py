"""A file whose content may change while the process runs: secrets and lists that an operator replaces.

Content is compared, not times: what a cluster mounts is swapped by symlinks, whose times and inodes tell nothing.
"""

import hashlib
import os
import stat
from pathlib import Path

_MAX_BYTES = 4 << 20


class WatchedFileError(ValueError):
    """A file that cannot be read. The message names the setting, the file and the reason; never its content."""


class WatchedFile:
    """The file that `setting` names."""

    def __init__(self, path: str, setting: str) -> None:
        self.path = Path(path)
        self.setting = setting
        self._seen: bytes | None = None

    def read(self) -> bytes:
        """Its content now. Raises WatchedFileError."""
        try:
            with open(self.path, "rb", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise WatchedFileError(f"{self.setting} = {self.path}: not a regular file")
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise WatchedFileError(f"{self.setting} = {self.path}: {error.strerror or 'cannot be read'}") from None
        if len(content) > _MAX_BYTES:
            raise WatchedFileError(f"{self.setting} = {self.path}: larger than {_MAX_BYTES} bytes")
        return content

    def read_if_changed(self) -> bytes | None:
        """Its content where that is another than the last time, else None. Raises WatchedFileError."""
        content = self.read()
        digest = hashlib.sha256(content).digest()
        if digest == self._seen:
            return None
        self._seen = digest
        return content


def _open_at_once(path: str, flags: int) -> int:
    # A pipe that nobody writes to would hold its reader for ever.
    return os.open(path, flags | os.O_NONBLOCK)
