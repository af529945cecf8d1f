"""GGUF files: every supported type, llama.cpp's row order, metadata, and damage."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from chairlift.runtime.model_source import ModelSource, SourceKind
from gpu_worker.loading.config import FrequencyFactors, LinearScaling, YarnScaling
from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.loader import LoadedModel, open_model
from gpu_worker.model.linear import DenseLinear

SUPPORTED = ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32


def load(path: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return open_model(ModelSource("m", SourceKind.GGUF, path)).load(dtype, torch.device("cpu"))


def weight(linear: Any) -> torch.Tensor:
    assert isinstance(linear, DenseLinear)
    return linear.weight


@pytest.mark.parametrize("kind", SUPPORTED)
def test_each_type_is_dequantised_into_its_place(kind: str, write_gguf: Any, llama_tensors: Any) -> None:
    """What is loaded equals the tensor quantised and dequantised, rows in transformers' order, packed as wanted."""
    tensors, kind_id = llama_tensors(), GGMLQuantizationType[kind]
    model = load(write_gguf(tensors, kind_id))

    def stored(name: str) -> torch.Tensor:
        values = quantize(tensors[f"model.layers.1.{name}.weight"], kind_id)
        return torch.from_numpy(dequantize(values, kind_id).copy())

    layer = model.weights.layers[1]
    q, k, v = weight(layer.qkv).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM])
    assert torch.equal(q, stored("self_attn.q_proj"))
    assert torch.equal(k, stored("self_attn.k_proj"))
    assert torch.equal(v, stored("self_attn.v_proj"))
    assert torch.equal(weight(layer.output), stored("self_attn.o_proj"))
    gate, up = weight(layer.gate_up).chunk(2)
    assert torch.equal(gate, stored("mlp.gate_proj"))
    assert torch.equal(up, stored("mlp.up_proj"))
    assert torch.equal(weight(layer.down), stored("mlp.down_proj"))
    norm = torch.from_numpy(tensors["model.layers.1.input_layernorm.weight"])
    assert torch.equal(layer.input_norm, norm)


def test_a_large_tensor_is_read_in_slices(write_gguf: Any, llama_tensors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = llama_tensors(tied=False)
    path = write_gguf(tensors, GGMLQuantizationType.Q8_0)
    whole = load(path).weights
    monkeypatch.setattr("gpu_worker.loading.gguf_source._SLICE_ELEMENTS", 64 * 7)
    sliced = load(path).weights
    assert torch.equal(weight(whole.lm_head), weight(sliced.lm_head))
    assert not torch.equal(weight(whole.lm_head), whole.embedding)
    for one, other in zip(whole.layers, sliced.layers, strict=True):
        assert torch.equal(weight(one.qkv), weight(other.qkv))
        assert torch.equal(weight(one.gate_up), weight(other.gate_up))


def test_configuration_from_metadata(write_gguf: Any, llama_tensors: Any) -> None:
    model: Any = load(write_gguf(llama_tensors(), metadata={"tokenizer.ggml.eot_token_id": 5}), torch.bfloat16)
    config = model.config
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (HEADS, KV_HEADS, HEAD_DIM)
    assert config.tie_embeddings
    assert config.eos_token_ids == (2, 5)
    assert model.weights.lm_head.weight.data_ptr() == model.weights.embedding.data_ptr()
    assert model.weight_bytes == 2 * model.num_parameters
    assert model.weights.embedding.dtype == torch.bfloat16


def test_qwen2_rows_are_not_permuted_and_biases_are_read(write_gguf: Any, llama_tensors: Any) -> None:
    tensors = llama_tensors()
    for layer in range(2):
        for name, size in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = np.arange(size, dtype=np.float32) + layer
    model = load(write_gguf(tensors, architecture="qwen2"))
    qkv = model.weights.layers[1].qkv
    assert torch.equal(
        weight(qkv)[: HEADS * HEAD_DIM], torch.from_numpy(tensors["model.layers.1.self_attn.q_proj.weight"])
    )
    assert isinstance(qkv, DenseLinear)
    assert qkv.bias is not None
    assert qkv.bias[:3].tolist() == [1.0, 2.0, 3.0]


def test_llama_biases_are_put_in_order_with_their_rows(write_gguf: Any, llama_tensors: Any) -> None:
    tensors = llama_tensors()
    for layer in range(2):
        for name, size in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = np.arange(size, dtype=np.float32)
    qkv = load(write_gguf(tensors)).weights.layers[0].qkv
    assert isinstance(qkv, DenseLinear)
    assert qkv.bias is not None
    sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    assert qkv.bias.tolist() == [float(i) for size in sizes for i in range(size)]


@pytest.mark.parametrize(
    ("metadata", "wanted", "context"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, LinearScaling(4.0), 512),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            YarnScaling(4.0, 64, 1.1386294361119891),
            256,
        ),
    ],
)
def test_rope_scaling(metadata: dict[str, Any], wanted: Any, context: int, write_gguf: Any, llama_tensors: Any) -> None:
    config = load(write_gguf(llama_tensors(), metadata=metadata)).config
    assert config.rope_scaling == wanted
    assert config.context_length == context


