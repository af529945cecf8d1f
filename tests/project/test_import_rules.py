"""Who may import whom, as ARCHITECTURE.md says: read from the source, and seen in fresh interpreters.

The source tells what a module may ever import, inside functions too. A fresh interpreter tells what importing it really
loads, which includes what a parent package's `__init__` brings in. import-linter (`make check`) follows chains.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"chairlift": ROOT / "proto", "deploy": ROOT, "gateway": ROOT, "gpu_worker": ROOT, "scheduler_svc": ROOT}
STDLIB = frozenset(sys.stdlib_module_names)

PURE_STDLIB = frozenset(
    {"__future__", "abc", "array", "bisect", "collections", "copy", "dataclasses", "enum", "functools", "hashlib"}
    | {"heapq", "itertools", "math", "operator", "string", "struct", "sys", "types", "typing", "zlib"}
)
"""What the scheduler's core may use: nothing that reads a clock, a seed, the environment, a file or a socket."""

GRPC = frozenset({"google", "grpc", "grpc_health", "grpc_reflection", "grpc_status"})
TORCH = frozenset({"accelerate", "safetensors", "torch", "transformers", "triton"})


def source_of(package: str) -> Path:
    """The folder or file of one of our packages or modules."""
    parts = package.split(".")
    folder = OURS[parts[0]].joinpath(*parts)
    return folder if folder.is_dir() else folder.with_suffix(".py")


def modules_of(package: str) -> Iterator[tuple[str, Path]]:
    """Every module below `package`, with its file. There is at least one."""
    source = source_of(package)
    assert source.exists(), f"{package} is gone: a rule that nothing can break"
    for file in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
        parts = file.relative_to(OURS[package.split(".")[0]]).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that these nodes of a syntax tree import."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    name = f"{module}.{alias.name}"
                    yield name if name.split(".")[0] in OURS and source_of(name).exists() else module


def nodes_outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs as soon as the module is imported."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from nodes_outside_functions(node)


def is_within(name: str, packages: frozenset[str]) -> bool:
    """Whether `name` is one of `packages` or lies below one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


ALLOWED = {
    "chairlift.ipc": STDLIB | {"msgspec", "chairlift.ipc"},
    "chairlift.runtime": STDLIB
    | {"chairlift.ipc", "chairlift.runtime", "huggingface_hub", "msgspec", "opentelemetry", "prometheus_client"}
    | {"structlog", "zmq"},
    "scheduler_svc.core": PURE_STDLIB | {"chairlift.ipc", "msgspec", "scheduler_svc.core"},
    "scheduler_svc.sim": STDLIB | {"chairlift.ipc", "msgspec", "scheduler_svc.core", "scheduler_svc.sim"},
    "scheduler_svc": STDLIB
    | {"chairlift.ipc", "chairlift.runtime", "msgspec", "opentelemetry", "scheduler_svc", "structlog", "zmq"},
}
"""What each package may import, beside `chairlift` itself for its version; anything else is refused."""

FORBIDDEN = {
    "chairlift.client": TORCH | {"deploy", "gateway", "gpu_worker", "scheduler_svc", "zmq"},
    "gateway": TORCH | {"deploy", "gpu_worker", "scheduler_svc"},
    "gpu_worker": GRPC | {"chairlift.client", "chairlift.v1", "deploy", "gateway", "scheduler_svc", "transformers"},
    "deploy": {"gateway"},
}
"""What each package may not import; anything else is its own affair."""


def test_reader_of_imports_sees_them_wherever_they_are() -> None:
    code = (
        "import a.b\ndef f():\n    from chairlift.ipc import common, codec\n"
        "if x:\n    from c import d\nclass C:\n    import e\n"
    )
    tree = ast.parse(code)
    inside = {"chairlift.ipc.common", "chairlift.ipc.codec"}
    assert set(imports_of(ast.walk(tree))) == {"a.b", "c", "e"} | inside
    assert set(imports_of(nodes_outside_functions(tree))) == {"a.b", "c", "e"}


@pytest.mark.parametrize("package", ALLOWED)
def test_package_imports_only_what_it_may(package: str) -> None:
    allowed = frozenset(ALLOWED[package])
    wrong = [
        f"{module} imports {name}"
        for module, file in modules_of(package)
        for name in imports_of(ast.walk(ast.parse(file.read_text())))
        if name != "chairlift" and not is_within(name, allowed)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_package_imports_nothing_that_it_must_not(package: str) -> None:
    forbidden = frozenset(FORBIDDEN[package])
    wrong = [
        f"{module} imports {name}"
        for module, file in modules_of(package)
        for name in imports_of(ast.walk(ast.parse(file.read_text())))
        if is_within(name, forbidden)
    ]
    assert not wrong, "\n".join(wrong)


KERNEL_BENCHMARKS = frozenset({"deploy.bench.gpu", "deploy.bench.kernel_cases", "deploy.bench.kernels"})
"""The part of `deploy` that drives the worker's kernels; the rest imports it only inside functions."""


