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


def load_or_make(folder: Path, key: str, make: Callable[[], bytes]) -> bytes:
    """The cubin kept under `key`, or what `make` gives, which is then kept.

    A folder that cannot be written only costs the next start its time. The file holds a digest before the code, and
    appears under its name only when it is whole: several processes may do this at once.
    """
    path = folder / f"{key}.cubin"
    try:
        held = path.read_bytes()
    except OSError:
        held = b""
    digest, cubin = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
    if cubin and hashlib.sha256(cubin).digest() == digest:
        return cubin
    cubin = make()
    partial = folder / f"{key}.{os.getpid()}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_bytes(hashlib.sha256(cubin).digest() + cubin)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return cubin
