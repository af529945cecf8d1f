"""Reads settings: defaults, then the TOML file, then the environment, then ``--set`` and flags; the last one wins.

A key that does not exist and a value out of bounds are refused with their path and where they came from.
"""

import argparse
import difflib
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chairlift.runtime.settings import Settings

ENV_PREFIX = "CHAIRLIFT_"
CONFIG_ENV = "CHAIRLIFT_CONFIG"
_RESERVED_ENV = frozenset({CONFIG_ENV})


class SettingsError(ValueError):
    """A setting that cannot be used. The message names its path and its source."""


def load_settings(
    config: Path | None = None, overrides: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings in force.

    `config` is a TOML file (default: the one that ``CHAIRLIFT_CONFIG`` names); `overrides` are ``section.key=value``,
    a list as ``a,b`` or as a JSON array;
    `environ` defaults to the process's own, with keys such as ``CHAIRLIFT_SCHEDULER__MAX_NUM_SEQS``.
    Raises SettingsError.
    """
    environ = os.environ if environ is None else environ
    settings = Settings()
    if config is None and environ.get(CONFIG_ENV):
        config = Path(environ[CONFIG_ENV])
    if config is not None:
        settings = _merge(settings, _read_toml(config), str(config), strict=True)
    for name, value in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and "__" in name and name not in _RESERVED_ENV:
            path = name.removeprefix(ENV_PREFIX).lower().replace("__", ".", 1)
            settings = _set(settings, path, value, f"environment variable {name}")
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals:
            raise SettingsError(f"--set {override}: expected section.key=value")
        settings = _set(settings, path.strip(), value, f"--set {path.strip()}")
    return settings


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--config`` and ``--set``, the same for every process and command."""
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="settings file (default: $CHAIRLIFT_CONFIG)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="one setting, for instance scheduler.max_num_seqs=8; may be repeated",
    )


def parse_settings(argv: Sequence[str], program: str) -> Settings:
    """Settings of a process started as ``python -m program``. Exits with a usage message on a bad argument."""
    parser = argparse.ArgumentParser(prog=program)
    add_settings_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        return load_settings(arguments.config, arguments.overrides)
    except SettingsError as error:
        parser.exit(2, f"{program}: {error}\n")


def to_toml_overrides(settings: Settings) -> list[str]:
    """The ``section.key=value`` list that gives `settings` again, defaults left out: how a parent hands them on."""
    lines = []
    for section in settings.__struct_fields__:
        values, defaults = getattr(settings, section), type(getattr(settings, section))()
        for key in values.__struct_fields__:
            value = getattr(values, key)
            if value != getattr(defaults, key):
                lines.append(f"{section}.{key}={_render(value)}")
    return lines


def _render(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def _merge(settings: Settings, tree: Mapping[str, Any], source: str, *, strict: bool) -> Settings:
    changed: dict[str, Any] = {}
    for section, values in tree.items():
        if section not in settings.__struct_fields__:
            raise SettingsError(
                f"{source}: unknown section [{section}]; known: {', '.join(settings.__struct_fields__)}"
            )
        if not isinstance(values, Mapping):
            raise SettingsError(f"{source}: {section} must be a section of keys")
        current = getattr(settings, section)
        for key in values:
            if key not in current.__struct_fields__:
                raise SettingsError(f"{source}: unknown key {section}.{key}{_did_you_mean(key, current)}")
        merged = msgspec.to_builtins(current) | dict(values)
        try:
            changed[section] = msgspec.convert(merged, type(current), strict=strict)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{source}: {section}: {_explain(error)}") from None
    return msgspec.structs.replace(settings, **changed)


def _set(settings: Settings, path: str, text: str, source: str) -> Settings:
    section, dot, key = path.partition(".")
    if not dot or section not in settings.__struct_fields__:
        raise SettingsError(f"{source}: unknown section of {path!r}; known: {', '.join(settings.__struct_fields__)}")
    current = getattr(settings, section)
    value: Any = text
    hint = typing.get_type_hints(type(current)).get(key)
    if hint is not None:
        if types.NoneType in typing.get_args(hint) and text.lower() in ("none", ""):
            value = None
        elif typing.get_origin(hint) is tuple:
            value = _parse_list(text, source)
    return _merge(settings, {section: {key: value}}, source, strict=False)


def _parse_list(text: str, source: str) -> list[Any]:
    """A list: ``a,b``, or a JSON array, which items that hold a comma need."""
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.DecodeError as error:
        raise SettingsError(f"{source}: not a JSON array: {error}") from None


def _did_you_mean(key: str, section: msgspec.Struct) -> str:
    close = difflib.get_close_matches(key, section.__struct_fields__, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _explain(error: msgspec.ValidationError) -> str:
    message, _, path = str(error).partition(" - at `$.")
    return f"{path.rstrip('`')}: {message}" if path else message
