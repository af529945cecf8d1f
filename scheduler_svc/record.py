"""Recordings on disk: a folder of files, each replayable by itself, bounded in size and age.

Owns the files of one life of this process and the removal of older ones. What is in them is `core.recording`'s. A disk
that is full or gone ends the recording with an error in the log, never the process.
"""

import os
import re
import time
from pathlib import Path
from typing import BinaryIO

import structlog

import chairlift
from chairlift.runtime.settings import SchedulerSettings
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import Effect
from scheduler_svc.core.events import Event
from scheduler_svc.core.recording import RecordedCore

SUFFIX = ".chairlift-record"
_NAME = re.compile(r"[0-9]+-[0-9]{6}\.chairlift-record")
_FILES = 8
"""Files that the allowed size is cut into, so that removing one keeps most."""
_BUFFER_BYTES = 1 << 18
_FLUSH_NS = 1_000_000_000
_NS = 1_000_000_000


class RecordingFolder:
    """Files of frames. Raises OSError where the folder cannot be made or the first file cannot be opened."""

    def __init__(self, folder: Path, epoch: int, max_bytes: int, max_age_s: float) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._folder = folder
        self._epoch = epoch
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._number = 0
        self._file: BinaryIO | None = None
        self._size = 0
        self._full_size = 0

    @property
    def is_full(self) -> bool:
        """Whether another file is due. A header that holds the state may be large: the frames are at least as much."""
        return self._size >= self._full_size

    def begin(self, header: bytes) -> None:
        """Ends the file in work and begins the next one; old ones go."""
        self.close()
        self._number += 1
        path = self._folder / f"{self._epoch}-{self._number:06d}{SUFFIX}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES)
        self._size = 0
        self._full_size = max(self._max_bytes // _FILES, 2 * len(header))
        self.write(header)
        self.remove_old()

    def write(self, frame: bytes) -> None:
        """Appends to the file in work."""
        if self._file is not None:
            self._file.write(frame)
            self._size += len(frame)

    def flush(self) -> None:
        """What was written is with the operating system."""
        if self._file is not None:
            self._file.flush()

    def remove_old(self) -> None:
        """Removes files beyond the allowed age and size, oldest first, never the one in work."""
        found = []
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name):
                status = path.stat()
                found.append((status.st_mtime, path.name, status.st_size, path))
        found.sort(reverse=True)
        total = self._full_size
        oldest = time.time() - self._max_age_s
        for at, (changed, _, size, path) in enumerate(found):
            total += size if at > 0 else 0
            if at > 0 and (changed < oldest or total > self._max_bytes):
                path.unlink()

    def close(self) -> None:
        """Ends the file in work."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Recorder:
    """A core that is recorded as the settings say; `handle` in place of the core's own."""

    def __init__(self, settings: SchedulerSettings, config: SchedulingConfig, hash_key: bytes, epoch: int) -> None:
        """Raises OSError where the folder cannot be written to, and what Core raises."""
        assert settings.record is not None
        self._log = structlog.get_logger()
        self._folder = RecordingFolder(
            Path(settings.record).expanduser(), epoch, settings.record_max_bytes, settings.record_max_age_s
        )
        self._recorded = RecordedCore(
            config,
            hash_key,
            epoch,
            self._write,
            name_key=os.urandom(32),
            with_tokens=settings.record_tokens,
        )
        self._is_on = True
        self._max_age_ns = round(settings.record_max_age_s * _NS)
        self._began_ns: int | None = None
        self._flushed_ns = 0
        self._folder.begin(self._recorded.header(chairlift.__version__))
        self._log.warning("recording_is_on", folder=settings.record, with_tokens=settings.record_tokens)

    @property
    def core(self) -> Core:
        """The core that is recorded. Events go through `handle`."""
        return self._recorded.core

    def handle(self, event: Event, now: int) -> list[Effect]:
        """See Core."""
        if not self._is_on:
            return self.core.handle(event, now)
        return self._recorded.handle(event, now)

    def turned(self, now: int) -> None:
        """To be called between wakes: begins the next file when it is time, and lets the disk have what there is."""
        if not self._is_on:
            return
        if self._began_ns is None:
            self._began_ns = now
        is_old = now - self._began_ns >= self._max_age_ns // _FILES
        try:
            if self._folder.is_full or is_old:
                self._began_ns = now
                self._folder.begin(self._recorded.header(chairlift.__version__))
            elif now - self._flushed_ns >= _FLUSH_NS:
                self._flushed_ns = now
                self._folder.flush()
        except OSError as error:
            self._give_up(error)

    def _write(self, frame: bytes) -> None:
        try:
            self._folder.write(frame)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._is_on = False
        self._log.error("recording_stopped", error=type(error).__name__, reason=error.strerror)

    def close(self) -> None:
        """Ends the recording."""
        try:
            self._folder.close()
        except OSError as error:
            self._give_up(error)
