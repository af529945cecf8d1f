"""Split-KV decode attention by the CUDA C++ kernel, for bf16 and head sizes 64, 128 and 256."""

from pathlib import Path

import torch

from gpu_worker.kernels.cuda.driver import Driver, Kernel, Module
from gpu_worker.kernels.triton.attention_arguments import PagedKv, check_attention
from gpu_worker.kernels.triton.checks import check_tensor, check_that
from gpu_worker.kernels.triton.shapes import AttentionShape

SOURCE = Path(__file__).with_name("paged_decode.cu")
HEAD_DIMS = (64, 128, 256)
LARGEST_GROUP = 8
_DECODE_KINDS = ("pointer",) * 8 + ("float", "int", "long", "long")
_REDUCE_KINDS = ("pointer",) * 4 + ("int", "int", "long")
_NUM_THREADS = 128


def defines_of(shape: AttentionShape) -> list[str]:
    """What the source is compiled with. Raises KernelArgumentError for a shape that it does not do."""
    check_that(shape.head_dim in HEAD_DIMS, f"head size {shape.head_dim}: the CUDA kernel does {HEAD_DIMS}")
    check_that(shape.group <= LARGEST_GROUP, f"{shape.group} query heads a KV head: the CUDA kernel does 8 at most")
    return [
        f"HEAD_DIM={shape.head_dim}",
        f"GROUP={shape.group}",
        f"NUM_KV_HEADS={shape.num_kv_heads}",
        f"BLOCK_SIZE={shape.block_size}",
    ]


class CudaDecode:
    """The kernel for one shape on one device."""

    def __init__(self, shape: AttentionShape, driver: Driver, cubin: bytes) -> None:
        """Loads machine code that was made for this shape and device. Raises DriverError."""
        module = Module(driver, cubin)
        self._shape = shape
        self._decode = Kernel(module, "paged_decode", _DECODE_KINDS)
        self._reduce = Kernel(module, "reduce_splits", _REDUCE_KINDS)

    def __call__(
        self,
        q: torch.Tensor,
        kv: PagedKv,
        part: torch.Tensor,
        lse: torch.Tensor,
        *,
        softmax_scale: float,
        window: int | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `gpu_worker.kernels.triton.decode.paged_decode`, bf16 only, and always with the reduction.

        `part` [rows, num_heads, splits, head_dim] and `lse` [rows, num_heads, splits] float32, for as many rows at
        least. The reference is `paged_decode_reference` there. Raises KernelArgumentError, DriverError.
        """
        out = torch.empty_like(q) if out is None else out
        shape = check_attention(q, kv, out, window)
        check_that(shape == self._shape, f"{shape}: this kernel was made for {self._shape}")
        check_that(q.dtype == torch.bfloat16 and kv.k_scale is None, "the CUDA kernel does bfloat16 only")
        num_rows, num_heads, splits = q.shape[0], shape.num_heads, part.shape[2]
        check_that(kv.kv_lens.shape[0] == num_rows, f"kv_lens has {kv.kv_lens.shape[0]} rows, q has {num_rows}")
        check_that(part.shape[0] >= num_rows, f"part holds {part.shape[0]} of {num_rows} rows")
        check_tensor("part", part, (None, num_heads, splits, shape.head_dim), (torch.float32,), q.device)
        check_tensor("lse", lse, (part.shape[0], num_heads, splits), (torch.float32,), q.device)
        if num_rows == 0:
            return out
        stream = torch.cuda.current_stream(q.device).cuda_stream if q.device.type == "cuda" else 0
        tables, window_words = kv.block_tables, window or 0
        self._decode.launch(
            (num_rows, shape.num_kv_heads, splits),
            _NUM_THREADS,
            stream,
            (
                q, kv.k_pages, kv.v_pages, tables, kv.kv_lens, kv.row_ids, part, lse, softmax_scale, window_words,
                q.stride(0), tables.stride(0),
            ),
        )  # fmt: skip
        self._reduce.launch(
            (num_rows, num_heads, 1),
            shape.head_dim,
            stream,
            (part, lse, kv.kv_lens, out, window_words, splits, out.stride(0)),
        )
        return out
