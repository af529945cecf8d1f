"""Figures of a GPU's memory: what is left for a worker, and what is said when it is too little."""

from typing import Any

import pytest
import torch

from gpu_worker.memory import DeviceMemory, DeviceMemoryError, check_weights_fit, explained_shortage

GIB = 1 << 30
CUDA = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 24 GiB card: 3 GiB are taken, 2 of them by this process."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (21 * GIB, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 2 * GIB)


def test_the_budget_is_a_share_of_the_device_less_what_others_hold(card: None) -> None:
    memory = DeviceMemory.of(CUDA)
    assert memory.held_elsewhere == GIB
    assert memory.budget(0.75) == 17 * GIB


def test_weights_that_cannot_fit_are_refused_before_they_are_read(card: None) -> None:
    memory = DeviceMemory.of(CUDA)
    check_weights_fit(memory, 0.75, 16 * GIB)
    with pytest.raises(DeviceMemoryError) as refused:
        check_weights_fit(memory, 0.75, 17 * GIB)
    message = str(refused.value)
    for figure in ("17408 MiB", "gpu_memory_utilization=0.75", "24576 MiB", "21504 MiB of them free"):
        assert figure in message


def test_a_shortage_is_told_with_its_figures(card: None) -> None:
    told = "out of memory while loading weights; the device has 24576 MiB"
    with pytest.raises(DeviceMemoryError, match=told), explained_shortage("loading weights", CUDA):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


def test_other_errors_pass(card: None) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"), explained_shortage("loading weights", CUDA):
        fail()
