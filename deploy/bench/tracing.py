"""What tracing costs: CPU time a token of the server's processes, with and without, in alternating pairs.

Two stacks of one's own stand side by side; one exports a share of its traces to a sink in this process, which takes
them and does nothing. Each run drives one of them while the other idles, in turn (A B B A …), so that what changes on
the machine changes both. A pair is two such sittings with processes of their own, started in opposite order: where a
worker's memory happens to lie makes its kernels faster or slower by per cents for as long as it lives, and the one that
starts second is the cheaper one by more than what tracing costs.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import grpc.aio
import msgspec

from chairlift.runtime.settings import Settings
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import inference_pb2_grpc as pb_grpc
from deploy.bench.errors import BenchError
from deploy.bench.figures.statistics import Interval, mean_interval
from deploy.bench.observe.processes import find_descendants, measure_cpu_s
from deploy.bench.stack import run_own_stack

_PROMPT = list(range(100, 116))


class TracingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How it is measured."""

    pairs: int = 10
    share: float = 0.1
    """Of traces that are sampled."""
    runs: int = 4
    """Of each side in each of a pair's two sittings."""
    requests: int = 16
    """Of a run, all at once."""
    output_tokens: int = 64


class TracingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The result."""

    plan: TracingPlan
    us_per_token_without: float
    us_per_token_with: float
    ratios: tuple[float, ...]
    """With over without, less one, of each pair: both sittings together."""
    overhead: Interval
    """95 % interval of their mean."""
    num_exports: int
    """Requests to the sink; each carries many spans."""


class TracingError(BenchError):
    """The machine tells no CPU times, or the sink got nothing."""


class _Sink:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.num_requests = 0
        sink = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                sink.num_requests += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, name="otlp-sink", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Target(msgspec.Struct, frozen=True):
    """A server, and the processes that it consists of."""

    address: str
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        """CPU time that they have used. Raises TracingError where the system does not tell."""
        used = measure_cpu_s(self.pids)
        if used is None:
            raise TracingError("this system does not tell the CPU time of processes")
        return used


async def measure_tracing(plan: TracingPlan, settings: Settings) -> TracingCost:
    """Runs it. Raises TracingError, and what a stack of one's own raises."""
    sink = _Sink()
    environ = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": sink.endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(plan.share),
    }
    costs: list[tuple[float, float]] = []
    try:
        for number in range(plan.pairs):
            sittings = [
                await _measure_sitting(plan, settings, environ, traced_starts_first, drive_traced_first=number % 2 == 1)
                for traced_starts_first in (False, True)
            ]
            costs.append((_mean([without for without, _ in sittings]), _mean([with_ for _, with_ in sittings])))
    finally:
        sink.close()
    if not sink.num_requests:
        raise TracingError("no span has arrived: the processes lack chairlift[otlp]")
    return summarize_pairs(plan, costs, sink.num_requests)


def summarize_pairs(plan: TracingPlan, costs: Sequence[tuple[float, float]], num_exports: int) -> TracingCost:
    """The result of pairs: CPU seconds a token without and with, of each. Raises TracingError for fewer than two."""
    ratios = tuple(with_ / without - 1 for without, with_ in costs)
    overhead = mean_interval(ratios)
    if overhead is None:
        raise TracingError("an interval needs two pairs or more")
    return TracingCost(
        plan=plan,
        us_per_token_without=_mean([without for without, _ in costs]) * 1e6,
        us_per_token_with=_mean([with_ for _, with_ in costs]) * 1e6,
        ratios=ratios,
        overhead=overhead,
        num_exports=num_exports,
    )


async def _measure_sitting(
    plan: TracingPlan,
    settings: Settings,
    environ: dict[str, str],
    traced_starts_first: bool,
    *,
    drive_traced_first: bool,
) -> tuple[float, float]:
    environs = (environ, {}) if traced_starts_first else ({}, environ)
    async with _stack(settings, environs[0]) as first, _stack(settings, environs[1]) as second:
        plain, traced = (second, first) if traced_starts_first else (first, second)
        return await measure_sitting(plan, plain, traced, drive_traced_first=drive_traced_first)


async def measure_sitting(
    plan: TracingPlan, plain: Target, traced: Target, *, drive_traced_first: bool = False
) -> tuple[float, float]:
    """CPU seconds a token without and with, of the sitting's runs together; after one of each that does not count."""
    order = [plain, traced]
    if drive_traced_first:
        order.reverse()
    for target in order:
        await _drive(target, plan)
    spent = {target.address: _Spent() for target in order}
    for _ in range(plan.runs):
        for target in order:
            before = target.cpu_s()
            num_tokens = await _drive(target, plan)
            spent[target.address].add(target.cpu_s() - before, num_tokens)
        order.reverse()
    return spent[plain.address].per_token(), spent[traced.address].per_token()


class _Spent:
    def __init__(self) -> None:
        self._cpu_s = 0.0
        self._num_tokens = 0

    def add(self, cpu_s: float, num_tokens: int) -> None:
        self._cpu_s += cpu_s
        self._num_tokens += num_tokens

    def per_token(self) -> float:
        return self._cpu_s / self._num_tokens


async def _drive(target: Target, plan: TracingPlan) -> int:
    """Every request at once; returns the tokens that came."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=_PROMPT),
        sampling=pb.Sampling(temperature=0),
        stopping=pb.Stopping(max_tokens=plan.output_tokens, ignore_eos=True),
    )
    async with grpc.aio.insecure_channel(target.address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        return sum(await asyncio.gather(*(_count(stub, request) for _ in range(plan.requests))))


async def _count(stub: "pb_grpc.InferenceServiceAsyncStub", request: pb.GenerateRequest) -> int:
    count = 0
    async for response in stub.Generate(request):
        count += response.event.delta.num_tokens
    return count


@asynccontextmanager
async def _stack(settings: Settings, environ: dict[str, str]) -> AsyncIterator[Target]:
    before = set(find_descendants(os.getpid()))
    with _environment(environ):
        stack = run_own_stack(settings)
        own = await stack.__aenter__()
    try:
        pids = tuple(pid for pid in find_descendants(os.getpid()) if pid not in before)
        yield Target(own.target.address, pids)
    finally:
        await stack.__aexit__(None, None, None)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """While it lasts, processes that are started see `values`, and nothing else of OpenTelemetry's."""
    earlier = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    for name in earlier:
        del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(earlier)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def describe(cost: TracingCost) -> str:
    """For a terminal."""
    plan = cost.plan
    pairs = " ".join(f"{ratio:+.2%}" for ratio in cost.ratios)
    return (
        f"CPU time a token of all processes, {plan.pairs} pairs of two sittings with {plan.runs} runs a side in turn, "
        f"{plan.requests} requests of {plan.output_tokens} tokens each, {plan.share:.0%} of traces sampled\n"
        f"without {cost.us_per_token_without:.1f} us, with {cost.us_per_token_with:.1f} us\n"
        f"pairs {pairs}\n"
        f"overhead {_mean(cost.ratios):+.2%}, 95 % interval {cost.overhead.low:+.2%} to {cost.overhead.high:+.2%}\n"
    )
