"""Compiled kernels are kept: a second start compiles nothing, and a damaged or unwritable cache costs only time."""

from pathlib import Path

import pytest

from gpu_worker.kernels.cuda.cubin_cache import cache_folder, cubin_key, load_or_make


class Maker:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return b"machine code"


def test_the_second_time_nothing_is_made(tmp_path: Path) -> None:
    make = Maker()
    for _ in range(2):
        assert load_or_make(tmp_path / "new", "key", make) == b"machine code"
    assert make.calls == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["key.cubin"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 200])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: bytes) -> None:
    make = Maker()
    load_or_make(tmp_path, "key", make)
    (tmp_path / "key.cubin").write_bytes(damage)
    assert load_or_make(tmp_path, "key", make) == b"machine code"
    assert make.calls == 2
    assert load_or_make(tmp_path, "key", make) == b"machine code"
    assert make.calls == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    make = Maker()
    assert load_or_make(tmp_path / "file", "key", make) == b"machine code"


def test_the_key_depends_on_all_that_the_code_depends_on() -> None:
    keys = {
        cubin_key("a", "nvrtc-13.0", 90, ["X=1"]),
        cubin_key("b", "nvrtc-13.0", 90, ["X=1"]),
        cubin_key("a", "nvrtc-13.1", 90, ["X=1"]),
        cubin_key("a", "nvrtc-13.0", 80, ["X=1"]),
        cubin_key("a", "nvrtc-13.0", 90, ["X=12"]),
    }
    assert len(keys) == 5


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "chairlift" / "cubins"
