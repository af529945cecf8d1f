"""What `chairlift serve` prints when all is ready: addresses, model, limits in force, one call to try.

Everything about the model comes from the gateway itself, so that the banner is also the first end-to-end check.
"""

from collections.abc import Iterator

import grpc
import grpc.aio
import msgspec

import chairlift
from chairlift.client import DEFAULT_TARGET, AsyncClient, Model, RetryPolicy
from chairlift.runtime.addresses import Address
from chairlift.v1 import ops_pb2 as ops
from chairlift.v1 import ops_pb2_grpc as ops_grpc
from deploy.launcher.stack import Stack

_TIMEOUT_S = 30.0
_PATIENT = RetryPolicy(max_attempts=20)


class Facts(msgspec.Struct, frozen=True):
    """What the gateway says of itself."""

    model: Model
    max_num_seqs: int | None
    max_num_batched_tokens: int | None


async def ask_facts(stack: Stack) -> Facts:
    """Asks the running gateway. Raises ChairliftError when it does not answer."""
    async with AsyncClient(str(stack.public.for_clients()), timeout=_TIMEOUT_S, retry=_PATIENT) as client:
        model = await client.get_model()
    config = await _scheduling_config(stack.ops[0])
    return Facts(model, config.max_num_seqs or None, config.max_num_batched_tokens or None)


def render_banner(stack: Stack, facts: Facts, *, is_coloured: bool) -> str:
    """The text, with a line feed at its end."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if is_coloured else ("", "")
    lines = [f"{bold}chairlift {chairlift.__version__} serves {_describe_model(stack, facts.model)}{plain}"]
    lines += [f"  {name:<9} {text}" for name, text in _rows(stack, facts)]
    return "\n".join(lines) + "\n"


def _rows(stack: Stack, facts: Facts) -> Iterator[tuple[str, str]]:
    target = stack.public.for_clients()
    option = "" if str(target) == DEFAULT_TARGET else f"--target {target} "
    yield "gRPC", f"{stack.public} (chairlift.v1.InferenceService)"
    if stack.http is not None:
        yield "HTTP", f"http://{stack.http}/v1 (OpenAI's chat and text completions)"
    yield "operator", ", ".join(str(address) for address in stack.ops)
    yield "probes", ", ".join(f"{name} http://{address.for_clients()}/readyz" for name, address in stack.probes.items())
    yield "limits", " · ".join(_limits(facts))
    yield "try", f'chairlift generate {option}"The best thing about trains is"'
    yield "stop", "Ctrl-C drains and ends"


def _describe_model(stack: Stack, model: Model) -> str:
    weights = f"{model.num_parameters / 1e6:,.0f}M weights, " if model.num_parameters else ""
    stored = f" (stored as {model.quantization})" if model.quantization not in ("", "none") else ""
    return f"{model.id}: {weights}{model.dtype} on {stack.settings.worker.device}{stored}"


def _limits(facts: Facts) -> Iterator[str]:
    model = facts.model
    yield f"context {model.context_length:,} tokens"
    yield f"KV cache {model.kv_capacity_tokens:,} tokens"
    if facts.max_num_seqs is not None:
        yield f"{facts.max_num_seqs:,} sequences and {facts.max_num_batched_tokens or 0:,} tokens a step"
    yield f"queue {model.limits.max_num_queued_reqs:,} requests"


async def _scheduling_config(address: Address) -> ops.SchedulingConfig:
    """The knobs in force; empty where this gateway does not tell them."""
    async with grpc.aio.insecure_channel(
        str(address.for_clients()), options=(("grpc.enable_http_proxy", 0),)
    ) as channel:
        try:
            reply = await ops_grpc.OpsServiceStub(channel).GetConfig(ops.GetConfigRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return ops.SchedulingConfig()
    return reply.replicas[0].current.config if reply.replicas else ops.SchedulingConfig()
