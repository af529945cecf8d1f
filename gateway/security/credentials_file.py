"""The file that says which token is whose, TOML or JSON. No secret is in it: tokens stand there by their hash.

[tenants.acme]
max_priority = 10                  # of this tenant's requests
models = ["smollm2-135m"]          # default: all
methods = ["Generate", "Resume"]   # of the inference service; default: all

[[tokens]]
name = "acme-batch"                # for audit lines and logs
hash = "sha256:…"                  # printed by `chairlift token new`
tenant = "acme"
role = "user"                      # user (default), viewer, admin
not_after = 2027-01-01T00:00:00Z   # default: never ends
"""

import datetime
import tomllib
from typing import Annotated

import msgspec
from msgspec import Meta

from chairlift.runtime.token_hash import NAME_PATTERN, digest_of_hash
from chairlift.v1 import inference_pb2
from gateway.security.principal import Principal, Role
from gateway.security.tokens import HashedTokens

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
_METHODS = frozenset(inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods_by_name)


class CredentialsError(ValueError):
    """A credentials file that cannot be used; the message says where and why, and quotes no hash."""


class _Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    models: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None


class _Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name
    hash: str
    tenant: Name | None = None
    role: Role = Role.USER
    not_after: Annotated[datetime.datetime, Meta(tz=True)] | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tenants: dict[Name, _Tenant] = {}
    tokens: tuple[_Token, ...] = ()


class Credential(msgspec.Struct, frozen=True):
    """What one token stands for."""

    principal: Principal
    not_after: datetime.datetime | None

    def is_valid_at(self, now: datetime.datetime) -> bool:
        """Whether its time is not over."""
        return self.not_after is None or now < self.not_after


def parse_credentials(content: bytes) -> HashedTokens[Credential]:
    """The tokens of a file. Raises CredentialsError."""
    parsed = _decode(content)
    if not parsed.tokens:
        # What a cut write leaves would lock everybody out.
        raise CredentialsError("no [[tokens]] are in it: every caller would be refused")
    for name, tenant in parsed.tenants.items():
        unknown = sorted(set(tenant.methods or ()) - _METHODS)
        if unknown:
            raise CredentialsError(f"tenants.{name}.methods: the inference service has no {unknown[0]!r}")
    entries: dict[bytes, Credential] = {}
    names = set[str]()
    for index, token in enumerate(parsed.tokens):
        where = f"tokens[{index}]"
        if token.name in names:
            raise CredentialsError(f"{where}.name: {token.name!r} occurs twice")
        names.add(token.name)
        digest = _digest(token.hash, where)
        if digest in entries:
            raise CredentialsError(f"{where}.hash: is also that of {entries[digest].principal.name!r}")
        entries[digest] = Credential(_principal(token, parsed, where), token.not_after)
    return HashedTokens(entries.items())


def _decode(content: bytes) -> _File:
    try:
        if content.lstrip()[:1] == b"{":
            return msgspec.json.decode(content, type=_File)
        return msgspec.convert(tomllib.loads(content.decode()), _File)
    except msgspec.ValidationError as error:
        raise CredentialsError(str(error)) from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CredentialsError(f"neither TOML nor JSON ({type(error).__name__})") from None


def _digest(text: str, where: str) -> bytes:
    try:
        return digest_of_hash(text)
    except ValueError:
        # Whatever stands there may be the token itself.
        raise CredentialsError(f"{where}.hash: expected sha256: and 64 hexadecimal digits") from None


def _principal(token: _Token, parsed: _File, where: str) -> Principal:
    if token.tenant is None:
        if token.role is Role.USER:
            raise CredentialsError(f"{where}.tenant: a token of role user belongs to a tenant")
        return Principal(name=token.name, role=token.role, tenant=None)
    tenant = parsed.tenants.get(token.tenant)
    if tenant is None:
        raise CredentialsError(f"{where}.tenant: there is no [tenants.{token.tenant}]; it may be empty")
    return Principal(
        name=token.name,
        role=token.role,
        tenant=token.tenant,
        models=None if tenant.models is None else frozenset(tenant.models),
        methods=None if tenant.methods is None else frozenset(tenant.methods),
        max_priority=tenant.max_priority,
    )
