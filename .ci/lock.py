"""Pins the newest versions that pyproject.toml's bounds allow: `make lock` writes constraints.txt with it.

Reads pip's installation report from standard input. torch, Triton and the CUDA packages that some builds of torch bring
are left out: pyproject.toml pins what it names of them, and each build of torch pins the rest.
"""

import json
import re
import sys

HEAD = """\
# Made by `make lock`: the versions that `make setup` installs, so that a new release cannot turn main red.
# The bounds for users of the package are in pyproject.toml.
"""
LEFT_OUT = re.compile(r"chairlift|torch|triton|nvidia-.*|cuda-.*")


def main() -> None:
    """Prints constraints.txt."""
    names = {}
    for item in json.load(sys.stdin)["install"]:
        metadata = item["metadata"]
        name = re.sub(r"[-_.]+", "-", metadata["name"]).lower()
        if not LEFT_OUT.fullmatch(name):
            names[name] = metadata["version"]
    sys.stdout.write(HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(names.items())))


if __name__ == "__main__":
    main()
