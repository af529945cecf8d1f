"""The Jinja environment in which a model's chat template runs.

A template comes with a model and is code: it gets Jinja's immutable sandbox, the helpers that Hugging Face's templates
rely on, and nothing folded at compile time, so that no work is done before the bounds of `template_process` hold.
"""

import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils


class TemplateRefusal(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it is a scope of its own and no more."""

    tags = {"generation"}  # noqa: RUF012  # the base class says a plain set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without names that begin with an underscore, which could reach into Python."""

    def __init__(*args: Any, **attributes: Any) -> None:
        self, *rest = args
        checked = dict(*rest, **attributes)
        for name in checked:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, checked)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("a namespace in a chat template may not hold names with an underscore")


def make_environment() -> jinja2.Environment:
    """The environment: block trimming and helpers as in transformers' ``apply_chat_template``."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        autoescape=False,
        finalize=_as_it_is,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _make_dict,
        "namespace": _Namespace,
    }
    return environment


@jinja2.pass_context
def _as_it_is(_: jinja2.runtime.Context, value: object) -> object:
    """What wants a context cannot be applied at compile time, so that Jinja leaves constant output alone too."""
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _make_dict(*arguments: Any, **items: Any) -> dict[Any, Any]:
    return dict(*arguments, **items)
