"""What a process tells of itself."""

import time
from pathlib import Path

import pytest

import chairlift
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR
from chairlift.runtime.build import COMMIT_ENV, find_commit, process_facts

COMMIT = "c0ffee" * 6 + "beef"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that is ours, with the package in it."""
    monkeypatch.delenv(COMMIT_ENV, raising=False)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "hatch_build.py").write_text("")
    (tmp_path / "proto" / "chairlift").mkdir(parents=True)
    return tmp_path


def test_the_commit_is_read_from_the_repository(checkout: Path) -> None:
    package = checkout / "proto" / "chairlift"
    assert find_commit(package) == ""
    (checkout / ".git" / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert find_commit(package) == COMMIT
    (checkout / ".git" / "refs" / "heads" / "main").write_text("deadbeef\n")
    assert find_commit(package) == "deadbeef"
    (checkout / ".git" / "HEAD").write_text(COMMIT)
    assert find_commit(package) == COMMIT


def test_another_projects_repository_is_not_ours(checkout: Path) -> None:
    """A package installed into a folder of somebody's own repository must not show their commit."""
    (checkout / ".git" / "HEAD").write_text(COMMIT)
    (checkout / "hatch_build.py").unlink()
    assert find_commit(checkout / "proto" / "chairlift") == ""


def test_an_image_tells_its_commit_by_the_environment(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_ENV, COMMIT)
    assert find_commit(checkout / "proto" / "chairlift") == COMMIT


def test_a_process_knows_its_age_and_version() -> None:
    facts = process_facts(7, time.monotonic_ns() - 10**9)
    spoken = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
    assert (facts.version, facts.ipc_version, facts.epoch) == (chairlift.__version__, spoken, 7)
    assert facts.uptime_ns >= 10**9
