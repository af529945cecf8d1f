"""`chairlift token new`: makes a token; prints its entry for gateway.auth_file, which holds its hash only."""

import argparse
import json
import re
import sys
from pathlib import Path

from chairlift.runtime.process import ExitCode
from chairlift.runtime.token_hash import NAME_PATTERN, hash_token, new_token
from deploy.cli.errors import CommandError
from deploy.cli.secret_output import write_secret

_ROLES = ("user", "viewer", "admin")
_NAME_RULE = "expected 1 to 64 of A-Z, a-z, 0-9 and ._@/-, and a letter or digit first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose it is, and where it goes."""
    parser.add_argument("--name", required=True, help="of the token, for logs and audit lines")
    parser.add_argument("--tenant", help="whose requests it makes; the file needs a [tenants.NAME]")
    parser.add_argument("--role", choices=_ROLES, default="user", help="user of a tenant, or of the operator's port")
    parser.add_argument("--out", type=Path, metavar="FILE", help="gets the token (default: shown once, on stderr)")


def run(arguments: argparse.Namespace) -> int:
    """The entry to standard output, so that it can be appended to the file; the token elsewhere."""
    if arguments.role == "user" and arguments.tenant is None:
        raise CommandError("a token of role user belongs to a tenant: give --tenant", ExitCode.USAGE)
    for flag, name in (("--name", arguments.name), ("--tenant", arguments.tenant)):
        if name is not None and re.search(NAME_PATTERN, name) is None:
            raise CommandError(f"{flag}: {_NAME_RULE}", ExitCode.USAGE)
    token = new_token()
    entry = {"name": arguments.name, "hash": hash_token(token), "tenant": arguments.tenant, "role": arguments.role}
    if arguments.out is not None:
        write_secret(arguments.out, f"{token}\n")
    else:
        print(f"The token, which is not kept anywhere: {token}", file=sys.stderr)
    # A JSON string is a TOML string as well.
    lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items() if value is not None]
    print("\n".join(["[[tokens]]", *lines]))
    return ExitCode.OK
