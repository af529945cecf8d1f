"""Makes the committed Python stubs from the .proto files: `python proto/stubs.py [FOLDER]`, or `make stubs`.

Writes `_pb2.py` and `_pb2_grpc.py` (protoc) and typed `.pyi` files for both (mypy-protobuf) under FOLDER, which is
`proto/` by default. The generators are pinned in pyproject.toml, so that everyone's stubs are the same bytes.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def proto_files() -> list[str]:
    """Every .proto file of the contract, relative to `proto/`."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("chairlift/**/*.proto"))


def generate(folder: Path) -> None:
    """Writes the stubs of every .proto file under `folder`. Raises CalledProcessError when protoc refuses one."""
    spec = importlib.util.find_spec("grpc_tools")
    if spec is None or spec.origin is None:
        raise SystemExit("proto/stubs.py: grpcio-tools is missing; `make setup` installs it")
    scripts = Path(sys.executable).parent
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            f"--proto_path={ROOT}",
            f"--proto_path={Path(spec.origin).parent / '_proto'}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
            f"--mypy_out=quiet:{folder}",
            f"--mypy_grpc_out=quiet:{folder}",
            *proto_files(),
        ],
        cwd=ROOT,
        check=True,
    )


if __name__ == "__main__":
    generate(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
