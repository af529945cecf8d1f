"""Writes the documented sample of the settings file from the settings' own definitions.

``deploy/chairlift.sample.toml`` is this module's output: `chairlift config sample > deploy/chairlift.sample.toml`
makes it again after a change of the settings (a test compares the two).
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from chairlift.runtime.settings import Settings

WIDTH = 110
_BEYOND_USE = 10_000_000

_HEADER = """\
Settings of Chairlift. Every key is here with its default; keys that are commented out have none of their own.

What wins: `--set section.key=value` and flags, then the environment (CHAIRLIFT_SECTION__KEY, for instance
CHAIRLIFT_SCHEDULER__MAX_NUM_SEQS=8), then this file (`--config FILE`, or CHAIRLIFT_CONFIG), then the default.
Each process reads all of it and refuses a key that does not exist, so one file serves a whole installation.
"""


def render_sample() -> str:
    """The sample file: valid TOML that gives the default settings again."""
    definitions = msgspec.json.schema(Settings)["$defs"]
    parts = ["\n".join(_comment(_HEADER))]
    defaults = Settings()
    for name in Settings.__struct_fields__:
        section = getattr(defaults, name)
        definition = definitions[type(section).__name__]
        parts.append("\n".join(_section(name, section, definition)))
    return "\n\n".join(parts) + "\n"


def _section(name: str, values: msgspec.Struct, definition: Mapping[str, Any]) -> Iterator[str]:
    yield from _comment(definition["description"])
    yield f"[{name}]"
    for key, schema in definition["properties"].items():
        yield ""
        yield from _comment(f"{schema['description']} ({_describe_type(schema)})")
        value = getattr(values, key)
        yield f"# {key} = …" if value is None else f"{key} = {_render(value)}"


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from (f"# {part}".rstrip() for part in textwrap.wrap(line, WIDTH) or [""])


def _describe_type(schema: Mapping[str, Any]) -> str:
    """A type and its bounds in words, for instance ``integer, 1 to 256``."""
    if "anyOf" in schema:
        return next(_describe_type(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in schema:
        return " | ".join(_render(item) for item in schema["enum"])
    match schema["type"]:
        case "array":
            return f"list of {schema['items']['type']}s"
        case "boolean":
            return "true | false"
        case "integer" | "number" as kind:
            return ", ".join([kind, *_bounds(schema)])
        case kind:
            return str(kind)


def _bounds(schema: Mapping[str, Any]) -> Sequence[str]:
    """The bounds in words; one that only catches nonsense is left out."""
    words = []
    if "minimum" in schema:
        words.append(f"at least {_render(schema['minimum'])}")
    if "exclusiveMinimum" in schema:
        words.append(f"above {_render(schema['exclusiveMinimum'])}")
    if schema.get("maximum", _BEYOND_USE) < _BEYOND_USE:
        words.append(f"at most {_render(schema['maximum'])}")
    if "exclusiveMaximum" in schema:
        words.append(f"below {_render(schema['exclusiveMaximum'])}")
    return words


def _render(value: object) -> str:
    """`value` as TOML."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case float():
            return f"{int(value):_}.0" if value.is_integer() else repr(value)
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case tuple() | list():
            return "[" + ", ".join(_render(item) for item in value) + "]"
        case _:
            raise TypeError(f"a setting of type {type(value).__name__} has no rendering")
