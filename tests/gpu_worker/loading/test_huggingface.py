"""Hugging Face folders: shards, configuration of either generation, and everything that is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chairlift.runtime.model_source import ModelSource, SourceKind
from gpu_worker.loading.config import Architecture, LinearScaling, Llama3Scaling, YarnScaling
from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.hf_config import read_hf_config
from gpu_worker.loading.loader import LoadedModel, open_model


def load(folder: Path) -> LoadedModel:
    return open_model(ModelSource("m", SourceKind.HUGGINGFACE, folder)).load(torch.float32, torch.device("cpu"))


@pytest.fixture
def folder(twins: Any, tmp_path: Path) -> Path:
    """A copy of a small Qwen2 model that a test may spoil."""
    copy = tmp_path / "model"
    shutil.copytree(twins("qwen2").folder, copy)
    return copy


def refuse(folder: Path, *words: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_shards_give_the_same_weights(twins: Any, tmp_path: Path) -> None:
    model = twins("llama-all-biases")
    model.reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    sharded: Any = load(tmp_path).weights
    assert torch.equal(sharded.embedding, model.loaded.weights.embedding)
    for one, other in zip(sharded.layers, model.loaded.weights.layers, strict=True):
        assert torch.equal(one.qkv.weight, other.qkv.weight)
        assert torch.equal(one.down.bias, other.down.bias)


def test_stored_bfloat16_is_widened(folder: Path) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors |= {name: tensor.bfloat16() for name, tensor in tensors.items()}

    change_tensors(folder, narrow)
    assert load(folder).weights.embedding.dtype == torch.float32


def test_progress_counts_every_tensor(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = ModelSource("m", SourceKind.HUGGINGFACE, folder)
    open_model(source).load(torch.float32, torch.device("cpu"), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_older_configuration_files(folder: Path) -> None:
    """Before transformers 5: rope_theta at the top, rope_scaling with `type`, eos in a list."""
    change_config(
        folder,
        rope_parameters="absent",
        rope_theta=1e6,
        rope_scaling={"type": "linear", "factor": 2},
        eos_token_id=[2, 7],
    )
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = read_hf_config(folder)
    assert config.architecture is Architecture.QWEN2
    assert config.rope_theta == 1e6
    assert config.rope_scaling == LinearScaling(2.0)
    assert config.context_length == 1024
    assert config.eos_token_ids == (2, 7)


def test_generation_config_has_the_last_word_on_eos(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 2, 3]}')
    assert read_hf_config(folder).eos_token_ids == (3, 2)


@pytest.mark.parametrize(
    ("rope", "wanted"),
    [
        (None, None),
        ({"rope_type": "default"}, None),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            Llama3Scaling(8.0, 1.0, 4.0, 256),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "attention_factor": 1.5},
            YarnScaling(4.0, 256, 1.5),
        ),
    ],
)
def test_rope_scaling(folder: Path, rope: dict[str, Any] | None, wanted: Any) -> None:
    change_config(folder, rope_parameters="absent", rope_scaling=rope)
    assert read_hf_config(folder).rope_scaling == wanted


def test_a_window_as_long_as_the_unscaled_context_is_one_once_that_is_extended(folder: Path) -> None:
    change_config(folder, model_type="mistral", sliding_window=512, rope_parameters=None)
    assert read_hf_config(folder).layer_windows == ()
    change_config(folder, rope_parameters=_yarn(factor=4.0))
    assert read_hf_config(folder).layer_windows == (512, 512, 512)


def _yarn(**changes: float) -> dict[str, Any]:
    return {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4} | changes


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"model_type": "absent"}, "model_type"),
        ({"hidden_size": "absent"}, "hidden_size"),
        ({"hidden_size": "large"}, "hidden_size"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "rope_theta": 1e4}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantisation"),
        ({"num_key_value_heads": 4}, "KV heads"),
        ({"intermediate_size": 0}, "intermediate size is 0"),
        ({"max_position_embeddings": 10**9}, "context length is 1000000000"),
        ({"num_hidden_layers": 10**12, "layer_types": "absent"}, "number of layers is 1000000000000"),
        ({"num_hidden_layers": 10**12, "layer_types": "absent", "model_type": "qwen2"}, "number of layers"),
        ({"num_hidden_layers": 10**12, "model_type": "mistral"}, "number of layers is 1000000000000"),
        ({"rms_norm_eps": 1e300}, "norm epsilon"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "RoPE base"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 1e300, "rope_theta": 1e4}}, "context length"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 1e-300, "rope_theta": 1e4}}, "factor 1e-300"),
        ({"rope_parameters": _yarn(factor=1e300)}, "context length"),
        ({"rope_parameters": _yarn(beta_fast=-3.0)}, "beta 1.0 to -3.0"),
        ({"rope_parameters": _yarn(mscale=1e300, mscale_all_dim=1e-300)}, "attention factor"),
        ({"eos_token_id": 4000}, "end-of-sequence"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "chunked_attention"),
    ],
)
def test_refused_configurations(folder: Path, changes: dict[str, Any], word: str) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    change_config(folder, **changes)
    refuse(folder, "config.json", word)


def test_broken_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama",')
    refuse(folder, "config.json")


def test_pickled_weights_are_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuse(folder, "pickled", "pytorch_model.bin")
    (folder / "pytorch_model.bin").unlink()
    refuse(folder, "no *.safetensors")


def test_missing_shard(folder: Path, twins: Any) -> None:
    (folder / "model.safetensors").unlink()
    twins("qwen2").reference.save_pretrained(folder, max_shard_size="100KB")
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    refuse(folder, lost.name, "missing")


def test_shard_that_lacks_a_tensor_of_the_index(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model.safetensors", "model.lost.weight": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(folder, "model.safetensors", "model.lost.weight", "missing")


def test_index_may_not_leave_the_folder(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(folder, "outside its folder")


def test_truncated_safetensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for size in (0, 5, 100, len(content) - 1):
        path.write_bytes(content[:size])
        refuse(folder, "model.safetensors", "not a whole safetensors file")


def test_missing_extra_and_misshapen_tensors(folder: Path) -> None:
    name = "model.layers.2.self_attn.k_proj.bias"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(31)}))
    refuse(folder, "model.safetensors", name, "(31,)", "(32,)")
    change_tensors(folder, lambda tensors: tensors.pop(name))
    refuse(folder, name, "missing")
    change_tensors(
        folder, lambda tensors: tensors.update({name: torch.zeros(32), "model.extra.weight": torch.zeros(1)})
    )
    refuse(folder, "model.extra.weight", "no part of")


def test_quantised_tensors_are_refused(folder: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    refuse(folder, name, "quantisation", "F8_E4M3")


def test_buffers_of_older_files_are_ignored(folder: Path) -> None:
    change_tensors(
        folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    )
    assert load(folder).num_parameters > 0
