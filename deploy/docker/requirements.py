"""Prints what pyproject.toml asks for with some extras, a requirement a line. Part of the Dockerfile.

    requirements.py pyproject.toml gateway otlp

Installing these before the wheel keeps them in a layer of their own, which a change of the code leaves as it is.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Requirements of the project and of those extras. Raises KeyError for an extra that it has not."""
    project = tomllib.loads(pyproject.read_text())["project"]
    return [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
