"""`chairlift keys new`: makes a CURVE key for one process; prints its public half."""

import argparse
from pathlib import Path

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError
from deploy.cli.secret_output import write_secret


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the secret half goes."""
    parser.add_argument("file", type=Path, metavar="FILE", help="gets the secret key, for ipc.curve_secret_key_file")
    parser.epilog = (
        "The public key goes into the lists of the other processes: that of a gateway into\n"
        "ipc.curve_gateway_keys_file of the schedulers, that of a worker into ipc.curve_worker_keys_file, that of a\n"
        "scheduler into ipc.curve_scheduler_keys_file of gateways and workers."
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes one, prints the other."""
    from chairlift.runtime.curve import CurveError, new_key_pair, secret_file_text

    try:
        pair = new_key_pair()
    except CurveError as error:
        raise CommandError(str(error)) from None
    write_secret(arguments.file, secret_file_text(pair))
    print(pair.public.decode())
    return ExitCode.OK
