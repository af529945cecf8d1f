"""The sample file and the settings say the same."""

import tomllib
from pathlib import Path

import msgspec
import pytest

import deploy
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings
from deploy.settings_sample import render_sample

SAMPLE = Path(deploy.__file__).parent / "chairlift.sample.toml"


def test_committed_sample_is_what_the_settings_give() -> None:
    assert SAMPLE.read_text() == render_sample(), "run: chairlift config sample > deploy/chairlift.sample.toml"


def test_sample_gives_the_defaults_again() -> None:
    assert load_settings(SAMPLE, environ={}) == Settings()


@pytest.mark.parametrize("section", Settings.__struct_fields__)
def test_every_key_of_a_section_is_in_the_sample_with_a_description(section: str) -> None:
    """Keys without a default are there as comments, so that nobody has to read code to find them."""
    text = SAMPLE.read_text()
    body = text.split(f"\n[{section}]\n")[1].split("\n[")[0]
    lines = body.splitlines()
    values = tomllib.loads(text)[section]
    for field in msgspec.structs.fields(type(getattr(Settings(), section))):
        row = next(i for i, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{field.name} = "))
        assert lines[row - 1].startswith("# "), f"{section}.{field.name} has no description"
        assert (field.name in values) == (field.default is not None)
