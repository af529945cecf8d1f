"""What `chairlift serve` prints when all is ready: addresses, model, limits in force, one call to try.

Everything about the model comes from the gateway itself, so that the banner is also the first end-to-end check. One
that asks for credentials is not asked: a supervisor holds none.
"""

from collections.abc import Iterator

import grpc
import grpc.aio
import msgspec

import chairlift
from chairlift.client import DEFAULT_TARGET, AsyncClient, Model, RetryPolicy
from chairlift.runtime.addresses import Address
from chairlift.runtime.settings import GatewaySettings
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


async def ask_facts(stack: Stack) -> Facts | None:
    """Asks the running gateway; None where it asks for credentials. Raises ChairliftError when it does not answer."""
    gateway = stack.settings.gateway
    if gateway.auth_file is not None or gateway.tls_cert_file is not None:
        return None
    async with AsyncClient(str(stack.public.for_clients()), timeout=_TIMEOUT_S, retry=_PATIENT) as client:
        model = await client.get_model()
    config = await _scheduling_config(stack.ops[0])
    return Facts(model, config.max_num_seqs or None, config.max_num_batched_tokens or None)


def render_banner(stack: Stack, facts: Facts | None, *, is_coloured: bool) -> str:
    """The text, with a line feed at its end."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if is_coloured else ("", "")
    model = stack.settings.model.source if facts is None else _describe_model(stack, facts.model)
    lines = [f"{bold}chairlift {chairlift.__version__} serves {model}{plain}"]
    lines += [f"  {name:<9} {text}" for name, text in _rows(stack, facts)]
    return "\n".join(lines) + "\n"


def _rows(stack: Stack, facts: Facts | None) -> Iterator[tuple[str, str]]:
    target = stack.public.for_clients()
    option = "" if str(target) == DEFAULT_TARGET else f"--target {target} "
    yield "gRPC", f"{stack.public} (chairlift.v1.InferenceService)"
    if stack.http is not None:
        yield "HTTP", f"http://{stack.http}/v1 (OpenAI's chat and text completions)"
    yield "operator", ", ".join(str(address) for address in stack.ops)
    yield "probes", ", ".join(f"{name} http://{address.for_clients()}/readyz" for name, address in stack.probes.items())
    yield "security", ", ".join(_security(stack.settings.gateway))
    if facts is not None:
        yield "limits", " · ".join(_limits(facts))
    yield "try", f'chairlift generate {option}{_credentials(stack.settings.gateway)}"The best thing about trains is"'
    yield "stop", "Ctrl-C drains and ends"


def _security(gateway: GatewaySettings) -> Iterator[str]:
    """Names of files at most: what is in them is nobody's business here."""
    yield "anybody may call" if gateway.auth_file is None else f"tokens by {gateway.auth_file}"
    if gateway.tls_cert_file is None:
        yield "no TLS"
    else:
        yield "TLS" if gateway.tls_client_ca_file is None else "TLS with client certificates"


def _credentials(gateway: GatewaySettings) -> str:
    token = "" if gateway.auth_file is None else "--token-file FILE "
    if gateway.tls_cert_file is None:
        return token
    return f"{token}--tls-ca FILE " + ("" if gateway.tls_client_ca_file is None else "--tls-cert FILE --tls-key FILE ")


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
    """The knobs in force; empty where this gateway does not tell them, or not now: a scheduler may be coming back."""
    async with grpc.aio.insecure_channel(
        str(address.for_clients()), options=(("grpc.enable_http_proxy", 0),)
    ) as channel:
        try:
            reply = await ops_grpc.OpsServiceStub(channel).GetConfig(ops.GetConfigRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return ops.SchedulingConfig()
    return reply.replicas[0].current.config if reply.replicas else ops.SchedulingConfig()
