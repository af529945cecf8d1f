"""What every test relies on: reproducible property tests without time limits, and a header that names the machine."""

import functools
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from hypothesis import settings

# Time limits on single examples would make tests depend on what else the machine does.
settings.register_profile("local", deadline=None, print_blob=True)
# In CI the same examples each time: a red run is about the change, not about luck.
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# Where a shell runs this in the background it ignores Ctrl-C, nohup ignores SIGHUP, and so would every process that a
# test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> str:
    """The versions that most often explain a difference between two machines."""
    found = []
    for name in ("torch", "grpcio", "protobuf", "msgspec", "pyzmq"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} absent")
    return f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}; {', '.join(found)}"


@pytest.fixture(scope="session")
def quick_gguf() -> Callable[[], AbstractContextManager[None]]:
    """`with quick_gguf():` transformers reads a GGUF file in a third of the time.

    The rest goes into indexing a memory map once for each entry of the vocabulary, and into the table of names, which
    is made once a tensor.
    """
    import gguf
    import numpy as np

    @contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np, "memmap", lambda path, *_, **__: np.fromfile(path, np.uint8))
            patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
            yield

    return patched


@pytest.fixture(scope="session")
def transformers_smollm2(quick_gguf: Callable[[], AbstractContextManager[None]]) -> Any:
    """The built-in model in float32 as transformers reads it from the same file: what outputs are compared with."""
    import torch
    from transformers import AutoModelForCausalLM

    from chairlift.runtime.model_source import BUILT_IN, resolve_model

    path = resolve_model(BUILT_IN).path
    with quick_gguf():
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        )
    return model.eval()
