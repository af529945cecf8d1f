"""Settings travel between machines and releases more easily than what they were tuned for."""

from pathlib import Path

import msgspec
import pytest

import chairlift
from chairlift.runtime.model_source import fingerprint_model, resolve_model
from chairlift.runtime.settings import ModelSettings
from deploy.bench.observe.machine import describe_machine
from deploy.bench.tune.evidence import Evidence, render_evidence
from deploy.cli.tuning_warning import warn_of_tuning

MODEL = ModelSettings()


@pytest.fixture
def evidence() -> Evidence:
    """Of a search on this very installation."""
    return Evidence(
        version=chairlift.__version__,
        commit="c",
        model_fingerprint=fingerprint_model(resolve_model(MODEL.source, MODEL.revision)),
        config_revision=1,
        machine=describe_machine(),
    )


def write(path: Path, evidence: Evidence) -> Path:
    path.write_text(f"{render_evidence(evidence)}\n[scheduler]\nmax_num_seqs = 8\n")
    return path


def test_what_was_tuned_here_is_served_in_silence(tmp_path: Path, evidence: Evidence) -> None:
    assert warn_of_tuning(write(tmp_path / "tuned.toml", evidence), MODEL) is None


def test_another_version_and_model_are_told(
    tmp_path: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named on the command line or by the environment, as the settings are."""
    other = msgspec.structs.replace(evidence, version="0.0.0", model_fingerprint="simulated")
    path = write(tmp_path / "tuned.toml", other)
    told = warn_of_tuning(path, MODEL)
    assert told is not None
    assert f"version 0.0.0, here {chairlift.__version__}; model simulated, here {evidence.model_fingerprint}" in told
    monkeypatch.setenv("CHAIRLIFT_CONFIG", str(path))
    assert warn_of_tuning(None, MODEL) == told


def test_a_file_that_people_wrote_is_nobodys_business(tmp_path: Path) -> None:
    """Nor is a model that is not there: another check tells that."""
    path = tmp_path / "own.toml"
    path.write_text("[scheduler]\nmax_num_seqs = 8\n")
    nowhere = ModelSettings(source="./nothing-here")
    assert warn_of_tuning(path, nowhere) is None
    assert warn_of_tuning(None, nowhere) is None
