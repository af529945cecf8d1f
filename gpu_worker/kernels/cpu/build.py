"""Compiles the kernels: one shared library an instruction set, a few seconds each.

Two callers: `library.py` at first use on a machine with a compiler (a checkout, an editable install), into the user's
cache; and the package's build (hatch_build.py), for every instruction set, into the wheel. Standard library only.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent / "src"
PACKAGED_FOLDER = Path(__file__).parent / "lib"
_COMMON_FLAGS = (
    "-std=c++17",
    # Sums of a kernel stay in registers only once loops over them are unrolled, which GCC does from here on: 1.9 times
    # the speed of float32 products and 1.7 of 8-bit ones against -O2, in no more time to compile.
    "-O3",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    # A product and a sum fuse where the source says so and nowhere else: results must not hang on inlining.
    "-ffp-contract=off",
)
_COMPILE_TIMEOUT_S = 300
_COMPILER_CANDIDATES = ("c++", "g++", "clang++")


class BuildError(RuntimeError):
    """The kernels cannot be compiled here. The message says why in one line."""


def find_compiler() -> str:
    """Path of the C++ compiler: $CXX, or the first usual name on the path. Raises BuildError."""
    wanted = os.environ.get("CXX")
    for candidate in (wanted,) if wanted else _COMPILER_CANDIDATES:
        if found := shutil.which(candidate):
            return found
    raise BuildError(f"no C++ compiler (looked for {wanted or ', '.join(_COMPILER_CANDIDATES)})")


def library_name(instruction_set: str, flags: Sequence[str]) -> str:
    """File name that changes with the sources and the flags."""
    digest = hashlib.sha256(repr((*_COMMON_FLAGS, *flags)).encode())
    for file in sorted(SOURCE_FOLDER.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"chairlift-cpu-{instruction_set}-{digest.hexdigest()[:16]}.so"


def compile_library(target: Path, flags: Sequence[str], compiler: str) -> None:
    """Compiles all sources and links them to `target`, which appears whole or not at all. Raises BuildError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        commands = [
            [compiler, *_COMMON_FLAGS, *flags, "-c", str(source), "-o", str(file)]
            for source, file in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
            list(executor.map(_run, commands))
        linked = Path(folder) / target.name
        _run([compiler, "-shared", *flags, "-pthread", *map(str, objects), "-o", str(linked)])
        linked.replace(target)


def cached_library(instruction_set: str, flags: Sequence[str]) -> Path:
    """The library in the user's cache, compiled now if it is not there. Several processes may ask at once.

    Raises BuildError.
    """
    compiler = find_compiler()
    version = hashlib.sha256(_run([compiler, "--version"]).encode() + compiler.encode()).hexdigest()[:8]
    target = _cache_folder() / version / library_name(instruction_set, flags)
    try:
        if not target.exists():
            with _locked(target.with_suffix(".lock")):
                if not target.exists():
                    compile_library(target, flags, compiler)
    except OSError as error:
        raise BuildError(f"{target.parent} cannot be written: {error.strerror or error}") from None
    return target


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chairlift" / "kernels"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        raise BuildError(f"{command[0]} failed: {lines[0][:300]}")
    return done.stdout
