"""Flags of commands that start a stack. Each is the short form of a setting."""

import argparse
import typing
from collections.abc import Sequence

import msgspec

from chairlift.runtime.settings import ModelSettings, Settings, WorkerSettings
from chairlift.runtime.settings_loader import add_settings_arguments, load_settings


class _Flag(msgspec.Struct, frozen=True):
    name: str
    setting: str
    metavar: str
    help: str
    choices: Sequence[str] | None = None

    @property
    def destination(self) -> str:
        return f"flag_{self.name.strip('-').replace('-', '_')}"


def _literals(section: type[msgspec.Struct], key: str) -> Sequence[str]:
    return typing.get_args(typing.get_type_hints(section)[key])


_MODEL_FLAGS = (
    _Flag("--model", "model.source", "MODEL", "smollm2-135m (built in), a folder, a GGUF file, or a hub id"),
    _Flag("--device", "worker.device", "DEVICE", "where the model runs", _literals(WorkerSettings, "device")),
    _Flag("--dtype", "model.dtype", "DTYPE", "of weights and KV cache", _literals(ModelSettings, "dtype")),
    _Flag("--quantization", "model.quantization", "KIND", "of the weights", _literals(ModelSettings, "quantization")),
    _Flag("--attention", "worker.attention", "KERNELS", "what runs the model", _literals(WorkerSettings, "attention")),
)
_SERVE_FLAGS = (
    _Flag("--listen", "gateway.listen", "HOST:PORT", "public address"),
    _Flag("--http-listen", "gateway.http_listen", "HOST:PORT", "OpenAI-compatible HTTP beside it"),
    _Flag("--ops-listen", "gateway.ops_listen", "HOST:PORT", "operator's address (gateway i: port + i)"),
    _Flag("--gateways", "supervisor.gateways", "N", "gateway processes on the public port"),
)
_ALL_FLAGS = (*_MODEL_FLAGS, *_SERVE_FLAGS)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--device``, ``--dtype``, ``--quantization``, ``--attention``, ``--config``, ``--set``."""
    _add(parser, _MODEL_FLAGS)
    add_settings_arguments(parser)


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Those, and where to listen."""
    _add(parser, _ALL_FLAGS)
    add_settings_arguments(parser)


def is_stack_wanted(arguments: argparse.Namespace) -> bool:
    """Whether any of the flags was given."""
    flags = (getattr(arguments, flag.destination, None) for flag in _ALL_FLAGS)
    return bool(arguments.config or arguments.overrides or any(value is not None for value in flags))


def settings_from(arguments: argparse.Namespace, *, beneath: Sequence[str] = ()) -> Settings:
    """The settings in force: ``--set`` goes before file and environment, a flag before ``--set``.

    `beneath` are ``section.key=value`` that hold unless one of all those says otherwise. Raises SettingsError.
    """
    flags = [
        f"{flag.setting}={value}"
        for flag in _ALL_FLAGS
        if (value := getattr(arguments, flag.destination, None)) is not None
    ]
    overrides = [*arguments.overrides, *flags]
    settings = load_settings(arguments.config, overrides)
    defaults = Settings()
    return load_settings(
        arguments.config, [*(item for item in beneath if _is_default(item, settings, defaults)), *overrides]
    )


def _is_default(override: str, settings: Settings, defaults: Settings) -> bool:
    section, key = override.partition("=")[0].split(".")
    return bool(getattr(getattr(settings, section), key) == getattr(getattr(defaults, section), key))


def _add(parser: argparse.ArgumentParser, flags: Sequence[_Flag]) -> None:
    defaults = Settings()
    for flag in flags:
        section, key = flag.setting.split(".")
        default = getattr(getattr(defaults, section), key)
        parser.add_argument(
            flag.name,
            dest=flag.destination,
            metavar=None if flag.choices else flag.metavar,
            choices=flag.choices,
            help=f"{flag.help} ({flag.setting}; default {default or 'none'})",
        )
