"""transformers' continuous batching on a random-weight model of SmolLM2's shape, in a process of its own.

``python -m deploy.bench.gpu.peer`` prints one line of JSON. What it hangs or fails in is no trouble of ours: whoever
starts it gives it a time.
"""

import json
import sys
import time

import torch
import transformers

_NUM_PROMPTS, _PROMPT_LEN, _NEW_TOKENS = 64, 128, 128
_VOCAB_SIZE = 49152


def main() -> int:
    """Exit code."""
    config = transformers.LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.to("cuda").eval()
    prompts = torch.randint(3, _VOCAB_SIZE, (_NUM_PROMPTS, _PROMPT_LEN)).tolist()
    options = transformers.GenerationConfig(
        max_new_tokens=_NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    model.generate_batch(inputs=prompts[:4], generation_config=options, progress_bar=False)
    started = time.perf_counter()
    outputs = model.generate_batch(inputs=prompts, generation_config=options, progress_bar=False)
    seconds = time.perf_counter() - started
    tokens = sum(len(output.generated_tokens) for output in outputs.values())
    told = {"version": transformers.__version__, "tokens_per_s": tokens / seconds, "tokens": tokens}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
