"""Where a setting's value comes from, and what a wrong one says."""

import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import SettingsError, load_settings, parse_settings, to_toml_overrides


def test_defaults_need_no_file() -> None:
    assert load_settings(environ={}) == Settings()


def test_the_last_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[scheduler]\nmax_num_seqs = 4\nblock_size = 32\nwatermark = 0.5\n")
    environ = {"CHAIRLIFT_SCHEDULER__MAX_NUM_SEQS": "5", "CHAIRLIFT_SCHEDULER__BLOCK_SIZE": "64", "OTHER": "x"}
    scheduler = load_settings(file, ["scheduler.max_num_seqs=6"], environ).scheduler
    assert (scheduler.max_num_seqs, scheduler.block_size, scheduler.watermark) == (6, 64, 0.5)


def test_milliseconds_reach_as_far_as_seconds_do() -> None:
    """A bound of seconds on a setting in milliseconds lets it be a thousandth as long."""
    overrides = [
        f"scheduler.{name}=1e10" for name in ("static_batch_wait_ms", "max_head_bypass_ms", "queue_timeout_ms")
    ]
    scheduler = load_settings(overrides=overrides, environ={}).scheduler
    assert scheduler.static_batch_wait_ms == scheduler.max_head_bypass_ms == scheduler.queue_timeout_ms == 1e10


def test_the_file_may_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[model]\nsource = "here"\n')
    assert load_settings(environ={"CHAIRLIFT_CONFIG": str(file)}).model.source == "here"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("scheduler.max_num_seq=8", "scheduler.max_num_seq; did you mean max_num_seqs"),
        ("schedule.max_num_seqs=8", "unknown section"),
        ("scheduler.block_size=1", "scheduler: block_size: .*>= 8"),
        ("scheduler.block_size=x", "block_size"),
        ("scheduler.policy=lottery", "policy"),
        ("scheduler.watermark=1", "watermark"),
        ("scheduler.watermark=nan", "watermark"),
        ("scheduler.max_num_seqs", "expected section.key=value"),
        ("scheduler.max_head_bypass_ms=-1", "max_head_bypass_ms: .*>= 0"),
        ("scheduler.max_head_bypass_ms=1e11", "max_head_bypass_ms: .*<= 1"),
        ("gateway.replicas=[ipc", "not a JSON array"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(override: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings(overrides=[override], environ={})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[scheduler]\nmax_num_seq = 1", "scheduler.max_num_seq"),
        ("[shedule]\nx = 1", r"\[shedule\]"),
        ("scheduler = 3", "must be a section"),
        ("[scheduler]\nmax_num_seqs = '8'", "max_num_seqs: Expected `int"),
        ("[scheduler", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_path(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=f"c.toml.*{says}"):
        load_settings(file, environ={})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(tmp_path / "none.toml", environ={})


def test_a_mistyped_environment_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="CHAIRLIFT_SCHEDULER__MAX_SEQS"):
        load_settings(environ={"CHAIRLIFT_SCHEDULER__MAX_SEQS": "1"})


def test_settings_can_be_handed_on() -> None:
    """The supervisor gives its children the same settings as it was given."""
    overrides = [
        "gateway.replicas=ipc:///a,ipc:///b",
        'scheduler.tenants=["a: weight=2, max_num_seqs=4", "b: weight=1"]',
        "worker.deterministic=false",
        "scheduler.max_num_seqs=8",
    ]
    settings = load_settings(overrides=overrides, environ={})
    assert load_settings(overrides=to_toml_overrides(settings), environ={}) == settings
    assert to_toml_overrides(Settings()) == []


def test_every_setting_survives_being_handed_on() -> None:
    """A value with a comma, a space or an empty string in it reaches the child as it was."""
    changed = {"str": "a b, c", "str | None": "x,y", "tuple[str, ...]": ("a, b", "c")}
    for section in Settings.__struct_fields__:
        for field in msgspec.structs.fields(type(getattr(Settings(), section))):
            kind = next((name for name in changed if name == _plain(field.type)), None)
            if kind is not None:
                values = msgspec.structs.replace(getattr(Settings(), section), **{field.name: changed[kind]})
                settings = msgspec.structs.replace(Settings(), **{section: values})
                assert load_settings(overrides=to_toml_overrides(settings), environ={}) == settings


def _plain(annotation: Any) -> str:
    """An annotation without its metadata, as text."""
    args = typing.get_args(annotation)
    kind = args[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def test_a_process_says_what_is_wrong_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(["--set", "scheduler.x=1"], "scheduler_svc")
    assert ended.value.code == 2
    assert "scheduler.x" in capsys.readouterr().err
