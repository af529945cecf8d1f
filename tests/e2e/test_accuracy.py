"""What fewer bits cost: perplexity and logits of each form of the weights against float32, on a text of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chairlift.ipc.common import SamplingParams
from chairlift.ipc.device import BoardedRow, Plan, StepDone
from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.model_source import BUILT_IN, resolve_model
from gateway.text.model_text import load_model_text

TEXT = """\
The lift had been out of order since the storm, and nobody in the village could say when the engineers would come. \
Every morning Anna walked down to the station at the foot of the mountain, unlocked the small office, and wrote the \
weather on the board as if it were an ordinary day. Wind from the west, cloud in the valley, snow above two thousand \
metres. Then she made tea and waited for the telephone to ring.

It rang, most days, before nine. Sometimes it was a hotel that wanted to know whether guests could go up at the \
weekend, and sometimes it was the farmer on the other side of the ridge, who had left a tractor at the top in October \
and had been worrying about it ever since. She told each of them the same thing: the cable was sound, the motor was \
not, and the part that was needed had to be made in a workshop four hundred kilometres away.

A chairlift is a simple machine. A steel rope runs in a loop between two large wheels, one of which is turned by a \
motor, and chairs hang from the rope at equal distances. The rope never stops while the lift is open. People step in \
front of a chair at the bottom, sit down as it reaches them, and leave it at the top without the rope having slowed. \
Because of this, a lift with many short rides carries more people in an hour than a cabin that has to wait until it is \
full, travel, empty itself and come back. When a chair goes up empty, nothing is lost but its place; when every chair \
is taken, the next person waits a few seconds and not a quarter of an hour.

In the third week a man arrived with the part in the back of his car. He was older than she had expected, and he \
carried his tools in a wooden box that must have belonged to his father. He asked her to hold the lamp. For most of \
the afternoon they worked without talking, he under the housing of the motor and she beside him, handing him one \
spanner after another, until at last he crawled out, wiped his hands and nodded at the switch.

The wheel turned once, slowly, and then the whole line of chairs began to move, shaking the snow from their seats as \
they passed the first pylon. Anna watched them climb into the cloud, one behind the other, and come down again on the \
far side of the rope. She went inside and cleaned the board. Under the weather, in large letters, she wrote that the \
lift was open.
"""
LARGEST_RISE = {"bfloat16": 0.005, "int8": 0.025, "gguf": 0.01}
"""Of the perplexity, as a share of that of float32. Measured: see the README."""


@pytest.fixture(scope="module")
def text_ids() -> list[int]:
    return load_model_text(resolve_model(BUILT_IN)).tokenizer.encode_prompt(TEXT)


def _logprobs(engines: Any, ids: list[int]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Of each token of a prompt but the first, by the worker itself: chunks of 256, prompt log-probabilities."""
    runner = engines()._runner
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)
    blocks = pack_u32(list(range(-(-len(ids) // 16))))
    row = BoardedRow(0, pack_u32(ids), len(ids), 0, blocks, 0, sampling)
    found = []
    for step, start in enumerate(range(0, len(ids), 256), 1):
        chunk = pack_u32([0, min(256, len(ids) - start)])
        result = runner.execute(Plan(77, step, step == 1, boarded=(row,) if step == 1 else (), chunks=chunk))
        assert isinstance(result, StepDone), result
        found += [np.frombuffer(part.logprobs, "<f4") for part in result.prompt_logprobs]
    logprobs = np.concatenate(found).astype(np.float64)
    assert len(logprobs) == len(ids) - 1
    return logprobs


@pytest.fixture(scope="module")
def exact(smollm2: Any, text_ids: list[int]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return _logprobs(smollm2, text_ids)


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("bfloat16", "none"), ("bfloat16", "int8"), ("bfloat16", "gguf")], ids=LARGEST_RISE
)
def test_perplexity_stays(
    dtype: str,
    quantization: str,
    engines_of: Callable[..., Any],
    text_ids: list[int],
    exact: "np.ndarray[Any, np.dtype[np.float64]]",
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = _logprobs(engines_of(dtype, quantization), text_ids)
    perplexity, wanted = np.exp(-found.mean()), np.exp(-exact.mean())
    error = np.abs(found - exact)
    name = dtype if quantization == "none" else quantization
    with capsys.disabled():
        print(
            f"\n{name}: perplexity {perplexity:.3f}, float32 {wanted:.3f}, over {len(found)} tokens; "
            f"log-probability off by {error.mean():.4f} on average, {error.max():.3f} at most"
        )
    assert 5 < wanted < 40, "a language model reads English"
    assert perplexity < wanted * (1 + LARGEST_RISE[name])
    assert error.mean() < 0.2
