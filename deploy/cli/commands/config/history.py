"""`chairlift config history`: lists the revisions of a running server's scheduling knobs, newest first."""

import argparse
import json

from chairlift.runtime.process import ExitCode
from deploy.cli.knobs import revision_facts, revision_line
from deploy.cli.operator import add_operator_flags, operator_port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of which replica."""
    parser.add_argument("--replica", default="", metavar="ID", help="only this replica (default: all)")
    parser.add_argument("--json", action="store_true", help="print them as JSON, with every knob's value")
    add_operator_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints them."""
    from chairlift.v1.ops_pb2 import GetConfigRequest

    request = GetConfigRequest(replica_id=arguments.replica, include_history=True)
    with operator_port(arguments) as port:
        answer = port.call(port.stub.GetConfig, request)
    told = []
    for replica in answer.replicas:
        revisions = [] if replica.HasField("failure") else [replica.current, *replica.history]
        told.append({"replica": replica.replica_id, "revisions": [revision_facts(one) for one in revisions]})
        if not arguments.json:
            if replica.HasField("failure"):
                print(f"{replica.replica_id}: {replica.failure.reason}: {replica.failure.message}")
            for one in revisions:
                print(f"{replica.replica_id}: {revision_line(one)}")
    if arguments.json:
        print(json.dumps(told, indent=2))
    return ExitCode.FAILED if any(not one["revisions"] for one in told) else ExitCode.OK
