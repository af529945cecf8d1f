"""`chairlift generate` against a server: one prompt, or a file of them."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from deploy.cli.progress_bar import ProgressBar

Start = Callable[..., "subprocess.Popen[str]"]


def test_text_is_streamed_to_standard_output(echo: Any, start_command: Start) -> None:
    process = start_command("generate", "one two", "--target", echo.target, "--temperature", "0", "--seed", "7")
    out, err = process.communicate()
    assert (out, err, process.returncode) == ("one two \n", "", 0)
    request = echo.requests[0]
    assert (request.sampling.temperature, request.sampling.seed, request.stopping.max_tokens) == (0.0, 7, 256)


def test_a_character_that_the_terminal_has_not_is_replaced(
    echo: Any, start_command: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONUTF8", "0")
    process = start_command("generate", "caf\N{LATIN SMALL LETTER E WITH ACUTE} one", "--target", echo.target)
    assert process.communicate() == ("caf? one \n", "")


def test_each_choice_is_shown(echo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "one", "--n", "2", "--target", echo.target]) == 0
    assert capsys.readouterr().out == "── choice 0\none \n── choice 1\none \n"


def test_json_holds_the_whole_completion(echo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "one", "--json", "--token-ids", "--target", echo.target]) == 0
    completion = json.loads(capsys.readouterr().out)
    assert completion["choices"][0]["text"] == "one "
    assert completion["choices"][0]["token_ids"] == [0]
    assert "logprobs" not in completion["choices"][0], "what was not asked for is left out"
    assert completion["usage"] == {"prompt_tokens": 1, "cached_tokens": 0, "output_tokens": 1}


def test_prompt_from_standard_input(
    echo: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert main(["generate", "-", "--chat", "--system", "be brief", "--target", echo.target]) == 0
    assert capsys.readouterr().out == "from a pipe \n"
    assert [message.role for message in echo.requests[0].messages.messages] == ["system", "user"]


def test_a_refused_request_is_one_line_and_2(echo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "refuse", "--target", echo.target]) == 2
    assert capsys.readouterr().err == "chairlift generate: CONTEXT_LENGTH_EXCEEDED: too long\n"


@pytest.mark.parametrize("what", [["x"], ["--file", "-"]])
def test_no_server_is_one_line_and_1(
    what: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('"a"\n"b"\n'))
    assert main(["generate", *what, "--target", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        "chairlift generate: no server answers at 127.0.0.1:1 (start one with: chairlift serve)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a PROMPT or --file"),
        (["x", "--file", "y"], "give either a PROMPT or --file"),
        (["x", "--target", "a:1", "--model", "m"], "give one"),
        (["--file", "/nonexistent/prompts.jsonl"], "/nonexistent/prompts.jsonl: No such file"),
        (["x", "--token-file", "/nonexistent/token"], "/nonexistent/token: No such file"),
        (["x", "--tls-ca", "/nonexistent/ca.pem"], "/nonexistent/ca.pem: No such file"),
        (["--file", "x", "--concurrency", "0"], "--concurrency must be at least 1"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_reader_that_has_enough_ends_the_stream(echo: Any, start_command: Start) -> None:
    """`chairlift generate … | head` must end without a traceback, and the server must stop computing."""
    process = start_command("generate", "endless", "--target", echo.target)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(8) == "endless "
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == ""
    assert echo.gone.wait(60)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [
        "a b",
        {"prompt": "c", "max_tokens": 9, "logit_bias": {"5": 1.5}},
        {"prompt": [1, 2]},
        {"messages": [{"role": "user", "content": "d"}], "n": 2},
    ]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    return file


def test_a_file_gives_a_line_a_prompt_in_order(
    echo: Any, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    prompts.write_text(prompts.read_text().replace('{"prompt": [1, 2]}', '"e f"'))
    assert main(["generate", "--file", str(prompts), "--output", str(results), "--target", echo.target]) == 0
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert [[choice["text"] for choice in line["choices"]] for line in lines] == [
        ["a b "],
        ["c "],
        ["e f "],
        ["d ", "d "],
    ]
    by_text = {request.text: request for request in echo.requests}
    assert by_text["c"].stopping.max_tokens == 9
    assert by_text["c"].sampling.logit_bias[5] == 1.5
    assert by_text["a b"].stopping.max_tokens == 256
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("chairlift generate: 4 prompts, 7 tokens in ")


def test_a_prompt_that_fails_takes_its_place_in_the_results(
    echo: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"a"\n"refuse"\n"b"\n')
    assert main(["generate", "--file", str(file), "--target", echo.target]) == 1
    captured = capsys.readouterr()
    first, second, third = (json.loads(line) for line in captured.out.splitlines())
    assert (first["choices"][0]["text"], third["choices"][0]["text"]) == ("a ", "b ")
    assert second["error"]["code"] == "INVALID_ARGUMENT"
    assert second["error"]["reason"] == "CONTEXT_LENGTH_EXCEEDED"
    assert "3 prompts, 1 failed" in captured.err
    assert "\x1b" not in captured.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "not JSON"),
        ("7", "expected a JSON string"),
        ('{"prompt": "a", "messages": []}', "expected a JSON string"),
        ('{"prompt": "a", "temprature": 1}', "unknown option 'temprature'"),
        ('{"prompt": "a", "max_tokens": "9"}', "max_tokens"),
        ('{"prompt": "a", "max_tokens": -1}', "out of range"),
        ('{"prompt": {"a": 1}}', "a prompt is text"),
    ],
)
def test_a_bad_line_is_named_before_anything_is_sent(
    echo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"good"\n{line}\n')
    assert main(["generate", "--file", str(file), "--target", echo.target]) == 2
    error = capsys.readouterr().err
    assert f"{file}:2: " in error
    assert message in error
    assert echo.requests == []


def test_the_bar_shows_what_is_done_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    with ProgressBar(2, screen) as bar:
        bar.advance(10, has_failed=False)
        bar.advance(0, has_failed=True)
    assert " 2/2 · " in screen.getvalue()
    assert "1 failed" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K"), "the bar is gone when the results are there"
    plain = io.StringIO()
    with ProgressBar(1, plain) as bar:
        bar.advance(1, has_failed=False)
    assert plain.getvalue() == ""
