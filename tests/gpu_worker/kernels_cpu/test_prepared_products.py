"""A product that is prepared once and run many times, as `chairlift bench kernels` times it."""

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.linear import LinearKernels, WeightKind
from gpu_worker.kernels.cpu.threads import ThreadTeam


@pytest.mark.parametrize("num_rows", [1, 17])
@pytest.mark.parametrize("kind", WeightKind)
def test_each_run_computes_what_the_inputs_are_now(
    library: Library, team: ThreadTeam, kind: WeightKind, num_rows: int
) -> None:
    kernels = LinearKernels(library, team)
    weight, dtype = torch.randn(96, 576), kind.input_dtype or torch.bfloat16
    if kind.block_bytes:
        blocks = torch.from_numpy(quantize(weight.numpy(), GGMLQuantizationType[kind.name]))
        linear = kernels.pack_blocks(blocks, kind)
    else:
        linear = kernels.pack(weight.to(dtype), None, kind)
    x = torch.empty(num_rows, 576, dtype=dtype)
    product = linear.prepare(x, dtype)
    for _ in range(2):
        x.normal_()
        product.run()
        assert torch.equal(product.out, linear(x))
