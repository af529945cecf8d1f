"""What the shared arguments stand for: target, client, workload, load, objectives."""

import argparse
import os

from deploy.bench.arguments import DEFAULT_CONCURRENCY, DEFAULT_NUM_REQUESTS, DEFAULT_OPS, DEFAULT_TARGET
from deploy.bench.figures.slo import Objectives, parse_objectives
from deploy.bench.load.arrivals import Arrivals
from deploy.bench.load.client import StreamClient
from deploy.bench.load.clock import Clock
from deploy.bench.load.generator import LoadPlan
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget
from deploy.bench.load.openai_client import OpenAIClient, OpenAIOptions
from deploy.bench.tenants import read_tenant_keys
from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.names import SPARSE_RATE, WORKLOADS, WorkloadError
from deploy.bench.workload.request import Workload

API_KEY_ENV = "CHAIRLIFT_API_KEY"


def read_objectives(arguments: argparse.Namespace) -> Objectives:
    """Raises ObjectiveError."""
    return parse_objectives(arguments.goodput)


def read_target(arguments: argparse.Namespace) -> GrpcTarget:
    """The public port. Raises TenantKeysError."""
    return GrpcTarget(
        address=arguments.target,
        api_key=os.environ.get(API_KEY_ENV),
        tenant_keys=read_tenant_keys(arguments.workload, arguments.tenant_keys),
        tls=arguments.tls,
        tls_ca=arguments.tls_ca,
    )


def read_ops_target(arguments: argparse.Namespace) -> GrpcTarget | None:
    """The operator's port; None: none is known."""
    address = arguments.ops or (DEFAULT_OPS if arguments.target == DEFAULT_TARGET else None)
    if address is None:
        return None
    return GrpcTarget(address=address, api_key=os.environ.get(API_KEY_ENV), tls=arguments.tls, tls_ca=arguments.tls_ca)


def open_client(arguments: argparse.Namespace, clock: Clock) -> StreamClient:
    """By gRPC, or by HTTP where ``--openai`` was given. Raises TargetError, TenantKeysError."""
    if getattr(arguments, "openai", None):
        return OpenAIClient(
            OpenAIOptions(
                base_url=arguments.openai,
                model=arguments.model,
                api_key=os.environ.get(API_KEY_ENV),
                prompt_form=arguments.prompt_form,
                extra_body=arguments.extra_body,
            ),
            clock,
        )
    return GrpcClient(read_target(arguments), clock, arguments.connections)


def read_workload(
    arguments: argparse.Namespace, vocab_size: int | None, max_model_len: int | None, *, seed_shift: int = 0
) -> Workload:
    """Raises WorkloadError."""
    return find_workload(
        arguments.workload,
        WorkloadOptions(
            seed=arguments.seed + seed_shift,
            vocab_size=vocab_size,
            prompt=arguments.prompt_tokens,
            output=arguments.output_tokens,
            abandon_share=0.0 if seed_shift else arguments.abandon_share,
            length_scale=arguments.length_scale,
            max_model_len=max_model_len,
        ),
    )


def read_plan(arguments: argparse.Namespace, *, wants_ids: bool = False) -> LoadPlan:
    """The load. Raises WorkloadError on a contradiction."""
    is_trace = arguments.workload not in WORKLOADS
    if arguments.replay_speed is not None and (arguments.rate is not None or not is_trace):
        raise WorkloadError("--replay-speed is for traces, without --rate")
    rate, speed, concurrency = arguments.rate, arguments.replay_speed, arguments.concurrency
    if rate is None and speed is None and concurrency is None:
        match arguments.workload:
            case "sparse":
                rate = SPARSE_RATE
            case "peers-mixed" | "peers-single" | "peers-prefill":
                pass  # all at once, as they are defined
            case _ if is_trace:
                speed = 1.0
            case _:
                concurrency = DEFAULT_CONCURRENCY
    elif rate == float("inf"):
        rate = None
    num_sessions = arguments.num_requests
    if num_sessions is None and arguments.duration is None:
        num_sessions = DEFAULT_NUM_REQUESTS
    return LoadPlan(
        arrivals=None if rate is None else Arrivals(rate=rate, burstiness=arguments.burstiness, seed=arguments.seed),
        replay_speed=speed,
        concurrency=concurrency,
        num_sessions=num_sessions,
        duration_s=arguments.duration,
        timeout_s=arguments.timeout,
        wants_ids=wants_ids,
    )
