"""`chairlift config rollback`: brings back the scheduling knobs of an earlier revision."""

import argparse

from deploy.cli.knobs import print_results
from deploy.cli.operator import add_change_flags, operator_port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which revision, and under which circumstances."""
    parser.add_argument("revision", nargs="?", type=int, metavar="REVISION", help="default: the one before")
    parser.add_argument("--expect", type=int, metavar="N", help="only if revision N is in force")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_change_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Makes its values a new revision."""
    from chairlift.v1.ops_pb2 import RollbackConfigRequest

    request = RollbackConfigRequest(
        replica_id=arguments.replica,
        revision=arguments.revision,
        expected_revision=arguments.expect,
        comment=arguments.comment,
    )
    with operator_port(arguments) as port:
        answer = port.call(port.stub.RollbackConfig, request)
    return print_results(answer.replicas, as_json=arguments.json)
