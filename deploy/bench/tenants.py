"""Credentials for workloads with several tenants: those of a stack of one's own, and a user's from a file."""

import hashlib
import secrets
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from chairlift.runtime.settings import Settings
from deploy.bench.errors import BenchUsageError
from deploy.bench.workload.names import tenants_of

_OWN = "bench"
"""The tenant that asks what is served, and may do everything on the operator's port."""


class TenantKeysError(BenchUsageError):
    """Tokens of tenants that are missing or cannot be read. The message names the file or the tenant."""


class OwnCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a stack that knows the tenants, and what to show it. Empty where a workload has no tenants."""

    settings: Settings
    api_key: str | None = None
    tenant_keys: dict[str, str] = {}


@contextmanager
def own_credentials(settings: Settings, tenants: Sequence[str]) -> Iterator[OwnCredentials]:
    """Fresh tokens, which a file knows by their hashes for as long as the block runs.

    Without `tenants` the settings stay as they are.
    """
    if not tenants:
        yield OwnCredentials(settings=settings)
        return
    keys = {tenant: secrets.token_urlsafe(32) for tenant in (_OWN, *tenants)}
    with tempfile.TemporaryDirectory(prefix="chairlift-bench-") as folder:
        path = Path(folder) / "credentials.toml"
        path.write_text(_render(keys), encoding="utf-8")
        gateway = msgspec.structs.replace(settings.gateway, auth_file=str(path))
        yield OwnCredentials(
            settings=msgspec.structs.replace(settings, gateway=gateway), api_key=keys.pop(_OWN), tenant_keys=keys
        )


def read_tenant_keys(workload: str, path: Path | None) -> dict[str, str]:
    """From a TOML file with a line ``tenant = "token"`` each, all that the workload called so needs.

    Raises TenantKeysError.
    """
    wanted = tenants_of(workload)
    if not wanted:
        return {}
    if path is None:
        raise TenantKeysError(
            f"{workload}: its tenants are {', '.join(wanted)}: give their tokens by --tenant-keys FILE"
        )
    try:
        keys = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, str])
    except OSError as error:
        raise TenantKeysError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError):
        # The parser's own message could quote a token.
        raise TenantKeysError(f'{path}: expected lines of the form tenant = "token"') from None
    missing = [tenant for tenant in wanted if tenant not in keys]
    if missing:
        raise TenantKeysError(f"{path}: no token for {', '.join(missing)}")
    return {tenant: keys[tenant] for tenant in wanted}


def _render(keys: dict[str, str]) -> str:
    lines: list[str] = []
    for tenant, key in keys.items():
        role = "admin" if tenant == _OWN else "user"
        hashed = hashlib.sha256(key.encode()).hexdigest()
        lines += [f"[tenants.{tenant}]", "[[tokens]]", f'name = "{tenant}"', f'tenant = "{tenant}"']
        lines += [f'role = "{role}"', f'hash = "sha256:{hashed}"', ""]
    return "\n".join(lines)
