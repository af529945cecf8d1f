"""Commands are found, described, and fail with one line and a telling exit code."""

import argparse
import importlib
import io
import socket
import sys
from pathlib import Path

import pytest

import chairlift
from chairlift.runtime.settings_loader import load_settings
from deploy.cli import commands, main
from deploy.cli.subcommands import add_subcommands, build_parser, command_names, describe, load_command
from deploy.cli.terminal import Style, is_coloured


@pytest.mark.parametrize("name", command_names(commands))
def test_every_command_describes_itself_and_its_arguments(name: str) -> None:
    command = load_command(commands, name)
    assert command is not None
    assert f"`chairlift {name}`" in (command.__doc__ or "")
    assert describe(command)
    assert f"usage: chairlift {name}" in build_parser(command, f"chairlift {name}").format_help()


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in command_names(commands))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"chairlift {chairlift.__version__}\n"


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sevre"])
    assert ended.value.code == 2
    assert "sevre" in capsys.readouterr().err


def test_a_module_becomes_a_command_by_being_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more_commands").mkdir()
    (tmp_path / "more_commands" / "__init__.py").write_text("")
    (tmp_path / "more_commands" / "new_one.py").write_text(
        '"""`chairlift new-one`: counts.\n\nMore."""\n'
        "def add_arguments(parser): parser.add_argument('number', type=int)\n"
        "def run(arguments): return arguments.number\n"
    )
    (tmp_path / "more_commands" / "shared.py").write_text('"""Not a command."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    more_commands = importlib.import_module("more_commands")
    assert command_names(more_commands) == ["new-one", "shared"]
    assert load_command(more_commands, "shared") is None
    parser = argparse.ArgumentParser()
    add_subcommands(parser, more_commands)
    arguments = parser.parse_args(["new-one", "7"])
    assert arguments.run_subcommand(arguments) == 7
    assert "counts" in parser.format_help()


def test_config_sample_is_a_settings_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "sample"]) == 0
    file = tmp_path / "sample.toml"
    file.write_text(capsys.readouterr().out)
    assert load_settings(file, environ={}) == load_settings(environ={})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "scheduler.max_num_seq=8"], "scheduler.max_num_seq; did you mean max_num_seqs?"),
        (["--set", "scheduler.max_num_seqs=0"], "max_num_seqs"),
        (["--gateways", "0"], "supervisor.gateways"),
        (["--listen", "50051"], "expected HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "whoever reaches this address could use the server"),
        (["--config", "/nonexistent/settings.toml"], "/nonexistent/settings.toml: No such file"),
    ],
)
def test_bad_settings_end_serve_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("chairlift serve: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chaos", "--report", "/nowhere/x.md"], "there is no folder /nowhere"),
        (["chaos", "--log", "/"], "/: is no regular file"),
        (["chaos", "--seconds", "inf"], "a year at most"),
        (["chaos", "--users", "1000000000"], "10,000 at most"),
        (["tune", "--simulate", "--output", "/nowhere/x.toml"], "there is no folder /nowhere"),
        (["tune", "--simulate", "--seed", "-1"], "expected a whole number"),
        (["tune", "--simulate", "--output-tokens", "99999999999999999999"], "HIGH <= 16,777,216"),
        (["experiment", "policy", "--html", "/nowhere/x.html"], "there is no folder /nowhere"),
        (["bench", "serve", "--timeout", "1e300"], "a year at most"),
    ],
)
def test_what_cannot_be_written_or_ended_is_refused_at_the_start(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_no_text_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name or a paste in another encoding: Python hands it over with surrogates."""
    assert main(["explain", "a\udcff", "--target", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("chairlift explain: an argument or the input is not text in UTF-8")


def test_a_model_that_is_not_there_ends_serve_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", "./nothing-here"]) == 3
    assert capsys.readouterr().err.startswith("chairlift serve: ./nothing-here: no such folder or file")


def test_a_public_port_in_use_ends_serve_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    """Loading a model for ten seconds only to find the port taken would waste a person's time."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--listen", address]) == 1
    assert capsys.readouterr().err == f"chairlift serve: {address}: the port is in use by another program\n"


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Style(Terminal()).bold("x") == "\x1b[1mx\x1b[0m"
    assert Style(io.StringIO()).bold("x") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured(Terminal())
    assert not is_coloured(sys.__stdout__ or io.StringIO())
