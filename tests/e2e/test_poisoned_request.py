"""A request that kills the worker each time it is computed, through the whole stack: it ends alone with an error."""

from collections.abc import Callable
from typing import Any

import pytest

from chairlift.client import ChairliftError, Client

DEADLY_TOKEN = 4242


def test_a_request_that_kills_the_worker_ends_alone(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers die of it; that does not count towards giving up, and its neighbour's stream is as ever."""
    monkeypatch.setenv("CHAIRLIFT_FAULT_TOKEN", str(DEADLY_TOKEN))
    monkeypatch.setenv("CHAIRLIFT_FAULT_KIND", "die")
    stack = serve("model.max_model_len=512", "worker.kv_cache_bytes=50000000", "supervisor.max_restarts=3").wait_ready()
    options: Any = {"temperature": 0.7, "seed": 5, "token_ids": True, "ignore_eos": True}
    with Client(stack.listen, timeout=200) as client:
        undisturbed = client.generate("A chairlift is", max_tokens=80, **options)
        neighbour = client.stream("A chairlift is", max_tokens=80, **options)
        next(iter(neighbour))
        with pytest.raises(ChairliftError, match="STEP_FAILED") as caught:
            client.generate([100, 200, DEADLY_TOKEN], max_tokens=8)
        assert "died each time" in str(caught.value)
        assert neighbour.wait().choices[0].token_ids == undisturbed.choices[0].token_ids
    log = stack.log()
    assert log.count("worker: killed by SIGKILL; restart in") == 3
    assert stack.stop() == 0
