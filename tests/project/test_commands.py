"""The commands that newcomers, and the checks that every change must pass, rely on by name."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> str:
    # Run from within `make test`, make would hand its own flags down to the one started here.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(["make", *arguments], cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_alone_lists_every_command_with_what_it_does() -> None:
    listed = dict(re.findall(r"^make ([a-z-]+) +(.+)$", make(), flags=re.MULTILINE))
    assert {"run", "setup", "test", "check", "help", "stubs"} <= set(listed)
    assert make("help") == make()


@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("run", ["chairlift serve"]),
        ("test", ["pytest --numprocesses 2", "--cov"]),
        (
            "check",
            ["ruff check", "ruff format --check", "mypy", "lint-imports", "buf lint", "breaking.sh", "test_stubs"],
        ),
    ],
)
def test_each_target_runs_what_it_promises(target: str, commands: list[str]) -> None:
    planned = make("--dry-run", target)
    assert [command for command in commands if command not in planned] == []


def test_ci_runs_the_tests_and_then_the_checks() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    found = re.findall(r"^make ([\w-]+)$", script.read_text(), flags=re.MULTILINE)
    assert found == ["test", "fuzz-ci", "check", "chaos"]
