"""The instruction sets that the kernels are compiled for, best first, and which of them this machine has.

Standard library only, and imports nothing of the project: the package's build loads it by path.
"""

import platform
from dataclasses import dataclass
from pathlib import Path

_V3 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_V4_FLAGS = ("-march=x86-64-v4",)
_BF16_FLAGS = (*_V4_FLAGS, "-mavx512vnni", "-mavx512bf16")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One build of the kernels."""

    name: str
    compiler_flags: tuple[str, ...]
    cpu_flags: frozenset[str]
    """Flags of /proc/cpuinfo that it needs, all of them."""


INSTRUCTION_SETS = (
    InstructionSet(
        "amx",
        (*_BF16_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _V4 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    ),
    InstructionSet("v4-bf16", _BF16_FLAGS, _V4 | {"avx512_vnni", "avx512_bf16"}),
    InstructionSet("v4-vnni", (*_V4_FLAGS, "-mavx512vnni"), _V4 | {"avx512_vnni"}),
    InstructionSet("v4", _V4_FLAGS, _V4),
    InstructionSet("v3", ("-march=x86-64-v3",), _V3),
)


def usable_instruction_sets() -> tuple[InstructionSet, ...]:
    """Those that this machine can run, best first; none on another system or architecture."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return ()
    flags = _cpu_flags(Path("/proc/cpuinfo").read_text())
    return tuple(each for each in INSTRUCTION_SETS if each.cpu_flags <= flags)


def _cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Flags of the first processor. Every core of a machine that these kernels meet has the same."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()
