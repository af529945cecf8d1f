"""Commands that make secrets, and servers that take what they print."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.runtime.curve import parse_keys, read_own_key
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.token_hash import digest_of_token
from deploy.cli.main import main
from gateway.security.authenticator import Authenticator
from gateway.security.credentials_file import parse_credentials


def test_a_new_token_opens_what_its_printed_entry_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "token"
    assert main(["token", "new", "--name", "a-1", "--tenant", "acme", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    token = out.read_text().strip()
    assert token not in printed.out + printed.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    tokens = parse_credentials(f"[tenants.acme]\n{printed.out}".encode())
    principal = Authenticator(tokens).authenticate({"authorization": f"Bearer {token}"})
    assert (principal.name, principal.tenant) == ("a-1", "acme")


def test_a_token_without_a_file_is_shown_beside_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "--name", "root", "--role", "admin"]) == 0
    printed = capsys.readouterr()
    token = printed.err.split()[-1]
    assert parse_credentials(printed.out.encode()).find(token) is not None
    assert token not in printed.out


@pytest.mark.parametrize("name", ["a b", "x]", 'a"b', "a\n", "", "-a", "a" * 65, "é"])
@pytest.mark.parametrize("flag", ["--name", "--tenant"])
def test_a_name_that_a_server_would_refuse_makes_no_entry(
    flag: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"--name": "n", "--tenant": "t"} | {flag: name}
    assert main(["token", "new", *(f"{key}={value}" for key, value in names.items())]) == 2
    printed = capsys.readouterr()
    assert (printed.out, flag in printed.err) == ("", True)


def test_a_user_needs_a_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "--name", "x"]) == 2
    assert "--tenant" in capsys.readouterr().err


def test_a_hash_is_made_of_what_comes_by_standard_input(start_command: Callable[..., Any]) -> None:
    out, _ = start_command("token", "hash").communicate("a-token-of-enough-characters\n", timeout=60)
    assert out == f"sha256:{digest_of_token('a-token-of-enough-characters').hex()}\n"
    process = start_command("token", "hash")
    out, error = process.communicate("short\n", timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "short" not in error.replace("shorter", "")


def test_a_new_key_is_what_the_settings_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.secret"
    assert main(["keys", "new", str(path)]) == 0
    printed = capsys.readouterr().out
    pair = read_own_key(IpcSettings(curve_secret_key_file=str(path)))
    assert [key.key for key in parse_keys(printed.encode(), "list")] == [pair.public]
    assert pair.secret.decode() not in printed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["keys", "new", str(path)]) == 2
    assert "not written over" in capsys.readouterr().err
    assert read_own_key(IpcSettings(curve_secret_key_file=str(path))) == pair
