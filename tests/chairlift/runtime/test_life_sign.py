"""The word in which a process shows its supervisor until when it lives."""

import os
import subprocess
import sys
import time

import pytest

from chairlift.runtime.life_sign import LIFE_SIGN_ENV, LifeSign, open_life_sign_memory
from chairlift.runtime.probes import ProcessState

_CHILD = """
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.probes import ProcessState
state = ProcessState(stale_after_s=1000, sign=LifeSign.inherited())
state.turned(rest_s=50_000)
"""


def test_a_process_without_a_supervisor_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIFE_SIGN_ENV, raising=False)
    assert LifeSign.inherited() is None
    assert ProcessState().live() == (True, "")


def test_a_child_shows_what_its_liveness_says() -> None:
    """The supervisor only looks: a question to each child every few seconds was half of what an idle stack did."""
    descriptor = open_life_sign_memory()
    sign = LifeSign(descriptor)
    assert sign.until == 0, "it has not begun"
    environ = os.environ | {LIFE_SIGN_ENV: str(descriptor)}
    before = time.monotonic()
    subprocess.run([sys.executable, "-c", _CHILD], env=environ, pass_fds=(descriptor,), check=True)
    assert before + 51_000 < sign.until < time.monotonic() + 51_000
    os.close(descriptor)
    assert sign.until > before, "the memory outlives its descriptor"


def test_the_sign_runs_out_when_liveness_does() -> None:
    clock = [100.0]
    descriptor = open_life_sign_memory()
    sign = LifeSign(descriptor)
    state = ProcessState(stale_after_s=5, clock=lambda: clock[0], sign=LifeSign(descriptor))
    os.close(descriptor)
    for rest_s in (0.0, 10.0, 0.0):
        state.turned(rest_s)
        for late_s, is_live in ((4.5, True), (5.0, False)):
            clock[0] += rest_s + late_s
            assert (state.live()[0], sign.until > clock[0]) == (is_live, is_live)
            clock[0] -= rest_s + late_s
