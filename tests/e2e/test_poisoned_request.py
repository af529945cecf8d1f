"""A request that kills the worker each time it is computed, through the whole stack: it ends alone with an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.client import ChairliftError, Client

DEADLY_TOKEN = 242
NUM_TOKENS = 900
"""Of the neighbour: with a model that takes a millisecond a step, enough to be running when the first worker dies."""


def test_a_request_that_kills_the_worker_ends_alone(
    serve: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers die of it; that does not count towards giving up, and its neighbour's stream is as ever."""
    monkeypatch.setenv("CHAIRLIFT_FAULT_TOKEN", str(DEADLY_TOKEN))
    monkeypatch.setenv("CHAIRLIFT_FAULT_KIND", "die")
    # The worker warms up with the ids below the largest step's number of tokens.
    small = (f"model.source={tiny_model}", "worker.kv_cache_bytes=4000000", "scheduler.max_num_batched_tokens=128")
    stack = serve(*small, "supervisor.max_restarts=3").wait_ready()
    options: Any = {"max_tokens": NUM_TOKENS, "temperature": 0.7, "seed": 5, "token_ids": True, "ignore_eos": True}
    options["logit_bias"] = {DEADLY_TOKEN: -100.0}
    with Client(stack.listen, timeout=200) as client:
        undisturbed = client.generate("A chairlift is", **options)
        neighbour = client.stream("A chairlift is", **options)
        next(iter(neighbour))
        with pytest.raises(ChairliftError, match="STEP_FAILED") as caught:
            client.generate([100, 200, DEADLY_TOKEN], max_tokens=8)
        assert "died each time" in str(caught.value)
        assert neighbour.wait().choices[0].token_ids == undisturbed.choices[0].token_ids
    log = stack.log()
    assert log.count("worker: killed by SIGKILL; restart in") == 3
    assert stack.stop() == 0
