"""What the README and the bench's documents tell people to type exists, with every flag."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import deploy.bench
from deploy.cli import commands
from deploy.cli.subcommands import build_parser, command_names, load_command

FOLDER = Path(deploy.bench.__file__).parent
ROOT = FOLDER.parents[1]
_REDIRECTIONS = ("|", ">", ">>", "&", "&&")


def commands_in(text: str) -> Iterator[str]:
    """Lines of code blocks that begin with our command, with the lines that they go on in, and those within a text.

    Variables of the environment and the environment's own path may stand before it.
    """
    joined = re.sub(r"\\\n\s*", " ", text)
    yield from re.findall(r"^\s*(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(chairlift .*)$", joined, re.MULTILINE)
    yield from re.findall(r"`(chairlift [^`]*)`", joined)


DOCUMENTED = [
    pytest.param(command, id=f"{path.relative_to(ROOT)}: {command}")
    for path in (ROOT / "README.md", FOLDER / "README.md", FOLDER / "peers.md")
    for command in dict.fromkeys(commands_in(path.read_text()))
]


def test_commands_are_found_in_the_documents() -> None:
    assert len(DOCUMENTED) > 40
    assert {str(one.id).partition(":")[0] for one in DOCUMENTED} == {
        "README.md",
        "deploy/bench/README.md",
        "deploy/bench/peers.md",
    }


@pytest.mark.parametrize("line", DOCUMENTED)
def test_documented_command_is_understood(line: str) -> None:
    """Options that were dropped or renamed lived on in the documents."""
    _, name, *arguments = shlex.split(line, comments=True)
    assert name in command_names(commands)
    command = load_command(commands, name)
    assert command is not None
    arguments = list(itertools.takewhile(lambda word: word not in _REDIRECTIONS, arguments))
    if not arguments:  # a command that is spoken of, or one that needs none
        return
    build_parser(command, f"chairlift {name}").parse_args(arguments)
