"""The committed stubs are what the pinned generators make of the .proto files, and the bounds on their run time fit."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
V1 = ROOT / "proto" / "chairlift" / "v1"
PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    subprocess.run([sys.executable, ROOT / "proto" / "stubs.py", folder], check=True)
    return folder / "chairlift" / "v1"


def stub_names(folder: Path) -> set[str]:
    return {path.name for pattern in PATTERNS for path in folder.glob(pattern)}


def test_every_proto_file_has_its_stubs_and_no_stub_is_left_over(generated: Path) -> None:
    expected = {f"{path.stem}{end[1:]}" for path in V1.glob("*.proto") for end in PATTERNS}
    assert stub_names(generated) == expected
    assert stub_names(V1) == expected


def test_committed_stubs_equal_generated_ones_byte_for_byte(generated: Path) -> None:
    stale = [
        name for name in sorted(stub_names(generated)) if (V1 / name).read_bytes() != (generated / name).read_bytes()
    ]
    assert not stale, f"run `make stubs` and commit: {stale}"


def lower_bound(package: str) -> tuple[int, ...]:
    """The lower bound of a dependency in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    bounds = [re.fullmatch(rf"{package}>=([0-9.]+),.*", one) for one in wanted]
    found = [match.group(1) for match in bounds if match]
    assert len(found) == 1, f"{package} needs one lower bound in pyproject.toml, found {found}"
    return tuple(int(part) for part in found[0].split("."))


def test_bound_on_protobuf_is_the_version_that_stubs_demand() -> None:
    """Generated code refuses an older run time than its generator's at import."""
    demanded = {
        tuple(int(part) for part in match.group(1).split("."))
        for path in V1.glob("*_pb2.py")
        if (match := re.search(r"# Protobuf Python Version: ([0-9.]+)", path.read_text()))
    }
    assert demanded == {lower_bound("protobuf")}


@pytest.mark.parametrize("package", ["grpcio", "grpcio-status", "grpcio-health-checking", "grpcio-reflection"])
def test_bounds_on_grpc_are_the_version_that_stubs_demand(package: str) -> None:
    demanded = {
        tuple(int(part) for part in match.group(1).split("."))
        for path in V1.glob("*_pb2_grpc.py")
        if (match := re.search(r"GRPC_GENERATED_VERSION = '([0-9.]+)'", path.read_text()))
    }
    assert demanded == {lower_bound(package)}
