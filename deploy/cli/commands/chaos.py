"""`chairlift chaos`: loads a stack of its own, breaks it by a seeded schedule, and proves that no stream is lost."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.arguments import at_most, new_file, non_negative_int, seconds
from deploy.cli.bench_errors import bench_errors
from deploy.cli.errors import CommandError
from deploy.cli.request_flags import TOKEN_ENV, add_credential_flags, connection_options
from deploy.cli.stack_flags import add_model_flags, settings_from

if TYPE_CHECKING:
    from deploy.bench.chaos.security import Security

_BENEATH = (
    "model.max_model_len=1024",
    "worker.deterministic=true",
    "worker.num_threads=1",
    "worker.kv_cache_bytes=100000000",
    "scheduler.drain_timeout_s=3",
    "gateway.drain_timeout_s=3",
    "supervisor.max_restarts=1000000",
    "supervisor.max_restart_backoff_s=1",
    "supervisor.restart_window_s=5",
    "telemetry.log_format=json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long, how seeded, and the settings of the stack."""
    parser.add_argument("--seconds", type=seconds, default=120.0, metavar="S", help="of load with faults (120)")
    parser.add_argument("--seed", type=non_negative_int, default=0, metavar="N", help="of load and faults (0)")
    parser.add_argument("--replicas", type=at_most(64), default=2, metavar="N", help="schedulers with a worker (2)")
    parser.add_argument("--gateways", type=at_most(64), default=2, metavar="N", help="gateways on one port (2)")
    parser.add_argument("--users", type=at_most(10_000), default=8, metavar="N", help="streams at a time (8)")
    parser.add_argument("--jobs", type=at_most(10_000), default=16, metavar="N", help="different requests (16)")
    parser.add_argument("--log", type=new_file, metavar="FILE", help="keep what the processes write")
    parser.add_argument("--report", type=new_file, metavar="FILE.md", help="write a report, with plots beside it")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--root-net",
        action="store_true",
        help="links between network namespaces of the run's own, hurt by iptables and tc (needs root)",
    )
    parser.add_argument(
        "--secure", action="store_true", help="TLS, tokens of two tenants and encrypted links, by keys made for the run"
    )
    add_credential_flags(parser.add_argument_group("where the settings ask for credentials"), TOKEN_ENV)
    add_model_flags(parser)
    parser.epilog = (
        "Exit code 0 only when no stream, token, KV block, process or socket was lost, doubled or left, and every\n"
        "kind of fault was injected. Needs Linux."
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs and reports."""
    with bench_errors(), tempfile.TemporaryDirectory(prefix="chairlift-chaos-") as folder:
        from deploy.bench.chaos.document import write_document
        from deploy.bench.chaos.report import render_table
        from deploy.bench.chaos.run import ChaosOptions, run_chaos
        from deploy.bench.output.machine_line import describe_here

        options = ChaosOptions(
            seconds=arguments.seconds,
            seed=arguments.seed,
            num_replicas=arguments.replicas,
            num_gateways=arguments.gateways,
            num_users=arguments.users,
            num_jobs=arguments.jobs,
            log=arguments.log or Path(folder) / "stack.log",
            is_root_net=arguments.root_net,
        )
        with _security(arguments) as security:
            report = run_chaos(security, options)
        if arguments.report is not None:
            write_document(report, arguments.report, describe_here())
        if arguments.json:
            sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        else:
            sys.stdout.write(render_table(report))
    return ExitCode.OK if report.is_clean else ExitCode.FAILED


@contextmanager
def _security(arguments: argparse.Namespace) -> "Iterator[Security]":
    from deploy.bench.chaos.security import Security, throw_away_security

    settings, given = settings_from(arguments, beneath=_BENEATH), connection_options(arguments, "")
    if not arguments.secure:
        token, tls = given["token"], given["tls"]
        conditions = "credentials as given" if token or tls else "no credentials"
        yield Security(settings=settings, users=(token,), operator=token, tls=tls, conditions=conditions)
        return
    if arguments.token_file or given["tls"]:
        raise CommandError("--secure makes its own credentials: give none", ExitCode.USAGE)
    with throw_away_security(settings) as security:
        yield security
