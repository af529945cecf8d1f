"""Machine code of the decode kernel for a shape: shipped with the package, kept from an earlier start, or compiled now.

``python -m gpu_worker.kernels.cuda.build`` compiles the common shapes into the package where a CUDA compiler is at hand
when a wheel is built; without it nothing is lost but the seconds of a first start.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpu_worker.kernels.cuda.compiler import Compiler, CompilerError, find_compiler
from gpu_worker.kernels.cuda.cubin_cache import cubin_key, load_or_make, read_kept
from gpu_worker.kernels.cuda.decode import SOURCE, defines_of
from gpu_worker.kernels.triton.shapes import AttentionShape

PREBUILT = Path(__file__).with_name("prebuilt")
_ANY_COMPILER = "prebuilt"
"""What stands for the compiler's version in the keys of code that is shipped."""

ARCHITECTURES = (80, 90, 100)
COMMON_SHAPES = (
    AttentionShape(9, 3, 64, 16),
    AttentionShape(32, 8, 64, 16),
    AttentionShape(32, 8, 128, 16),
    AttentionShape(64, 8, 128, 16),
    AttentionShape(28, 4, 128, 16),
)
"""SmolLM2 135M, Llama 3.2 1B, Llama 3.1 8B, Llama 3.1 70B, Qwen2.5 7B."""


def cubin_for(
    shape: AttentionShape,
    architecture: int,
    cache: Path,
    find: Callable[[], Compiler] = find_compiler,
    prebuilt: Path = PREBUILT,
) -> bytes:
    """Machine code for ``sm_<architecture>``. Raises KernelArgumentError, CompilerError."""
    source, defines = SOURCE.read_text(), defines_of(shape)
    shipped = read_kept(prebuilt, cubin_key(source, _ANY_COMPILER, architecture, defines))
    if shipped is not None:
        return shipped
    compiler = find()
    key = cubin_key(source, compiler.version, architecture, defines)
    return load_or_make(cache, key, lambda: compiler.compile(source, SOURCE.name, architecture, defines))


def prebuild(folder: Path, compiler: Compiler) -> int:
    """Compiles every common shape for every architecture into `folder`; the number of files there."""
    source = SOURCE.read_text()
    for shape in COMMON_SHAPES:
        for architecture in ARCHITECTURES:
            defines = defines_of(shape)
            key = cubin_key(source, _ANY_COMPILER, architecture, defines)
            load_or_make(folder, key, partial(compiler.compile, source, SOURCE.name, architecture, defines))
    return len(list(folder.glob("*.cubin")))


def main() -> int:
    """Exit code."""
    try:
        count = prebuild(PREBUILT, find_compiler())
    except CompilerError as error:
        sys.stderr.write(f"CUDA kernels are not prebuilt: {error}\n")
        return 1
    sys.stdout.write(f"{count} prebuilt CUDA kernels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
