"""Which backend a worker takes, and what it says when it is not the one asked for."""

from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from chairlift.runtime.settings import ModelSettings, SchedulerSettings, Settings, WorkerSettings
from gpu_worker.backends import native
from gpu_worker.backends.choose import choose_backend
from gpu_worker.kernels.cpu.library import KernelsUnavailableError, load_library
from gpu_worker.loading.loader import open_model
from gpu_worker.sizes import UnusableSettingsError, choose_sizes


@pytest.fixture
def choose(twins: Any) -> Any:
    """Chooses for a small model of a Hugging Face folder."""

    def run(block_size: int = 16, quantization: Any = "auto", **worker: Any) -> Any:
        settings = Settings(
            model=ModelSettings(quantization=quantization),
            scheduler=SchedulerSettings(block_size=block_size),
            worker=WorkerSettings(num_threads=1, **worker),
        )
        files = open_model(twins("qwen2").source)
        return choose_backend(settings, files, choose_sizes(settings, files.config))

    yield run
    torch.set_num_threads(1)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler."""

    def refuse(*_: object) -> None:
        raise KernelsUnavailableError("no C++ compiler")

    monkeypatch.setattr(native, "load_library", refuse)


@pytest.fixture
def kernels() -> None:
    try:
        load_library()
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


def test_native_kernels_are_the_default(choose: Any, kernels: None) -> None:
    backend = choose()
    assert (backend.name, backend.quantization, backend.is_deterministic) == ("native", "none", True)
    assert choose(quantization="int8", attention="native").quantization == "int8"


def test_without_them_torch_serves_and_says_so_once(choose: Any, no_kernels: None) -> None:
    with capture_logs() as logs:
        backend = choose()
    assert (backend.name, backend.quantization, backend.is_deterministic) == ("reference", "none", False)
    assert [(line["event"], line["reason"]) for line in logs] == [("native_kernels_unavailable", "no C++ compiler")]


def test_torch_on_request_is_no_notice(choose: Any) -> None:
    with capture_logs() as logs:
        assert choose(attention="reference").name == "reference"
    assert not logs


def test_a_block_size_that_kernels_do_not_take(choose: Any) -> None:
    with capture_logs() as logs:
        assert choose(block_size=8).name == "reference"
    assert "scheduler.block_size=8" in logs[0]["reason"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"attention": "native"}, "worker.attention=native: no C++ compiler"),
        ({"quantization": "int8"}, "model.quantization=int8 needs native kernels: no C++ compiler"),
        ({"deterministic": True}, "worker.deterministic=true"),
        ({"quantization": "gguf"}, "no blocks"),
    ],
)
def test_what_was_insisted_on_is_refused(choose: Any, no_kernels: None, wanted: Any, words: str) -> None:
    with pytest.raises(UnusableSettingsError) as refused:
        choose(**wanted)
    assert words in str(refused.value)
