"""`chairlift config get`: shows the scheduling knobs that are in force in a running server."""

import argparse
import json

from chairlift.runtime.process import ExitCode
from deploy.cli.knobs import check_knob, knob_values, revision_facts, revision_line, show
from deploy.cli.operator import add_operator_flags, operator_port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which knobs of which replica."""
    parser.add_argument("knobs", nargs="*", metavar="KEY", help="only these (default: all)")
    parser.add_argument("--replica", default="", metavar="ID", help="only this replica (default: all)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_operator_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints KEY=VALUE lines, ready for `config set`."""
    from chairlift.v1.ops_pb2 import GetConfigRequest

    wanted = [check_knob(key) for key in arguments.knobs]
    with operator_port(arguments) as port:
        answer = port.call(port.stub.GetConfig, GetConfigRequest(replica_id=arguments.replica))
    exit_code = ExitCode.OK
    told = []
    for replica in answer.replicas:
        if replica.HasField("failure"):
            exit_code = ExitCode.FAILED
            told.append({"replica": replica.replica_id, "failure": replica.failure.reason})
            if not arguments.json:
                print(f"# {replica.replica_id}: {replica.failure.reason}: {replica.failure.message}")
            continue
        told.append({"replica": replica.replica_id, **revision_facts(replica.current)})
        if not arguments.json:
            print(f"# {replica.replica_id}: {revision_line(replica.current)}")
            for name, value in knob_values(replica.current.config).items():
                if not wanted or name in wanted:
                    print(f"{name}={show(value)}")
    if arguments.json:
        print(json.dumps(told, indent=2))
    return exit_code