def test_deploy_reaches_only_for_the_scheduler_s_core_and_simulator_and_for_the_worker_in_kernel_benchmarks() -> None:
    """Kernel benchmarks need torch to be imported at all: everything else imports them inside a function."""
    core_and_sim = frozenset({"scheduler_svc.core", "scheduler_svc.sim"})
    lazy = KERNEL_BENCHMARKS | TORCH
    wrong = []
    for module, file in modules_of("deploy"):
        tree = ast.parse(file.read_text())
        for name in imports_of(ast.walk(tree)):
            if is_within(name, frozenset({"scheduler_svc"})) and not is_within(name, core_and_sim):
                wrong.append(f"{module} imports {name}")
        if not is_within(module, KERNEL_BENCHMARKS):
            anywhere = imports_of(ast.walk(tree))
            wrong.extend(f"{module} imports {name}" for name in anywhere if is_within(name, frozenset({"gpu_worker"})))
            at_once = imports_of(nodes_outside_functions(tree))
            wrong.extend(f"{module} imports {name} outside a function" for name in at_once if is_within(name, lazy))
    assert not wrong, "\n".join(wrong)


# Modules of the GPU's kernels need triton, which comes with the CUDA builds of torch only.
PROGRAM = """
import importlib, sys
after, modules = (names.split() for names in sys.argv[1:])
for name in after:
    importlib.import_module(name)
before = set(sys.modules)
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def loaded_by(modules: Iterable[str], after: Iterable[str] = ()) -> set[str]:
    """Names that a fresh interpreter loads for `modules`, beyond what `after` had loaded already."""
    command = [sys.executable, "-c", PROGRAM, " ".join(after), " ".join(modules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def importable_modules(package: str) -> list[str]:
    """Modules of `package` that may be imported for their contents: not `__main__`, nor what is loaded lazily."""
    names = [name for name, _ in modules_of(package) if not name.endswith("__main__")]
    return [name for name in names if not is_within(name, KERNEL_BENCHMARKS)]


def test_core_loads_nothing_but_itself_the_messages_and_pure_standard_library() -> None:
    """After the allowed parts of the standard library and msgspec are in, only our own modules are new."""
    modules = importable_modules("scheduler_svc.core")
    loaded = loaded_by(modules, after=sorted(PURE_STDLIB | {"msgspec", "msgspec.msgpack", "collections.abc"}))
    own = frozenset({"scheduler_svc.core", "chairlift.ipc"})
    assert {name for name in loaded if not is_within(name, own)} == {"scheduler_svc", "chairlift"}


def test_messages_between_processes_load_only_msgspec_and_the_standard_library() -> None:
    loaded = loaded_by(importable_modules("chairlift.ipc"), after=["msgspec", "msgspec.msgpack"])
    allowed = STDLIB | {"chairlift.ipc"}
    assert {name for name in loaded if not is_within(name, allowed)} == {"chairlift"}


def test_public_messages_load_only_protobuf_and_the_standard_library() -> None:
    loaded = loaded_by(["chairlift.v1.inference_pb2", "chairlift.v1.ops_pb2"])
    foreign = {
        name for name in loaded if not is_within(name, STDLIB | {"google.protobuf", "google._upb", "chairlift.v1"})
    }
    assert foreign <= {"chairlift", "google"}


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("chairlift.runtime", TORCH | GRPC | {"chairlift.v1", "tokenizers"}),
        ("chairlift.client", TORCH | {"deploy", "gateway", "gpu_worker", "scheduler_svc", "tokenizers", "zmq"}),
        ("gateway", TORCH | {"deploy", "gpu_worker", "scheduler_svc"}),
        ("scheduler_svc", TORCH | GRPC | {"chairlift.v1", "deploy", "gateway", "gpu_worker", "numpy", "tokenizers"}),
        ("gpu_worker", GRPC | {"chairlift.v1", "deploy", "gateway", "scheduler_svc", "tokenizers", "transformers"}),
        ("deploy", TORCH | {"gateway", "gpu_worker", "tokenizers"}),
    ],
)
def test_importing_a_whole_package_loads_nothing_of_the_others(package: str, absent: frozenset[str]) -> None:
    loaded = loaded_by(importable_modules(package))
    assert not sorted(name for name in loaded if is_within(name, frozenset(absent)))
