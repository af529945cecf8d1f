"""How much is tried: a run for CI repeats itself, `make fuzz` tries ten times as much, and other things every time."""

import os
import secrets

import msgspec
import pytest


class Scale(msgspec.Struct, frozen=True):
    """Numbers of inputs, and where chance begins."""

    structured: int
    mutated: int
    seed: int


@pytest.fixture(scope="session")
def scale() -> Scale:
    if os.environ.get("FUZZ") == "long":
        return Scale(100_000, 100_000, secrets.randbits(32))
    return Scale(10_000, 50_000, 1)
