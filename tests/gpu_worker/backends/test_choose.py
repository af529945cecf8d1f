"""Which backend a worker takes, and what it says when it is not the one asked for."""

import importlib.util
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from structlog.testing import capture_logs

from chairlift.runtime.settings import ModelSettings, SchedulerSettings, Settings, WorkerSettings
from gpu_worker.backends import native
from gpu_worker.backends.choose import choose_backend
from gpu_worker.backends.errors import KernelsUnavailableError
from gpu_worker.kernels.cpu.library import load_library
from gpu_worker.loading.loader import open_model
from gpu_worker.memory import DeviceMemoryError
from gpu_worker.sizes import Sizes, UnusableSettingsError, choose_sizes
from gpu_worker.threads import ThreadPlan

ONE_THREAD = ThreadPlan(1, 0, ())

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed (Linux x86-64 only)"
)


@pytest.fixture
def choose(twins: Any) -> Any:
    """Chooses for a small model of a Hugging Face folder."""

    def run(block_size: int = 16, quantization: Any = "auto", **worker: Any) -> Any:
        settings = Settings(
            model=ModelSettings(quantization=quantization),
            scheduler=SchedulerSettings(block_size=block_size),
            worker=WorkerSettings(**worker),
        )
        files = open_model(twins("qwen2").source)
        return choose_backend(settings, files, choose_sizes(settings, files.config), ONE_THREAD)

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


@pytest.fixture
def choose_on_cuda(twins: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same for a card that is not there: a choice reads no weights."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (70 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

    def run(
        block_size: int = 16, quantization: Any = "auto", head_dim: int = 64, dtype: Any = torch.bfloat16, **worker: Any
    ) -> Any:
        settings = Settings(
            model=ModelSettings(quantization=quantization),
            scheduler=SchedulerSettings(block_size=block_size),
            worker=WorkerSettings(device="cuda", **worker),
        )
        files = open_model(twins("qwen2").source)
        files = replace(files, config=msgspec.structs.replace(files.config, head_dim=head_dim))
        sizes = Sizes(torch.device("cuda", 0), dtype, 128, 4, 64, block_size)
        return choose_backend(settings, files, sizes, ONE_THREAD)

    return run


@needs_triton
def test_triton_is_the_default_on_a_gpu(choose_on_cuda: Any) -> None:
    with capture_logs() as logs:
        backend = choose_on_cuda()
    assert (backend.name, backend.quantization, backend.is_deterministic) == ("triton", "none", False)
    assert not logs
    assert choose_on_cuda(quantization="int8", attention="triton").quantization == "int8"


@needs_triton
def test_what_the_kernels_cannot_do_torch_does_and_says_so(choose_on_cuda: Any) -> None:
    with capture_logs() as logs:
        backend = choose_on_cuda(head_dim=72)
    assert (backend.name, str(backend.device)) == ("reference", "cuda:0")
    assert [line["event"] for line in logs] == ["triton_kernels_unavailable"]
    assert "head size 72" in logs[0]["reason"]


def test_a_gpu_without_the_package_is_served_by_torch(choose_on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.backends.device_choice.importlib.util.find_spec", lambda name: None)
    with capture_logs() as logs:
        assert choose_on_cuda().name == "reference"
    assert logs[0]["reason"] == "the package triton is not installed"


@needs_triton
def test_cuda_kernels_are_compiled_before_weights_are_read(
    choose_on_cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = object()
    monkeypatch.setattr("gpu_worker.kernels.cuda.backend.load_decode", lambda shape, device: made)
    backend = choose_on_cuda(attention="cuda")
    assert backend.name == "cuda"


@needs_triton
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"attention": "native"}, "worker.attention=native: needs worker.device=cpu"),
        (
            {"attention": "triton", "dtype": torch.float32},
            "worker.attention=triton: model.dtype=float32: the kernels do bfloat16",
        ),
        ({"attention": "triton", "block_size": 8}, "worker.attention=triton: block size 8"),
        ({"attention": "cuda", "head_dim": 80}, "worker.attention=cuda: head size 80"),
        ({"quantization": "int8", "head_dim": 72}, "model.quantization=int8 needs triton kernels: head size 72"),
        ({"quantization": "int8", "attention": "reference"}, "needs triton kernels: worker.attention is reference"),
        ({"deterministic": True}, "worker.deterministic=true: not with triton kernels"),
    ],
)
def test_what_a_gpu_cannot_do_and_was_insisted_on_is_refused(
    choose_on_cuda: Any, wanted: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    with pytest.raises(UnusableSettingsError) as refused:
        choose_on_cuda(**wanted)
    assert words in str(refused.value)


@needs_triton
def test_a_model_that_is_too_large_is_refused_with_figures(choose_on_cuda: Any) -> None:
    with pytest.raises(DeviceMemoryError, match="gpu_memory_utilization=1e-06 leaves 0 MiB"):
        choose_on_cuda(gpu_memory_utilization=1e-6)


def test_kernels_of_a_gpu_are_refused_on_a_cpu(choose: Any) -> None:
    for attention in ("triton", "cuda"):
        with pytest.raises(UnusableSettingsError, match=f"worker.attention={attention}: needs worker.device=cuda"):
            choose(attention=attention)


def test_native_kernels_are_the_default(choose: Any, kernels: None) -> None:
    backend = choose()
    assert (backend.name, backend.quantization, backend.is_deterministic) == ("native", "none", True)
    assert choose(quantization="int8", attention="native").quantization == "int8"


def test_without_them_torch_serves_and_says_so_once(choose: Any, no_kernels: None) -> None:
    with capture_logs() as logs:
        backend = choose()
    assert (backend.name, backend.quantization, backend.is_deterministic) == ("reference", "none", False)
    assert [(line["event"], line["reason"]) for line in logs] == [("native_kernels_unavailable", "no C++ compiler")]


def test_torch_on_request_is_no_notice(choose: Any, choose_on_cuda: Any) -> None:
    with capture_logs() as logs:
        assert choose(attention="reference").name == "reference"
        assert choose_on_cuda(attention="reference").name == "reference"
    assert not logs


def test_a_block_size_that_kernels_do_not_take(choose: Any) -> None:
    with capture_logs() as logs:
        assert choose(block_size=8).name == "reference"
    assert "scheduler.block_size=8" in logs[0]["reason"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"attention": "native"}, "worker.attention=native: no C++ compiler"),
        ({"attention": "native", "block_size": 8}, "worker.attention=native: scheduler.block_size=8"),
        ({"attention": "reference", "quantization": "int8"}, "needs native kernels: worker.attention is reference"),
        ({"quantization": "int8"}, "model.quantization=int8 needs native kernels: no C++ compiler"),
        ({"deterministic": True}, "worker.deterministic=true"),
        ({"quantization": "gguf"}, "no blocks"),
    ],
)
def test_what_was_insisted_on_is_refused(choose: Any, no_kernels: None, wanted: Any, words: str) -> None:
    with pytest.raises(UnusableSettingsError) as refused:
        choose(**wanted)
    assert words in str(refused.value)
