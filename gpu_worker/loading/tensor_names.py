"""Which tensors a configuration calls for, under transformers' names, and the check of a source against them."""

from gpu_worker.loading.config import ModelConfig
from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.tensor_source import TensorSource

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

# Linear layers that a decoder computes as one.
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")

# Derived values that older files carry along.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".masked_bias")


def layer_tensor(layer: int, name: str) -> str:
    """Full name of a tensor of one layer, such as ``self_attn.q_proj.weight``."""
    return f"model.layers.{layer}.{name}"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of this configuration has."""
    hidden, vocab = config.hidden_size, config.vocab_size
    expected: dict[str, tuple[int, ...]] = {EMBEDDING: (vocab, hidden), FINAL_NORM: (hidden,)}
    if not config.tie_embeddings:
        expected[LM_HEAD] = (vocab, hidden)
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            expected[layer_tensor(layer, name)] = shape
    return expected


def check_tensors(config: ModelConfig, source: TensorSource) -> None:
    """Raises ModelLoadError for the first tensor that is missing, of another shape, not readable, or unknown."""
    expected, present = expected_tensors(config), source.names()
    for name, shape in expected.items():
        if name not in present:
            raise ModelLoadError(source.path, "missing", name)
        if source.shape(name) != shape:
            raise ModelLoadError(
                source.file_of(name), f"has shape {source.shape(name)}, the configuration wants {shape}", name
            )
    for name in sorted(present):
        if name not in expected and not _is_ignored(config, name):
            raise ModelLoadError(source.file_of(name), "is no part of this architecture and configuration", name)


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    linears = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    for name, (rows, columns, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def _is_ignored(config: ModelConfig, name: str) -> bool:
    return name.endswith(_IGNORED_SUFFIXES) or (name == LM_HEAD and config.tie_embeddings)
