"""`chairlift serve` with two gateways and HTTP: the same seed gives the same tokens by whichever way it is asked."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from chairlift.client import Client

PROMPT = "The chairlift stopped because"
SEEDED: Any = {"max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 11}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def _ask(url: str, *, is_stream: bool) -> str:
    """Over a connection of its own, so that either gateway may get it."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if not is_stream:
            whole = client.completions.create(model="", prompt=PROMPT, **SEEDED)
            return str(whole.choices[0].text)
        stream = client.completions.create(model="", prompt=PROMPT, stream=True, **SEEDED)
        return "".join(chunk.choices[0].text for chunk in stream)


def _ask_grpc(listen: str) -> str:
    with Client(listen) as client:
        return client.generate(PROMPT, **SEEDED).text


def test_same_seed_same_text_by_any_way_and_gateway(stack: Any) -> None:
    http = f"http://{stack.http}/v1"
    with Client(stack.listen) as client:
        alone = client.generate(PROMPT, **SEEDED).text
        assert alone
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(_ask, http, is_stream=number % 2 == 0) for number in range(12)]
            asked += [pool.submit(_ask_grpc, stack.listen) for _ in range(4)]
            assert {future.result(120) for future in asked} == {alone}
        assert client.generate(PROMPT, **(SEEDED | {"seed": 12})).text != alone
