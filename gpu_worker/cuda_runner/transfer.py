"""Copies between host and device that never make the host wait for a step: staging buffers, a stream for results."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gpu_worker.cuda_runner.packing import Upload, Words
from gpu_worker.kernels.triton.plan import apply_plan
from gpu_worker.kernels.triton.row_state import RowState

IN_FLIGHT = 2
"""Plans that the scheduler sends ahead."""


class Mark(Protocol):
    """A point in the device's order of work."""

    def wait(self) -> None:
        """Blocks until the device has passed it."""
        ...

    def is_done(self) -> bool:
        """Whether the device has passed it."""
        ...


@dataclass(frozen=True, slots=True)
class CudaMark:
    """An event on a stream. The wait sleeps, and leaves the processor to others."""

    event: torch.cuda.Event

    def wait(self) -> None:
        """As `Mark.wait`."""
        self.event.synchronize()

    def is_done(self) -> bool:
        """As `Mark.is_done`."""
        return bool(self.event.query())


class PassedMark:
    """Where there is one order of work only: all of it is done."""

    def wait(self) -> None:
        """As `Mark.wait`."""

    def is_done(self) -> bool:
        """As `Mark.is_done`."""
        return True


class Uploader:
    """Brings a step's changes to the arena: one pinned copy and one launch, more only where the room is too small."""

    def __init__(self, state: RowState, num_words: int) -> None:
        self._state = state
        is_cuda = state.device.type == "cuda"
        num_slots = IN_FLIGHT + 1 if is_cuda else 1
        self._staging = [torch.zeros(num_words, dtype=torch.int32, pin_memory=is_cuda) for _ in range(num_slots)]
        self._marks: list[Mark] = [PassedMark() for _ in range(num_slots)]
        self._next = 0
        # The copy and the launch that reads it are on one stream, so that one buffer is enough on the device.
        self._on_device = torch.zeros(num_words, dtype=torch.int32, device=state.device)

    def send(self, upload: Upload) -> int:
        """Enqueues copy and launch; returns the number of copies that it took."""
        num_copies = 0
        while True:
            self._marks[self._next].wait()
            staging = self._staging[self._next]
            words: Words = staging.numpy()
            part = upload.write(words)
            if part is None:
                return num_copies
            num_words = part.num_words
            self._on_device[:num_words].copy_(staging[:num_words], non_blocking=True)
            self._marks[self._next] = mark(self._state.device)
            self._next = (self._next + 1) % len(self._staging)
            apply_plan(self._on_device, self._state, part.num_runs, part.longest)
            num_copies += 1


class Downloader:
    """Brings results to the host on a stream of its own, so that the next step does not wait behind the copy."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._slots = [_Slot.make(num_words, device) for _ in range(IN_FLIGHT + 1)]
        self._next = 0

    def fetch(self, words: torch.Tensor) -> "Download":
        """Enqueues the copy of `words` (int32). The result must be read before `IN_FLIGHT` more are fetched."""
        flat = words.reshape(-1)
        count = flat.shape[0]
        if count > len(self._slots[self._next].host):
            # A row that asks for more alternatives than there is room for, which is rare.
            self._slots[self._next] = _Slot.make(count, self._device)
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        kept, host = slot.device[:count], slot.host[:count]
        # The next step overwrites `words`: the copy to the host is made of what this line keeps.
        kept.copy_(flat)
        if self._stream is None:
            host.copy_(kept)
            return Download(host, tuple(words.shape), PassedMark())
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(kept, non_blocking=True)
            return Download(host, tuple(words.shape), mark(self._device))


@dataclass(frozen=True, slots=True)
class _Slot:
    """Room for one result on both sides."""

    device: torch.Tensor
    host: torch.Tensor

    @classmethod
    def make(cls, num_words: int, device: torch.device) -> "_Slot":
        host = torch.zeros(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
        return cls(torch.zeros(num_words, dtype=torch.int32, device=device), host)


@dataclass(frozen=True, slots=True)
class Download:
    """A result on its way."""

    host: torch.Tensor
    shape: tuple[int, ...]
    mark: Mark

    def read(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
        """Waits for it. A copy, int32 in the shape that was fetched."""
        self.mark.wait()
        found: np.ndarray[tuple[int, ...], np.dtype[np.int32]] = self.host.numpy().reshape(self.shape).copy()
        return found


def mark(device: torch.device) -> Mark:
    """The point that the current stream has reached."""
    if device.type != "cuda":
        return PassedMark()
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return CudaMark(event)
