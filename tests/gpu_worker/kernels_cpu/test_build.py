"""How the kernels come to be: compiled once however many ask, and one clear line where they cannot be."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.instruction_sets import INSTRUCTION_SETS
from gpu_worker.kernels.cpu.library import load_library

COMPILER = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in --version) echo "compiler 1.0"; exit 0;; esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes what it is asked for into this file, and an empty cache."""
    path, compiler = tmp_path / "log", tmp_path / "compiler"
    compiler.write_text(COMPILER.format(log=path))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def test_many_at_once_compile_once(log: Path) -> None:
    with ThreadPoolExecutor(8) as executor:
        paths = set(executor.map(lambda _: build.cached_library("v3", ("-mavx2",)), range(8)))
    assert [path.read_text() for path in paths] == ["made\n"]
    assert sum("-shared" in line for line in log.read_text().splitlines()) == 1
    assert sorted(each.suffix for each in next(iter(paths)).parent.iterdir()) == [".lock", ".so"]


def test_other_flags_and_other_sources_are_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.library_name("v3", ("-mavx2",))
    assert build.library_name("v3", ("-mavx2", "-mfma")) != before
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.cpp").write_text("")
    monkeypatch.setattr(build, "SOURCE_FOLDER", source)
    assert build.library_name("v3", ("-mavx2",)) != before


def test_without_a_compiler_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setattr(library, "PACKAGED_FOLDER", tmp_path)
    monkeypatch.setattr(library, "usable_instruction_sets", lambda: INSTRUCTION_SETS[-1:])
    with pytest.raises(KernelsUnavailableError, match="no C\\+\\+ compiler") as raised:
        load_library()
    assert "\n" not in str(raised.value)


def test_a_compiler_that_fails_is_told_with_its_error(log: Path, tmp_path: Path) -> None:
    compiler = Path(os.environ["CXX"])
    compiler.write_text('#!/bin/sh\ncase "$1" in --version) exit 0;; esac\necho "x.cpp:1: error: bad" >&2\nexit 1\n')
    with pytest.raises(build.BuildError, match=r"x\.cpp:1: error: bad"):
        build.cached_library("v3", ())
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_cache_that_cannot_be_written_is_told(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match="cannot be written"):
        build.cached_library("v3", ())


def test_a_machine_without_avx2_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "usable_instruction_sets", lambda: ())
    with pytest.raises(KernelsUnavailableError, match="Linux on x86-64 with AVX2"):
        load_library()


def test_the_build_needs_nothing_but_the_standard_library() -> None:
    """hatch_build.py loads these files where neither torch nor the project is installed."""
    for name in ("build", "instruction_sets"):
        file = Path(build.__file__).with_name(f"{name}.py")
        subprocess.run([sys.executable, "-I", "-S", str(file)], check=True, timeout=60)
