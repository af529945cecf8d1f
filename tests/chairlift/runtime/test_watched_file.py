"""Files that are read again: what is no regular one is refused at once."""

import os
from pathlib import Path

import pytest

from chairlift.runtime.watched_file import WatchedFile, WatchedFileError


def test_content_is_told_once_for_each_change(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"a")
    (tmp_path / "file").symlink_to("real")
    file = WatchedFile(str(tmp_path / "file"), "gateway.auth_file")
    assert [file.read_if_changed(), file.read_if_changed()] == [b"a", None]
    (tmp_path / "real").write_bytes(b"b")
    assert file.read_if_changed() == b"b"


@pytest.mark.timeout(20)
def test_a_pipe_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WatchedFileError, match=r"gateway\.auth_file = .*: not a regular file"):
        WatchedFile(str(tmp_path / "pipe"), "gateway.auth_file").read()


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/null", "not a regular file"), ("/", "directory"), ("/none", "No such")]
)
def test_what_is_no_file_is_told(path: str, why: str) -> None:
    with pytest.raises(WatchedFileError, match=why):
        WatchedFile(path, "s").read()
