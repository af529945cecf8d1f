"""The wheel of this tree, and environments that hold exactly what it asks for.

An environment is made of links to distributions that are installed here: the closure of the wheel's own metadata and
nothing else. So a dependency that is used and not declared fails, and no package index is needed.
"""

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


class Wheel:
    """A wheel built from the tree. `variables` go to the build's environment."""

    def __init__(self, folder: Path, **variables: str) -> None:
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        done = subprocess.run(build, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (self.path,) = folder.glob("*.whl")
        self.build_log = done.stderr

    def names(self) -> set[str]:
        """Every file in it."""
        with zipfile.ZipFile(self.path) as archive:
            return set(archive.namelist())

    def closure(self, extras: set[str]) -> dict[str, Distribution]:
        """Every distribution that an installer would bring for it with these extras."""
        needed: dict[str, Distribution] = {}
        waiting = list(_requirements(self._metadata(), extras))
        while waiting:
            requirement = waiting.pop()
            name = canonicalize_name(requirement.name)
            if name not in needed or requirement.extras:
                needed[name] = distribution(name)
                version = needed[name].version
                assert requirement.specifier.contains(version, prereleases=True), f"{name} {version}: {requirement}"
                waiting.extend(_requirements(needed[name], requirement.extras))
        return needed

    def _metadata(self) -> Distribution:
        name, version = self.path.name.split("-")[:2]
        return PathDistribution(zipfile.Path(self.path, f"{name}-{version}.dist-info/"))


def _requirements(found: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in found.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield requirement


@cache
def _owners() -> Mapping[str, list[str]]:
    """The distributions installed here, by top-level module or namespace."""
    return packages_distributions()


def _link(found: Distribution, site_packages: Path) -> None:
    """Makes a distribution's modules and metadata appear in another environment.

    A folder is linked as a whole unless it is a namespace that several distributions share.
    """
    for file in found.files or []:
        if ".." in file.parts:
            continue
        is_shared = len(set(_owners().get(file.parts[0], ()))) > 1
        part = Path(file) if is_shared else Path(file.parts[0])
        target = site_packages / part
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(found.locate_file(part))))


class Environment:
    """A virtual environment with the wheel, what its extras ask for, and `others` without their dependencies."""

    def __init__(self, folder: Path, wheel: Wheel, extras: set[str], others: tuple[str, ...] = ()) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        # Outside the source tree, with no variable that points back at it.
        self.variables = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "CHAIRLIFT"))
        }
        (site_packages,) = folder.glob("lib/python*/site-packages")
        for found in [*wheel.closure(extras).values(), *(distribution(other) for other in others)]:
            _link(found, site_packages)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.bin / "python")]
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel.path)], check=True)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs to the end."""
        return subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.bin,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, program: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts one of its programs; what it says goes to `log`."""
        with log.open("wb") as output:
            return subprocess.Popen(
                [str(self.bin / program), *arguments],
                cwd=self.bin,
                env=self.variables,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """Without the compiled kernels, which take a while and have tests of their own."""
    return Wheel(tmp_path_factory.mktemp("wheel"), HATCH_BUILD_NO_HOOKS="true")


@pytest.fixture(scope="session")
def build_wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Wheel]:
    """Builds another wheel, with variables in the build's environment."""
    return lambda **variables: Wheel(tmp_path_factory.mktemp("wheel"), **variables)


@pytest.fixture(scope="session")
def environment(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes the environment of some extras, once each."""

    @cache
    def make(*extras: str, others: tuple[str, ...] = ()) -> Environment:
        return Environment(tmp_path_factory.mktemp("env"), wheel, set(extras), others)

    return make
