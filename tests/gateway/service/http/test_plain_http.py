"""The HTTP port byte by byte: SSE, what is refused, clients that go away, probes, sizes."""

import asyncio
import re
from typing import Any

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


async def test_events_end_with_done(plain_rig: Any, make_http: Any, spell: Any) -> None:
    asking = asyncio.create_task(make_http(plain_rig).ask("POST", COMPLETIONS, {"prompt": "go", "stream": True}))
    submit = await plain_rig.scheduler.accept()
    plain_rig.scheduler.tokens(submit.handle, 0, *spell("a"))
    plain_rig.scheduler.finish(submit.handle, 1, FinishReason.EOS)
    answer = await asking
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == submit.request_id
    events = answer.body.decode().split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]


async def test_client_that_goes_away_cancels(plain_rig: Any, make_http: Any, spell: Any) -> None:
    for is_stream in (True, False):
        reader, writer = await make_http(plain_rig).open("POST", COMPLETIONS, {"prompt": "go", "stream": is_stream})
        submit = await plain_rig.scheduler.accept()
        if is_stream:
            plain_rig.scheduler.tokens(submit.handle, 0, *spell("a"))
            await reader.readuntil(b"data: ")
        writer.transport.abort()
        assert (await plain_rig.scheduler.next(front.Detach)).handle == submit.handle


REFUSED: list[tuple[str, Any]] = [
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}),
    ("functions", [{}]),
    ("audio", {}),
    ("store", True),
    ("echo", True),
    ("best_of", 2),
    ("suffix", "x"),
    ("nonsense", None),
    ("temperature", "hot"),
    ("n", -1),
    ("n", True),
    ("n", 0),
    ("stop", [1]),
    ("seed", 1 << 64),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"999": 1}),
    ("logit_bias", {"5": 1, "05": 2}),
    ("stream_options", {"include_usage": True}),
    ("max_tokens", 1 << 40),
    ("min_p", 2),
    ("top_k", 1 << 32),
]


async def test_field_is_refused_by_name(plain_rig: Any, make_http: Any) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "go"})]
    for path, body in bodies:
        for field, value in REFUSED:
            answer = await make_http(plain_rig).ask("POST", path, body | {field: value})
            assert answer.status == 400, (path, field)
            assert answer.error["type"] == "invalid_request_error"
            assert re.split(r"[.\[]", answer.error["param"])[0] == field
    assert not plain_rig.scheduler.heard(front.Submit)


