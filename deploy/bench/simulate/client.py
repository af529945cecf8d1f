"""A `StreamClient` of a simulated server: the third beside gRPC and HTTP, with no network between."""

import asyncio

from chairlift.ipc import device, front
from chairlift.ipc.common import FinishReason, SamplingParams
from chairlift.ipc.tokens import pack_u32
from deploy.bench.load.client import Call, TargetModel
from deploy.bench.load.clock import Clock
from deploy.bench.load.record import Outcome, RequestRecord, ServerAccount, digest_tokens
from deploy.bench.simulate.server import Output, SimulatedServer


class SimulatedClient:
    """Submits requests and records what comes back and when, in virtual time."""

    def __init__(self, server: SimulatedServer, geometry: device.Geometry, clock: Clock) -> None:
        self._server = server
        self._geometry = geometry
        self._clock = clock

    async def describe(self) -> TargetModel:
        """The modelled device's."""
        geometry = self._geometry
        return TargetModel(
            name=geometry.model,
            fingerprint=geometry.fingerprint,
            dtype=geometry.dtype,
            vocab_size=geometry.vocab_size,
            max_model_len=geometry.max_model_len,
            is_deterministic=True,
        )

    async def stream(self, call: Call, record: RequestRecord) -> tuple[int, ...]:
        """See `StreamClient`."""
        ended = asyncio.get_running_loop().create_future()
        token_ids: list[int] = []

        def on_output(output: Output) -> None:
            if isinstance(output, tuple):
                record.take_delta(self._clock.now_ns(), len(output))
                token_ids.extend(output)
                if call.abandon_after is not None and record.output_tokens >= call.abandon_after and not ended.done():
                    ended.set_result(None)
            elif not isinstance(output, front.Accepted) and not ended.done():
                ended.set_result(output)

        handle = self._server.submit(lambda handle: _to_submit(handle, call), on_output)
        match await ended:
            case front.Finished() as finished:
                _take_end(record, finished)
            case front.Refused() as refused:
                record.outcome, record.reason = Outcome.REFUSED, refused.reason
            case _:
                self._server.detach(handle)
                record.outcome = Outcome.ABANDONED
        record.prompt_tokens = len(call.prompt)
        if call.wants_ids:
            record.digest = digest_tokens(token_ids)
        return tuple(token_ids)

    async def close(self) -> None:
        """Nothing is open."""


def _to_submit(handle: int, call: Call) -> front.Submit:
    return front.Submit(
        handle=handle,
        tenant=call.tenant,
        request_id=f"simulated-{handle}",
        digest=handle.to_bytes(16, "little"),
        prompt=pack_u32(call.prompt),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=call.output_tokens,
        deadline_in_ns=round(call.timeout_s * 1e9),
    )


def _take_end(record: RequestRecord, finished: front.Finished) -> None:
    reason = FinishReason(finished.reason)
    record.finish_reason = reason.name
    record.server = ServerAccount(
        queue_ms=finished.queue_ns / 1e6,
        ttft_ms=None if finished.ttft_ns is None else finished.ttft_ns / 1e6,
        total_ms=finished.total_ns / 1e6,
        preemptions=finished.preemptions,
        cached_tokens=finished.cached_tokens,
    )
    match reason:
        case FinishReason.DEADLINE:
            record.outcome, record.reason = Outcome.TIMED_OUT, finished.failure_reason
        case FinishReason.ERROR | FinishReason.CANCELLED:
            record.outcome, record.reason = Outcome.FAILED, finished.failure_reason
        case _:
            record.outcome = Outcome.OK if record.output_tokens == record.wanted_tokens else Outcome.SHORT
