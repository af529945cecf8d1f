"""Compiled kernels are kept: a second start compiles nothing, and a damaged or unwritable cache costs only time."""

import importlib
from collections.abc import Sequence
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


class Compiler:
    """Remembers what it compiled."""

    version = "1"

    def __init__(self) -> None:
        self.made: list[tuple[int, ...]] = []

    def compile(self, source: str, name: str, architecture: int, defines: Sequence[str]) -> bytes:
        self.made.append((architecture, *(int(define.partition("=")[2]) for define in defines)))
        return repr(self.made[-1]).encode()


def test_shipped_code_needs_no_compiler(tmp_path: Path) -> None:
    build = importlib.import_module("gpu_worker.kernels.cuda.build")
    compiler = Compiler()
    count = build.prebuild(tmp_path / "shipped", compiler)
    assert count == len(compiler.made) == len(build.COMMON_SHAPES) * len(build.ARCHITECTURES)

    def no_compiler() -> Compiler:
        raise AssertionError("a compiler was looked for")

    shape = build.COMMON_SHAPES[2]
    found = build.cubin_for(shape, 90, tmp_path / "cache", no_compiler, tmp_path / "shipped")
    assert found == repr((90, 128, 4, 8, 16)).encode()
    assert not (tmp_path / "cache").exists()


def test_a_shape_that_is_not_shipped_is_compiled_and_kept(tmp_path: Path) -> None:
    build = importlib.import_module("gpu_worker.kernels.cuda.build")
    compiler = Compiler()
    shape = build.COMMON_SHAPES[0]
    for _ in range(2):
        found = build.cubin_for(shape, 80, tmp_path / "cache", lambda: compiler, tmp_path / "none")
        assert found == repr((80, 64, 3, 3, 16)).encode()
    assert len(compiler.made) == 1
