"""Compiles what the wrappers launch for sm_80, sm_86, sm_90 and sm_100, with no GPU, and prints what each kernel takes.

``python -m … compile_all [--part I/N] [NAME …]``: exits 1 when a kernel does not compile, spills registers, or wants
more shared memory than its device has. fp8 (e4m3) needs sm_89 or newer.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_worker.kernels.triton.shapes import DeviceClass
from tests.gpu_worker.kernels_triton.compiled.cases import all_cases
from tests.gpu_worker.kernels_triton.compiled.launches import Launch, launches_of
from tests.gpu_worker.kernels_triton.parts import part_of

_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_SHARED_BYTES = {
    DeviceClass.AMPERE: 163 << 10,
    DeviceClass.SMALL: 99 << 10,
    DeviceClass.HOPPER: 227 << 10,
    DeviceClass.BLACKWELL: 227 << 10,
}
"""Shared memory that one program may have."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    kernel: str
    device_class: DeviceClass
    registers: int
    stack_bytes: int
    shared_bytes: int
    cubin_bytes: int
    error: str = ""

    @property
    def fault(self) -> str:
        """Why the kernel may not ship; empty when it may."""
        if self.error:
            return self.error
        if self.stack_bytes:
            return f"spills {self.stack_bytes} bytes"
        limit = _SHARED_BYTES[self.device_class]
        return f"wants more than {limit} bytes of shared memory" if self.shared_bytes > limit else ""

    def line(self) -> str:
        """The row as the table shows it."""
        return (
            f"{self.name:24s} {self.kernel:26s} sm_{self.device_class.value:<3d} {self.registers:5d} "
            f"{self.stack_bytes:6d} {self.shared_bytes:7d} {self.cubin_bytes:7d} {self.fault}"
        ).rstrip()


def compiled(name: str, launch: Launch, device_class: DeviceClass) -> Row:
    """Compiles one launch for one architecture."""
    kernel = launch.kernel.__name__
    source = ASTSource(
        fn=launch.kernel, signature=launch.signature, constexprs=launch.constants, attrs=launch.attributes
    )
    try:
        binary = triton.compile(source, target=GPUTarget("cuda", device_class.value, 32), options=launch.options)
    # Whatever the compiler raises is this kernel's result, and the others are still wanted.
    except Exception as error:  # noqa: BLE001
        return Row(name, kernel, device_class, 0, 0, 0, 0, f"{type(error).__name__}: {str(error).strip()[-300:]}")
    registers, stack, static_shared = _usage(binary.asm["cubin"])
    shared = max(binary.metadata.shared, static_shared)
    return Row(name, kernel, device_class, registers, stack, shared, len(binary.asm["cubin"]))


def _usage(cubin: bytes) -> tuple[int, int, int]:
    """Registers a thread, bytes of stack a thread (spills) and static shared memory, by NVIDIA's own tool."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    assert found is not None, f"cuobjdump said: {text}"
    registers, stack, shared, local = map(int, found.groups())
    return registers, stack + local, shared


def rows_of(name: str) -> list[Row]:
    """Everything that one case launches, for every architecture."""
    case = next(case for case in all_cases() if case.name == name)
    rows = []
    for device_class in case.device_classes:
        launches = {launch.key: launch for launch in launches_of(partial(case.call, device_class))}
        rows += [compiled(name, launch, device_class) for launch in launches.values()]
    return rows


def main(arguments: Sequence[str]) -> int:
    """Prints the table; exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--part", type=part_of, default=(0, 1), metavar="I/N")
    chosen = parser.parse_args(arguments)
    first, step = chosen.part
    names = (chosen.names or [case.name for case in all_cases()])[first::step]
    print(f"triton {triton.__version__}")
    print(f"{'case':24s} {'kernel':26s} {'arch':>6s} {'regs':>5s} {'spill':>6s} {'shared':>7s} {'cubin':>7s}")
    faults = []
    with ProcessPoolExecutor(1 if step > 1 else os.cpu_count()) as pool:
        for rows in pool.map(rows_of, names):
            for row in rows:
                print(row.line(), flush=True)
                if row.fault:
                    faults.append(row)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
