"""Nothing that a gateway writes (logs at debug, metrics, spans, errors) holds what a user wrote, or was told."""

import base64
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import msgspec
import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chairlift.ipc.tokens import pack_u32
from chairlift.runtime.tracing import Tracing
from chairlift.v1 import inference_pb2 as pb

CANARY = "The quartz zebra of Ulm whispers 77193"
STOP, SALT = "stop-at-the-zebra", "salt-of-the-zebra"
TOLD = "and nobody answers"


def _forms(text: str) -> Iterator[bytes]:
    raw = text.encode()
    yield raw
    yield raw.hex().encode()
    for shift in range(3):
        # Whatever stands before it, one of three alignments is what base64 shows.
        yield base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4]


def _forms_of_ids(ids: list[int]) -> Iterator[bytes]:
    for separator in (", ", ",", " "):
        yield separator.join(map(str, ids)).encode()
    yield pack_u32(ids)
    yield b"".join(map(msgspec.msgpack.encode, ids))


async def _speak(rig: Any, spell: Any) -> None:
    """A request that goes well; its answer is cut at the stop string."""
    stopping = pb.Stopping(stop=[STOP])
    call = rig.stub.Generate(pb.GenerateRequest(text=CANARY, stopping=stopping, cache_salt=SALT))
    submit = await rig.scheduler.accept()
    rig.scheduler.tokens(submit.handle, 0, *spell(TOLD))
    rig.scheduler.finish(submit.handle, len(TOLD))
    events = await rig.caller.events(call)
    assert "".join(event.delta.text for event in events) == TOLD


async def _err(rig: Any) -> list[Any]:
    """Errors of every kind, each about a request with the canary."""
    requests = [
        pb.GenerateRequest(text=CANARY, sampling=pb.Sampling(temperature=9)),
        pb.GenerateRequest(text=CANARY * 50),
        pb.GenerateRequest(text=CANARY, model=CANARY),
        pb.GenerateRequest(text=CANARY, stopping=pb.Stopping(stop=[STOP * 500])),
        pb.GenerateRequest(text=CANARY, cache_salt=SALT * 50),
        pb.GenerateRequest(messages=pb.ChatMessages(messages=[pb.ChatMessage(role=CANARY * 9)])),
    ]
    errors = [await rig.caller.error(rig.stub.Generate(request)) for request in requests]
    raw = rig.caller.channel.unary_stream("/chairlift.v1.InferenceService/Generate")
    errors.append(await rig.caller.error(raw(b"\xff" + CANARY.encode())))
    errors.append(await rig.caller.error(rig.caller.channel.unary_unary(f"/x/{'y' * 9}")(CANARY.encode())))
    late = rig.stub.Generate(pb.GenerateRequest(text=CANARY), timeout=0.2)
    await rig.scheduler.accept()
    errors.append(await rig.caller.error(late))
    return errors


@pytest.fixture
def logs_at_debug() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("logs_at_debug")
async def test_nothing_written_holds_the_canary(
    start_rig: Any, spell: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    async with start_rig(tracing=Tracing("gateway", exporter, environ={})) as rig:
        await _check(rig, spell, capfd, monkeypatch)
    spans = "".join(span.to_json() for span in exporter.get_finished_spans()).encode()
    assert b"INVALID_REQUEST" in spans
    assert [needle for needle in _needles(spell) if needle in spans] == []


def _needles(spell: Any) -> list[bytes]:
    needles = [form for text in (CANARY, TOLD, STOP, SALT) for form in _forms(text)]
    return [*needles, *_forms_of_ids(spell(CANARY)), *_forms_of_ids(spell(TOLD))]


async def _check(rig: Any, spell: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    await _speak(rig, spell)
    errors = await _err(rig)

    def break_down(*_: object) -> None:
        raise KeyError(CANARY)

    monkeypatch.setattr(rig.service._table, "submit", break_down)
    errors.append(await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(text=CANARY))))
    assert {error.code for error in errors} == {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
    }
    printed = capfd.readouterr()
    assert "call_failed" in printed.out + printed.err
    seen = [printed.out.encode(), printed.err.encode(), rig.service._observer.exposition().encode()]
    seen += [f"{error.message} {error.trailing}".encode() for error in errors]
    seen += [value for error in errors for value in error.trailing.values() if isinstance(value, bytes)]
    assert [needle for needle in _needles(spell) for text in seen if needle in text] == []
