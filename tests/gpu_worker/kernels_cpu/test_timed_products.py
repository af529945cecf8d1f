"""What `chairlift bench kernels` times is what layers compute."""

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from deploy.bench.kernel_cases import Product
from gpu_worker.kernels.cpu.library import Library
from gpu_worker.kernels.cpu.linear import LinearKernels, WeightKind
from gpu_worker.kernels.cpu.threads import ThreadTeam


@pytest.mark.parametrize("num_rows", [1, 17])
@pytest.mark.parametrize("kind", WeightKind)
def test_a_timed_product_is_the_layers(library: Library, team: ThreadTeam, kind: WeightKind, num_rows: int) -> None:
    kernels = LinearKernels(library, team)
    weight, dtype = torch.randn(96, 576), kind.input_dtype or torch.bfloat16
    if kind.block_bytes:
        blocks = torch.from_numpy(quantize(weight.numpy(), GGMLQuantizationType[kind.name]))
        linear = kernels.pack_blocks(blocks, kind)
    else:
        linear = kernels.pack(weight.to(dtype), None, kind)
    x = torch.randn(num_rows, 576).to(dtype)
    product = Product(kernels, linear, x)
    product.run()
    assert torch.equal(product.out, linear(x))