def test_rope_factors_are_a_tensor(write_gguf: Any, llama_tensors: Any) -> None:
    """Llama 3.1's scaling comes as rope_freqs.weight."""
    factors = np.linspace(1, 8, HEAD_DIM // 2).astype(np.float32)
    config = load(write_gguf(llama_tensors(), extra={"rope_freqs.weight": factors})).config
    assert config.rope_scaling == FrequencyFactors(tuple(float(factor) for factor in factors))


def refuse(path: Path, *words: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_truncated_file(write_gguf: Any, llama_tensors: Any) -> None:
    whole = write_gguf(llama_tensors())
    content = whole.read_bytes()
    for size in (3, 20, 700, len(content) // 2, len(content) - 40):
        whole.write_bytes(content[:size])
        refuse(whole, "truncated")


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(4096))
    refuse(path, "not a GGUF file")
    refuse(tmp_path / "absent.gguf", "cannot be read")


def test_unsupported_type(write_gguf: Any, llama_tensors: Any) -> None:
    refuse(write_gguf(llama_tensors(), GGMLQuantizationType.Q5_0), "Q5_0", "Q4_1", "token_embd.weight")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "gemma3"}, ("unknown architecture", "gemma3", "qwen3")),
        ({"metadata": {"llama.expert_count": 8}}, ("mixture of experts",)),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, ("longrope",)),
        ({"metadata": {"llama.rope.dimension_count": 16}}, ("rotary part of 16",)),
        ({"metadata": {"llama.block_count": 1 << 31}}, ("number of layers is 2147483648",)),
        ({"metadata": {"llama.block_count": 1 << 31, "llama.attention.sliding_window": 7}}, ("number of layers",)),
        ({"metadata": {"llama.rope.freq_base": math.nan}}, ("RoPE base nan",)),
        ({"metadata": {"llama.attention.layer_norm_rms_epsilon": math.inf}}, ("norm epsilon inf",)),
        ({"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": math.nan}}, ("factor nan",)),
        ({"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": math.inf}}, ("factor inf",)),
        ({"extra": {"rope_freqs.weight": np.full(HEAD_DIM // 2, np.nan, np.float32)}}, ("frequency factors",)),
        ({"extra": {"blk.0.surprise.weight": np.zeros((4, 4), np.float32)}}, ("blk.0.surprise.weight", "no part of")),
    ],
)
def test_refused_models(
    change: dict[str, Any], words: tuple[str, ...], write_gguf: Callable[..., Path], llama_tensors: Any
) -> None:
    refuse(write_gguf(llama_tensors(), **change), *words)


def test_missing_and_misshapen_tensors(write_gguf: Any, llama_tensors: Any) -> None:
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"][:64]
    refuse(write_gguf(tensors), "model.layers.1.mlp.up_proj.weight", "(64, 64)", "(96, 64)")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    refuse(write_gguf(tensors), "model.layers.1.mlp.up_proj.weight", "missing")
    del tensors["model.embed_tokens.weight"]
    refuse(write_gguf(tensors), "token_embd.weight", "missing")
