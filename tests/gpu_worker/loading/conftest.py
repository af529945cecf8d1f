"""A small GGUF writer: llama.cpp's names, its permuted rows, any type of tensor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 64, 96, 4, 2, 32, 64, 2

Tensors = dict[str, npt.NDArray[np.float32]]


def random_tensors(*, tied: bool = True) -> Tensors:
    """All tensors of a small llama under transformers' names."""
    rng = np.random.default_rng(3)

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    tensors = {"model.embed_tokens.weight": draw(VOCAB, HIDDEN), "model.norm.weight": draw(HIDDEN)}
    if not tied:
        tensors["lm_head.weight"] = draw(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": draw(HIDDEN),
            prefix + "self_attn.q_proj.weight": draw(HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": draw(HIDDEN, HEADS * HEAD_DIM),
            prefix + "post_attention_layernorm.weight": draw(HIDDEN),
            prefix + "mlp.gate_proj.weight": draw(INNER, HIDDEN),
            prefix + "mlp.up_proj.weight": draw(INNER, HIDDEN),
            prefix + "mlp.down_proj.weight": draw(HIDDEN, INNER),
        }
    return tensors


_RENAMES = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
)


def gguf_name(name: str) -> str:
    for theirs, ours in _RENAMES:
        name = name.replace(theirs, ours)
    return name


def permuted(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows of a query or key projection as convert_hf_to_gguf stores them: rotary pairs side by side."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes `tensors` as a GGUF file; matrices as `kind`, vectors as F32."""

    def write(
        tensors: Tensors,
        kind: GGMLQuantizationType = GGMLQuantizationType.F32,
        architecture: str = "llama",
        metadata: dict[str, Any] | None = None,
        extra: Tensors | None = None,
    ) -> Path:
        path = tmp_path / f"{architecture}-{kind.name}.gguf"
        writer = GGUFWriter(path, architecture)
        writer.add_context_length(128)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_rope_freq_base(10_000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_eos_token_id(2)
        for key, value in (metadata or {}).items():
            match value:
                case str():
                    writer.add_string(key, value)
                case float():
                    writer.add_float32(key, value)
                case int():
                    writer.add_uint32(key, value)
        for name, values in tensors.items():
            if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
                values = permuted(values, HEADS if ".q_proj." in name else KV_HEADS)
            stored = kind if values.ndim > 1 else GGMLQuantizationType.F32
            raw_dtype = None if stored in (GGMLQuantizationType.F32, GGMLQuantizationType.F16) else stored
            writer.add_tensor(gguf_name(name), quantize(values, stored), raw_dtype=raw_dtype)
        for name, values in (extra or {}).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def llama_tensors() -> Callable[..., Tensors]:
    return random_tensors
