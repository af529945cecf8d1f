"""Compiled kernels on disk, so that a second start compiles nothing. A damaged file is compiled again."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

_DIGEST_BYTES = 32


def cache_folder() -> Path:
    """This user's own: in ``$XDG_CACHE_HOME``, else ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "chairlift" / "cubins"


def cubin_key(source: str, compiler_version: str, architecture: int, defines: Sequence[str]) -> str:
    """Whatever the machine code depends on."""
    parts = (source, compiler_version, str(architecture), *defines)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_kept(folder: Path, key: str) -> bytes | None:
    """The cubin kept under `key`; None where there is none, or a damaged one."""
    try:
        held = (folder / f"{key}.cubin").read_bytes()
    except OSError:
        return None
    digest, cubin = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


def load_or_make(folder: Path, key: str, make: Callable[[], bytes]) -> bytes:
    """The cubin kept under `key`, or what `make` gives, which is then kept.

    A folder that cannot be written only costs the next start its time. The file holds a digest before the code, and
    appears under its name only when it is whole: several processes may do this at once.
    """
    kept = read_kept(folder, key)
    if kept is not None:
        return kept
    cubin = make()
    partial = folder / f"{key}.{os.getpid()}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_bytes(hashlib.sha256(cubin).digest() + cubin)
        partial.replace(folder / f"{key}.cubin")
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return cubin
