"""The kernels' C++ under AddressSanitizer, in a process of its own."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_worker.kernels.cpu.build import SOURCE_FOLDER, BuildError, find_compiler
from gpu_worker.kernels.cpu.instruction_sets import usable_instruction_sets

GRID = Path(__file__).parent / "sanitized" / "grid.cpp"
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=address"]
NOT_NEEDED = {"ceilings.cpp", "decoder.cpp"}


def test_no_kernel_touches_what_is_not_its_own(tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    # The plain sets, whose products are put together from simpler instructions that the sanitizer sees.
    plain = [each for each in usable_instruction_sets() if each.name in ("v4", "v3")]
    if not plain:
        pytest.skip("no AVX2 on this machine")
    flags = [*FLAGS, f"-I{SOURCE_FOLDER}", *plain[0].compiler_flags]
    sources = [GRID, *(each for each in SOURCE_FOLDER.glob("*.cpp") if each.name not in NOT_NEEDED)]
    objects = [tmp_path / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(2) as executor:
        list(executor.map(lambda pair: run([compiler, *flags, "-c", *pair]), zip_arguments(sources, objects)))
    program = tmp_path / "grid"
    run([compiler, *flags, "-pthread", *map(str, objects), "-o", str(program)])
    run([str(program)])


def zip_arguments(sources: list[Path], objects: list[Path]) -> list[tuple[str, str, str]]:
    return [(str(source), "-o", str(file)) for source, file in zip(sources, objects, strict=True)]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
