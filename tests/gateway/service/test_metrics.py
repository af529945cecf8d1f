"""What a scrape of a gateway tells: zero when idle, and every end of a call under its own name."""

import asyncio
import urllib.request
from typing import Any

import grpc

from chairlift.ipc import front
from chairlift.ipc.common import FinishReason, Reason
from chairlift.ipc.tokens import pack_u32, pack_u64
from chairlift.runtime.metric_table import GATEWAY, MetricKind
from chairlift.v1 import inference_pb2 as pb


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


async def _metrics(rig: Any) -> dict[str, float]:
    """Values by series."""
    text = await asyncio.to_thread(_scrape, rig.service.probe_port)
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in lines}


async def _until(rig: Any, series: str, value: float) -> dict[str, float]:
    async with asyncio.timeout(20):
        while (found := await _metrics(rig))[series] != value:  # noqa: ASYNC110  # a scrape sets no event
            await asyncio.sleep(0.01)
    return found


def _code(code: str) -> str:
    return f'chairlift_gateway_requests_total{{code="{code}"}}'


async def test_an_idle_gateway_shows_zeros(start_rig: Any) -> None:
    async with start_rig(metrics_listen="127.0.0.1:0") as rig:
        found = await _metrics(rig)
    found = {series: value for series, value in found.items() if not series.startswith("target_info")}
    assert set(found.values()) == {0.0}
    exposed = {series.partition("{")[0] for series in found}
    assert exposed == {spec.exposed_name for spec in GATEWAY if spec.kind is not MetricKind.HISTOGRAM}


async def test_a_success_has_its_first_token_and_its_pace(start_rig: Any) -> None:
    async with start_rig(metrics_listen="127.0.0.1:0") as rig:
        call = rig.stub.Generate(pb.GenerateRequest(text="hi"))
        submit = await rig.scheduler.accept()
        rig.scheduler.tokens(submit.handle, 0, 70, 71, 72)
        await rig.caller.event(call, "accepted")
        assert (await _metrics(rig))["chairlift_gateway_streams"] == 1
        rig.scheduler.finish(submit.handle, 3)
        await rig.caller.events(call)
        found = await _until(rig, _code("OK"), 1)
    labels = '{gen_ai_operation_name="text_completion",gen_ai_provider_name="chairlift",gen_ai_request_model="test"}'
    first = found[f"gen_ai_server_time_to_first_token_seconds_sum{labels}"]
    pace = found[f"gen_ai_server_time_per_output_token_seconds_sum{labels}"]
    duration = found[f"gen_ai_server_request_duration_seconds_sum{labels}"]
    assert abs(first + 2 * pace - duration) < 1e-9
    assert found["chairlift_gateway_streams"] == 0


async def test_every_end_is_counted_and_only_what_was_never_in_is_a_refusal(start_rig: Any, wide_margin: None) -> None:
    async with start_rig(metrics_listen="127.0.0.1:0") as rig:
        scheduler, generate = rig.scheduler, rig.stub.Generate
        invalid = await rig.caller.error(generate(pb.GenerateRequest(text="hi", sampling=pb.Sampling(top_p=7))))
        refused = generate(pb.GenerateRequest(text="hi"))
        submit = await scheduler.next(front.Submit)
        scheduler.send(front.Refused(submit.handle, Reason.QUEUE_FULL, "full", retry_after_ns=10**9))
        full = await rig.caller.error(refused)
        failing = generate(pb.GenerateRequest(text="hi"))
        submit = await scheduler.accept()
        scheduler.finish(submit.handle, 0, FinishReason.ERROR, failure_reason=Reason.STEP_FAILED)
        failed = await rig.caller.error(failing)
        late = await rig.caller.error(generate(pb.GenerateRequest(text="hi"), timeout=0.5))
        leaving = generate(pb.GenerateRequest(text="hi"))
        await scheduler.next(front.Submit)
        await scheduler.accept()
        await rig.caller.event(leaving, "accepted")
        leaving.cancel()
        found = await _until(rig, _code("CANCELLED"), 1)
        found = await _until(rig, _code("DEADLINE_EXCEEDED"), 1)
    codes = [invalid.code, full.code, failed.code, late.code]
    assert codes == [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ]
    assert {code.name for code in codes} | {"CANCELLED"} == {
        series.split('"')[1] for series, value in found.items() if series.startswith(_code("")[:-3]) and value == 1
    }
    refusals = {
        series.split('"')[1]: value for series, value in found.items() if "gateway_refusals" in series and value
    }
    assert refusals == {"INVALID_REQUEST": 1, "QUEUE_FULL": 1, "DEADLINE": 1}
    types = [series.split('"')[1] for series in found if "request_duration_seconds_count" in series]
    assert sorted(types) == ["CANCELLED", "DEADLINE", "INVALID_REQUEST", "QUEUE_FULL", "STEP_FAILED"]
    assert not any("time_per_output_token" in series or "time_to_first" in series for series in found)


async def test_what_went_wrong_with_schedulers_is_counted_also_of_links_that_are_gone(start_rig: Any) -> None:
    resubmitted, malformed = (
        "chairlift_gateway_requests_resubmitted_total",
        "chairlift_gateway_malformed_messages_total",
    )
    async with start_rig(metrics_listen="127.0.0.1:0") as rig:
        call = rig.stub.Generate(pb.GenerateRequest(text="hi"))
        submit = await rig.scheduler.accept()
        rig.scheduler.send_frame(rig.scheduler.identity, b"no message")
        rig.scheduler.send(front.Deltas(pack_u64([submit.handle]), pack_u32([9]), pack_u32([1])))
        again = await rig.scheduler.accept()
        rig.scheduler.finish(again.handle, 0)
        await rig.caller.events(call)
        await _until(rig, _code("OK"), 1)
        rig.service._replicas.follow([])
        assert not rig.service._replicas.links
        found = await _metrics(rig)
    assert (found[resubmitted], found[malformed]) == (1, 2)
