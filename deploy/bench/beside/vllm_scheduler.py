"""vLLM's scheduler class alone, driven as `deploy.bench.scheduler` drives ours; started by `--vllm PYTHON` there.

Runs in an environment with vLLM in it and imports nothing of this project. One figure is one step in steady decode:
`schedule()` and `update_from_output()`; messages are not encoded, which ours are. Prints one JSON object.
"""

import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
_BLOCK = 16
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 1,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "vocab_size": 49_152,
    "torch_dtype": "bfloat16",
}


def make_scheduler(num_seqs: int, folder: str) -> tuple[Any, Any]:
    """A scheduler with room for all, and the function that hashes a request's blocks."""
    import torch
    from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found, unused-ignore]
    from vllm.utils.hashing import sha256  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found, unused-ignore]
        get_request_block_hasher,
        init_none_hash,
    )
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found, unused-ignore]
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found, unused-ignore]

    Path(folder, "config.json").write_text(json.dumps(_CONFIG))
    config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(8192, num_seqs),
        max_model_len=2048,
        enable_prefix_caching=True,
        async_scheduling=False,
        block_size=_BLOCK,
    ).create_engine_config()
    num_blocks = (num_seqs + 8) * 60
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=_BLOCK, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
    cache = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["l"], spec)])
    init_none_hash(sha256)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=_BLOCK,
        log_stats=False,
    )
    return scheduler, get_request_block_hasher(_BLOCK, sha256)


class Driven:
    """One scheduler with all its seats taken."""

    def __init__(self, num_seqs: int, folder: str) -> None:
        self._random = random.Random(0)
        self._scheduler, self._hasher = make_scheduler(num_seqs, folder)
        for number in range(num_seqs):
            self.add(str(number), 100 + number % 64)
        while not self._all_decode(num_seqs):
            self.step()

    def _all_decode(self, num_seqs: int) -> bool:
        running = self._scheduler.running
        return len(running) == num_seqs and all(request.num_output_tokens > 0 for request in running)

    def add(self, name: str, prompt_len: int) -> None:
        """One more request."""
        from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found, unused-ignore]
        from vllm.v1.request import Request  # type: ignore[import-not-found, unused-ignore]

        prompt = [self._random.randrange(1000, 48_000) for _ in range(prompt_len)]
        params = SamplingParams(max_tokens=1500, ignore_eos=True)
        self._scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                block_hasher=self._hasher,
            )
        )

    def step(self) -> float:
        """One step; µs in the scheduler."""
        from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found, unused-ignore]

        began = time.thread_time_ns()
        planned = self._scheduler.schedule()
        took = time.thread_time_ns() - began
        names = list(planned.num_scheduled_tokens)
        requests = self._scheduler.requests
        sampled = [[5] if requests[n].num_computed_tokens >= requests[n].num_prompt_tokens else [] for n in names]
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=sampled
        )
        began = time.thread_time_ns()
        self._scheduler.update_from_output(planned, output)
        return (took + time.thread_time_ns() - began) / 1000


def measure(num_seqs: int, num_steps: int, num_waiting: int, folder: str) -> dict[str, float]:
    """Median and p99 of a step, in µs."""
    driven = Driven(num_seqs, folder)
    for number in range(num_waiting):
        driven.add(f"w{number}", 64)
    gc.collect()
    gc.freeze()
    times = sorted(driven.step() for _ in range(num_steps))
    gc.unfreeze()
    return {
        "median_us": round(statistics.median(times), 1),
        "p99_us": round(times[int(len(times) * 0.99)], 1),
    }


def main() -> None:
    """Arguments: steps a figure, and sizes."""
    import vllm  # type: ignore[import-not-found, unused-ignore]

    num_steps, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "version": vllm.__version__,
            "steady": {str(size): measure(size, num_steps, 0, folder) for size in sizes},
            "waiting_10000": {str(size): measure(size, num_steps, 10_000, folder) for size in sizes},
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
