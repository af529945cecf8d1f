"""Finds the compiled kernels for this machine, and declares their C functions to ctypes.

The packaged library is taken where there is one, else one is compiled into the user's cache.
"""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.kernels.cpu.build import PACKAGED_FOLDER, BuildError, cached_library, library_name
from gpu_worker.kernels.cpu.instruction_sets import InstructionSet, usable_instruction_sets


class AttentionShape(ctypes.Structure):
    """As `AttentionShape` in attention.h."""

    _fields_ = (
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("scale", c_float),
        ("window", c_int32),
    )


class RotaryCall(ctypes.Structure):
    """As `RotaryCall` in rotary.h, its shape first."""

    _fields_ = (
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("norm_eps", c_float),
        ("cos_sin", c_void_p),
        ("positions", c_void_p),
        ("blocks", c_void_p),
        ("offsets", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("k_pages", c_void_p),
        ("v_pages", c_void_p),
    )


class LinearWeights(ctypes.Structure):
    """As `Linear` in linear.h."""

    _fields_ = (
        ("kind", c_int32),
        ("num_outputs", c_int32),
        ("num_inputs", c_int32),
        ("paired", c_int32),
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
    )


class Inputs(ctypes.Structure):
    """As `Inputs` in linear.h."""

    _fields_ = (("rows", c_void_p), ("row_bytes", c_int64), ("scales", c_void_p), ("sums", c_void_p))


class Outputs(ctypes.Structure):
    """As `Outputs` in linear.h."""

    _fields_ = (("kind", c_int32), ("dtype", c_int32), ("rows", c_void_p), ("stride", c_int64))


class LayerArrays(ctypes.Structure):
    """As `Layer` in decoder.h."""

    _fields_ = (
        ("qkv", LinearWeights),
        ("output", LinearWeights),
        ("gate_up", LinearWeights),
        ("down", LinearWeights),
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("window", c_int32),
    )


class DecoderArrays(ctypes.Structure):
    """As `DecoderWeights` in decoder.h."""

    _fields_ = (
        ("embedding", LinearWeights),
        ("head", LinearWeights),
        ("final_norm", c_void_p),
        ("cos_sin", c_void_p),
        ("layers", c_void_p),
    )


class DecoderShape(ctypes.Structure):
    """As `DecoderShape` in decoder.h."""

    _fields_ = (
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("dtype", c_int32),
        ("max_tokens", c_int32),
        ("max_rows", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
    )


class Step(ctypes.Structure):
    """As `Step` in decoder.h."""

    _fields_ = (
        ("num_tokens", c_int64),
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("blocks", c_void_p),
        ("offsets", c_void_p),
        ("block_tables", c_void_p),
        ("table_stride", c_int64),
        ("query_starts", c_void_p),
        ("kv_lens", c_void_p),
        ("num_rows", c_int32),
        ("k_pages", c_void_p),
        ("v_pages", c_void_p),
        ("hidden", c_void_p),
    )


_P, _I, _L, _F = c_void_p, c_int32, c_int64, c_float
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "chairlift_pool_create": (_P, (_I, _L, _P)),
    "chairlift_pool_destroy": (None, (_P,)),
    "chairlift_attention": (_I, (_P, _I, POINTER(AttentionShape), _P, _L, _P, _P, _P, _L, _P, _P, _I, _P, _L)),
    "chairlift_rms_norm": (None, (_P, _I, _P, _P, _P, _P, _L, _I, _F)),
    "chairlift_silu_mul": (None, (_P, _I, _P, _P, _L, _I)),
    "chairlift_panel_bytes": (_L, (POINTER(LinearWeights),)),
    "chairlift_pack": (None, (_P, POINTER(LinearWeights), _P, _I, _P, _P)),
    "chairlift_gather_rows": (None, (_P, POINTER(LinearWeights), _P, _L, _I, _P)),
    "chairlift_quantise": (None, (_P, _I, _I, _P, _L, _I, _P, _P, _P)),
    "chairlift_linear": (None, (_P, POINTER(LinearWeights), POINTER(Inputs), _L, POINTER(Outputs))),
    "chairlift_prepare": (_I, ()),
    "chairlift_greedy": (None, (_P, _P, _L, _L, _P)),
    "chairlift_read_memory": (None, (_P, _P, _L)),
    "chairlift_multiply_registers": (c_double, (_P, _I, _L)),
    "chairlift_decoder_create": (_P, (POINTER(DecoderShape), POINTER(DecoderArrays))),
    "chairlift_decoder_destroy": (None, (_P,)),
    "chairlift_decoder_forward": (_I, (_P, _P, POINTER(Step))),
    "chairlift_decoder_logits": (None, (_P, _P, _P, _L, _P)),
    "chairlift_rotate_and_store": (None, (_P, _I, POINTER(RotaryCall), _P, _P, _L)),
}


class Library:
    """The C functions of one build."""

    def __init__(self, path: Path, instruction_set: str) -> None:
        self.path = path
        self.instruction_set = instruction_set
        self._functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._functions, name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name.removeprefix("chairlift_"), function)

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":
        raise AttributeError(f"{self.path.name} has no function chairlift_{name}")


def load_library(instruction_set: str | None = None) -> Library:
    """The best library that this machine runs, or the one named. Compiles it where need be (a few seconds, once).

    Raises KernelsUnavailableError.
    """
    usable = usable_instruction_sets()
    if instruction_set is not None:
        usable = tuple(each for each in usable if each.name == instruction_set)
    if not usable:
        raise KernelsUnavailableError(
            "native kernels need Linux on x86-64 with AVX2"
            if instruction_set is None
            else f"this machine has no instruction set {instruction_set}"
        )
    problems = []
    for candidate in usable:
        try:
            library = Library(_find(candidate), candidate.name)
        except (BuildError, OSError) as error:
            problems.append(f"{candidate.name}: {error}")
            continue
        if library.prepare() == 0:
            return library
        problems.append(f"{candidate.name}: the system does not permit it")
    raise KernelsUnavailableError(f"no native kernels: {'; '.join(problems)}")


def _find(wanted: InstructionSet) -> Path:
    packaged = PACKAGED_FOLDER / library_name(wanted.name, wanted.compiler_flags)
    return packaged if packaged.exists() else cached_library(wanted.name, wanted.compiler_flags)
