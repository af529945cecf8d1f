"""Files of prompts and of results: JSON, one a line.

A prompt's line is a JSON string, or an object with ``prompt`` (text, token ids or messages) or ``messages``, and any
option of a request beside it: ``{"prompt": "Hello", "max_tokens": 8}``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import msgspec

from chairlift.client import ChairliftError, Completion, GenerateOptions, InvalidArgumentError, Job
from chairlift.client.batch import BatchItem
from chairlift.client.requests import build_generate
from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError

_OPTIONS = frozenset(GenerateOptions.__annotations__)


def read_jobs(lines: Iterable[str], name: str, options: Mapping[str, Any], *, as_chat: bool) -> list[Job]:
    """Every prompt of a file, with `options` beneath its own. Blank lines are passed over.

    All of it is checked before anything is sent: raises CommandError with the first bad line's number.
    """
    jobs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = _read_job(msgspec.json.decode(line), options, as_chat=as_chat)
            build_generate(job.prompt, job.options)
        except msgspec.DecodeError as error:
            raise CommandError(f"{name}:{number}: not JSON: {error}", ExitCode.USAGE) from None
        except (TypeError, InvalidArgumentError) as error:
            raise CommandError(f"{name}:{number}: {error}", ExitCode.USAGE) from None
        jobs.append(job)
    return jobs


def as_messages(text: str, system: str | None = None) -> list[dict[str, str]]:
    """`text` as what a user says in a conversation."""
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": text}]


def _read_job(value: object, options: Mapping[str, Any], *, as_chat: bool) -> Job:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise TypeError("expected a JSON string, or an object with prompt or messages")
    own: dict[str, Any] = dict(value)
    prompt = own.pop("prompt") if "prompt" in own else own.pop("messages")
    unknown = sorted(own.keys() - _OPTIONS)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}")
    if isinstance(own.get("logit_bias"), dict):
        own["logit_bias"] = {int(token_id): bias for token_id, bias in own["logit_bias"].items()}
    merged: Any = {**options, **own}
    return Job(as_messages(prompt) if as_chat and isinstance(prompt, str) else prompt, merged)


class ResultWriter:
    """Writes results in the order of the prompts, each as soon as all before it are there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0
        self._early: dict[int, BatchItem] = {}

    def put(self, position: int, item: BatchItem) -> None:
        """Takes the result of the prompt at `position` (from 0)."""
        self._early[position] = item
        while self._next in self._early:
            self._stream.write(render_result(self._next, self._early.pop(self._next)) + "\n")
            self._next += 1
        self._stream.flush()


def render_result(index: int, item: BatchItem) -> str:
    """One line of JSON."""
    return msgspec.json.encode({"index": index, **describe_result(item)}).decode()


def describe_result(item: BatchItem) -> dict[str, Any]:
    """A completion or an error as plain data."""
    match item:
        case Completion():
            fields = _without_empty(msgspec.to_builtins(item))
            fields["choices"] = [_without_empty(choice) for choice in fields["choices"]]
            return {**fields, "usage": msgspec.to_builtins(item.usage)}
        case ChairliftError():
            error = {"code": item.code, "reason": item.reason, "message": str(item)}
            return {"request_id": item.request_id, "error": error}


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """What was not asked for, or did not happen, is left out."""
    return {key: value for key, value in fields.items() if value is not None and value not in ((), [])}