MESSAGES_REFUSED: list[tuple[Any, str]] = [
    ([], "messages"),
    ([{"role": "user"}], "messages[0]"),
    ([{"role": "", "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].image_url"),
    ([{"role": "user", "content": [{"type": "input_audio", "text": "x"}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[0].tool_call_id"),
    ([{"role": "user", "content": "x"}, {"role": "user", "content": "x", "nonsense": None}], "messages[1].nonsense"),
]


async def test_message_is_refused_by_path(plain_rig: Any, make_http: Any) -> None:
    for messages, param in MESSAGES_REFUSED:
        answer = await make_http(plain_rig).ask("POST", CHAT, {"messages": messages})
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_prompt_is_refused(plain_rig: Any, make_http: Any) -> None:
    prompts: tuple[Any, ...] = ([], "", ["a", "b"], [[1], [2]], [1.5], [260], [-1], [True], {}, 7, [["a"]], [None])
    for prompt in prompts:
        answer = await make_http(plain_rig).ask("POST", COMPLETIONS, {"prompt": prompt})
        assert answer.status == 400, prompt
        assert answer.error["param"].startswith("prompt")


async def test_harmless_values_ask_for_nothing(plain_rig: Any, make_http: Any) -> None:
    body: dict[str, Any] = {
        "prompt": "go",
        "tools": [],
        "response_format": {"type": "text"},
        "store": None,
        "best_of": 1,
    }
    asking = asyncio.create_task(make_http(plain_rig).ask("POST", COMPLETIONS, body | {"temperature": None}))
    submit = await plain_rig.scheduler.accept()
    plain_rig.scheduler.finish(submit.handle, 0)
    assert (await asking).status == 200


async def test_body_that_is_no_request(plain_rig: Any, make_http: Any) -> None:
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    cut = (b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b'{"prompt": NaN}')
    bodies: tuple[bytes, ...] = (*cut, deep, b"[" * 100_000)
    for body in bodies:
        answer = await make_http(plain_rig).ask("POST", COMPLETIONS, body)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), body[:20]


async def test_body_in_another_encoding_is_told_so(plain_rig: Any, make_http: Any) -> None:
    http = make_http(plain_rig)
    for path, body in (
        (COMPLETIONS, b'{"prompt": "\xff"}'),
        (CHAT, b'{"messages": [{"role": "\xff"}]}'),
        (CHAT, b"\xff"),
    ):
        answer = await http.ask("POST", path, body)
        assert (answer.status, answer.error["message"]) == (400, "the body is not UTF-8")
    answer = await http.ask("POST", COMPLETIONS, b"\x1f\x8b", content_encoding="gzip")
    assert answer.status == 400
    assert answer.error["message"].startswith("content-encoding")


async def test_error_quotes_no_text(plain_rig: Any, make_http: Any) -> None:
    canary = "canary-7f3a"
    bodies: list[Any] = [
        {"prompt": [canary, canary]},
        {"prompt": canary, "stop": canary * 500},
        {"messages": [{"role": canary + "\n", "content": canary}]},
        {"prompt": canary, "temperature": canary},
        {"prompt": canary, "model": canary},
        b'{"prompt": "canary-7f3a',
    ]
    for body in bodies:
        path = CHAT if isinstance(body, dict) and "messages" in body else COMPLETIONS
        answer = await make_http(plain_rig).ask("POST", path, body)
        assert answer.status in (400, 404)
        assert canary not in answer.body.decode()


async def test_sizes_and_kinds(start_rig: Any, make_http: Any) -> None:
    async with start_rig(http_listen="127.0.0.1:0", max_request_bytes=1000, http_read_timeout_s=0.2) as rig:
        http = make_http(rig)
        assert (await http.ask("POST", COMPLETIONS, {"prompt": "x" * 2000})).status == 413
        reader, writer = await http.open(
            "POST", COMPLETIONS, b"", content_length="", transfer_encoding="chunked", connection=""
        )
        writer.write(b"7d0\r\n" + b" " * 2000 + b"\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()
        reader, writer = await http.open("POST", COMPLETIONS, b"", content_length="500")
        assert b" 504 " in await reader.readline()
        writer.close()
        answer = await http.ask("POST", COMPLETIONS, {"prompt": "x"}, content_type="text/plain")
        assert (answer.status, answer.error["code"]) == (400, "malformed_request")


async def test_paths_that_are_not_there(plain_rig: Any, make_http: Any) -> None:
    http = make_http(plain_rig)
    assert (await http.ask("GET", "/v1/nothing")).error["code"] == "unknown_path"
    assert (await http.ask("GET", CHAT)).status == 405
    assert (await http.ask("POST", "/v1/models", {})).status == 405
    assert (await http.ask("GET", "/")).status == 404


async def test_probes_and_metrics(plain_rig: Any, make_http: Any) -> None:
    http = make_http(plain_rig)
    for path in ("/livez", "/healthz"):
        assert (await http.ask("GET", path)).body == b"ok\n"
    assert (await http.ask("GET", "/readyz")).status == 200
    await http.ask("POST", COMPLETIONS, {"prompt": "x", "temperature": 3})
    metrics = (await http.ask("GET", "/metrics")).body.decode()
    assert 'INVALID_ARGUMENT"} 1' in metrics
    plain_rig.scheduler.draining = True
    plain_rig.scheduler.announce()
    await plain_rig.until(lambda: not plain_rig.service.state.ready()[0])
    assert (await http.ask("GET", "/readyz")).status == 503
    answer = await http.ask("POST", COMPLETIONS, {"prompt": "x"})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_slow_reader_is_cut_and_others_go_on(start_rig: Any, make_http: Any, spell: Any) -> None:
    async with start_rig(http_listen="127.0.0.1:0", slow_client_timeout_s=0.3, stream_queue_tokens=8) as rig:
        http = make_http(rig)
        body = {"prompt": "go", "stream": True}
        frozen_reader, frozen_writer = await http.open("POST", COMPLETIONS, body)
        frozen_writer.transport.pause_reading()
        frozen = await rig.scheduler.accept()
        reader, writer = await http.open("POST", COMPLETIONS, body)
        live = await rig.scheduler.accept()
        sent = 0
        while not rig.scheduler.heard(front.Detach):
            rig.scheduler.tokens(frozen.handle, sent * 100, *spell("x" * 100))
            rig.scheduler.tokens(live.handle, sent, *spell("y"))
            await reader.readuntil(b'"text":"y"')
            sent += 1
        assert (await rig.scheduler.next(front.Detach)).handle == frozen.handle
        rig.scheduler.finish(live.handle, sent)
        async with asyncio.timeout(20):
            assert b"[DONE]" in await reader.read()
        writer.close()
        frozen_writer.close()
        assert frozen_reader is not None
