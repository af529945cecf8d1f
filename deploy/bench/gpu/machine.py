"""The device under test: how time is taken on it, and its measured ceilings."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from deploy.bench.gpu.report import Report

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where everything runs. `is_dry`: no GPU; logic runs on tiny sizes, and times mean nothing."""

    device: torch.device
    is_dry: bool

    def seconds(self, work: Work, repeats: int = 15) -> float:
        """Median time of one run of `work` on the device, replayed as a graph so that launches cost nothing."""
        if self.is_dry:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        replay = _captured(work)
        for _ in range(3):
            replay()
        times = []
        for _ in range(repeats):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            replay()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) * 1e-3)
        return float(statistics.median(times))

    def wait(self) -> None:
        """Until the device has nothing left to do."""
        if not self.is_dry:
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device was seen to reach."""

    copy_bytes_per_s: float
    """Read and written together."""
    bf16_flop_per_s: float


def measure_ceilings(machine: Machine, report: Report) -> Ceilings:
    """Copy bandwidth over buffers far larger than any cache, and a large bf16 product of random values."""
    count, size = (1 << 12, 64) if machine.is_dry else (1 << 30, 8192)
    source = torch.randn(count, device=machine.device).to(torch.bfloat16)
    target = torch.empty_like(source)
    copy = 2 * source.numel() * source.element_size() / machine.seconds(lambda: target.copy_(source))
    a, b = (torch.randn(size, size, device=machine.device).to(torch.bfloat16) for _ in range(2))
    flops = 2 * size**3 / machine.seconds(lambda: a @ b)
    report.add("ceilings", copy_GB_per_s=copy / 1e9, bf16_TFLOP_per_s=flops / 1e12)
    return Ceilings(copy, flops)


def describe_machine(machine: Machine, report: Report) -> None:
    """Names and versions."""
    name = "cpu (dry run, no figure means anything)"
    capability = ""
    if not machine.is_dry:
        name = torch.cuda.get_device_name(machine.device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(machine.device)))
    import triton

    report.add(
        "machine",
        device=name,
        capability=capability,
        torch=torch.__version__,
        triton=triton.__version__,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def _captured(work: Work) -> Work:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay
