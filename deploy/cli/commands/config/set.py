"""`chairlift config set`: changes scheduling knobs of a running server, between two iterations."""

import argparse

from deploy.cli.guard_flags import GUARD_HELP, parse_guard
from deploy.cli.knobs import DEFAULT, parse_assignments, print_results
from deploy.cli.operator import add_change_flags, operator_port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Knobs, and under which circumstances."""
    parser.add_argument(
        "assignments",
        nargs="+",
        metavar="KEY=VALUE",
        help=f"a knob of [scheduler]; {DEFAULT}: as the device decides",
    )
    parser.add_argument("--expect", type=int, metavar="N", help="only if revision N is in force")
    parser.add_argument("--guard", metavar="METRIC<=BOUND@SECONDS", help=GUARD_HELP)
    parser.add_argument("--dry-run", action="store_true", help="only check whether it would be taken")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_change_flags(parser)
    parser.epilog = (
        "All knobs change at once or none does. The change is a new revision: see `chairlift config history`, undo it\n"
        "with `chairlift config rollback`. It is lost at a restart unless it is written to the settings file too."
    )


def run(arguments: argparse.Namespace) -> int:
    """Changes them."""
    from google.protobuf.field_mask_pb2 import FieldMask

    from chairlift.v1.ops_pb2 import UpdateConfigRequest

    config, names = parse_assignments(arguments.assignments)
    request = UpdateConfigRequest(
        config=config,
        update_mask=FieldMask(paths=names),
        expected_revision=arguments.expect,
        replica_id=arguments.replica,
        guard=parse_guard(arguments.guard) if arguments.guard else None,
        validate_only=arguments.dry_run,
        comment=arguments.comment,
    )
    with operator_port(arguments) as port:
        answer = port.call(port.stub.UpdateConfig, request)
    return print_results(answer.replicas, as_json=arguments.json)
