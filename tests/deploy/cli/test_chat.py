"""`chairlift chat`: turns, history, cancelling an answer without losing the conversation."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

Start = Callable[..., "subprocess.Popen[str]"]


def said(request: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content[0].text) for message in request.messages.messages]


def test_a_conversation_remembers(echo: Any, start_command: Start) -> None:
    process = start_command("chat", "--target", echo.target, "--system", "be brief", "--temperature", "0.5")
    out, err = process.communicate("hello\n\nrefuse\nagain\n/clear\nnew\n/exit\nnever\n")
    assert process.returncode == 0
    assert out == "hello \nagain \nforgotten\nnew \n"
    assert err == "CONTEXT_LENGTH_EXCEEDED: too long\n"
    system = ("system", "be brief")
    first, refused, second, third = (said(request) for request in echo.requests)
    assert first == [system, ("user", "hello")]
    assert refused[-1] == ("user", "refuse")
    assert second == [system, ("user", "hello"), ("assistant", "hello "), ("user", "again")]
    assert third == [system, ("user", "new")]
    assert echo.requests[0].sampling.temperature == 0.5


def test_json_lines_for_programs(echo: Any, start_command: Start) -> None:
    process = start_command("chat", "--json", "--target", echo.target)
    out, err = process.communicate('"one two"\n{"content": "refuse"}\n{"command": "clear"}\n{"content": "x"}\n')
    assert (process.returncode, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == ["delta", "delta", "end", "error", "delta", "end"]
    assert events[2]["text"] == "one two "
    assert events[2]["finish_reason"] == "length"
    assert events[2]["usage"]["output_tokens"] == 2
    assert events[3]["reason"] == "CONTEXT_LENGTH_EXCEEDED"
    assert said(echo.requests[-1]) == [("user", "x")]


def test_a_bad_json_line_is_a_usage_error(echo: Any, start_command: Start) -> None:
    process = start_command("chat", "--json", "--target", echo.target)
    _, err = process.communicate('{"text": "x"}\n')
    assert process.returncode == 2
    assert err == 'chairlift chat: line 1: expected "text" or {"content": "text"}\n'


def test_ctrl_c_cancels_the_answer_and_not_the_conversation(echo: Any, start_command: Start) -> None:
    process = start_command("chat", "--json", "--target", echo.target)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write('"endless"\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["event"] == "delta"
    process.send_signal(signal.SIGINT)
    event: dict[str, Any] = {"event": "delta"}
    while event["event"] == "delta":
        event = json.loads(process.stdout.readline())
    assert event["event"] == "cancelled"
    assert event["text"].startswith("endless ")
    assert echo.gone.wait(60), "the server still computes"
    out, err = process.communicate('"next"\n')
    assert (process.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["text"] == "next "
    assert said(echo.requests[-1])[1] == ("assistant", event["text"])
