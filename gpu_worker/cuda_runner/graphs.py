"""Decode steps as CUDA graphs, one a bucket: captured once, largest first, in one memory pool, replayed ever after."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from gpu_worker.cuda_runner.buckets import bucket_for

Body = Callable[[], None]


class GraphCapturer(Protocol):
    """Turns work into something that repeats it."""

    def capture(self, body: Body) -> Body:
        """What repeats `body`. `body` may run any number of times meanwhile, so that it must do nothing then."""
        ...


class CudaGraphCapturer:
    """Captures with torch. All graphs share one pool: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, body: Body) -> Body:
        """As `GraphCapturer.capture`."""
        # The first run compiles kernels and allocates library workspaces, which a capture does not allow.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            body()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            body()
        return graph.replay


class DecodeGraphs:
    """The graphs of all buckets."""

    def __init__(self, buckets: Sequence[int], step_of: Callable[[int], Body], capturer: GraphCapturer) -> None:
        """Captures. `step_of(bucket)` gives the work of one step of that many rows, over tensors that stay."""
        self._buckets = tuple(sorted(buckets))
        # Largest first: the pool then has room for every other, and grows once.
        self._graphs = {bucket: capturer.capture(step_of(bucket)) for bucket in reversed(self._buckets)}

    def bucket_for(self, num_rows: int) -> int | None:
        """Bucket that a decode of so many rows takes; None: it must run without a graph."""
        return bucket_for(num_rows, self._buckets)

    def replay(self, bucket: int) -> None:
        """Enqueues the step."""
        self._graphs[bucket]()
