"""Who is let in: the credentials file, tokens by their hash, roles."""

import datetime
import json
from collections.abc import Callable

import pytest

from chairlift.runtime.token_hash import digest_of_hash, hash_token
from gateway.errors.api_error import ApiError
from gateway.security.authenticator import Authenticator
from gateway.security.credentials_file import CredentialsError, parse_credentials
from gateway.security.principal import INFERENCE_SERVICE, OPS_SERVICE, Principal, Role
from gateway.security.tokens import MAX_TOKEN_CHARS

FILE = f"""
[tenants.acme]
max_priority = 5
models = ["m"]
methods = ["Generate", "Cancel"]
[tenants.free]
[[tokens]]
name = "acme-1"
hash = "{hash_token("acme-token")}"
tenant = "acme"
[[tokens]]
name = "free-1"
hash = "{hash_token("free-token")}"
tenant = "free"
not_after = 2026-06-01T00:00:00Z
[[tokens]]
name = "desk"
hash = "{hash_token("viewer-token")}"
role = "viewer"
[[tokens]]
name = "root"
hash = "{hash_token("admin-token")}"
role = "admin"
""".encode()


@pytest.fixture
def authenticate() -> Callable[..., Principal]:
    """Who shows that token, in May 2026 unless told."""

    def _authenticate(token: str, now: str = "2026-05-01T00:00:00+00:00") -> Principal:
        authenticator = Authenticator(parse_credentials(FILE), lambda: datetime.datetime.fromisoformat(now))
        return authenticator.authenticate({"authorization": f"Bearer {token}"})

    return _authenticate


def _reason(error: "pytest.ExceptionInfo[ApiError]") -> str:
    return error.value.reason


def test_a_token_names_its_tenant_and_what_it_allows(authenticate: Callable[..., Principal]) -> None:
    principal = authenticate("acme-token")
    assert (principal.name, principal.tenant, principal.role) == ("acme-1", "acme", Role.USER)
    assert (principal.cap_priority(9), principal.cap_priority(-3)) == (5, -3)
    principal.check_model("m")
    with pytest.raises(ApiError) as error:
        principal.check_model("other")
    assert _reason(error) == "MODEL_NOT_ALLOWED"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic acme-token", "acme-token", "Bearer nope", "Bearer " + "x" * 10_000]
)
def test_anything_else_is_nobody(header: str) -> None:
    with pytest.raises(ApiError) as error:
        Authenticator(parse_credentials(FILE)).authenticate({"authorization": header})
    assert _reason(error) == ("INVALID_CREDENTIALS" if header else "MISSING_CREDENTIALS")
    assert "nope" not in str(error.value)


def test_a_token_ends_at_its_time(authenticate: Callable[..., Principal]) -> None:
    assert authenticate("free-token", "2026-05-31T23:59:59+00:00").tenant == "free"
    with pytest.raises(ApiError) as error:
        authenticate("free-token", "2026-06-01T02:00:00+02:00")
    assert _reason(error) == "INVALID_CREDENTIALS"


def test_the_scheme_is_read_in_any_case() -> None:
    authenticator = Authenticator(parse_credentials(FILE))
    assert authenticator.authenticate({"authorization": "bearer acme-token"}).name == "acme-1"


@pytest.mark.parametrize(
    ("token", "service", "method", "is_allowed"),
    [
        ("acme-token", INFERENCE_SERVICE, "Generate", True),
        ("acme-token", INFERENCE_SERVICE, "Resume", False),
        ("free-token", INFERENCE_SERVICE, "Resume", True),
        ("free-token", OPS_SERVICE, "GetLoad", False),
        ("viewer-token", OPS_SERVICE, "GetLoad", True),
        ("viewer-token", OPS_SERVICE, "ListRequests", True),
        ("viewer-token", OPS_SERVICE, "WatchIterations", True),
        ("viewer-token", OPS_SERVICE, "InspectRequest", False),
        ("viewer-token", OPS_SERVICE, "Drain", False),
        ("viewer-token", INFERENCE_SERVICE, "Generate", False),
        ("admin-token", OPS_SERVICE, "Drain", True),
        ("admin-token", INFERENCE_SERVICE, "Generate", False),
        ("free-token", "grpc.health.v1.Health", "Check", True),
    ],
)
def test_roles(authenticate: Callable[..., Principal], token: str, service: str, method: str, is_allowed: bool) -> None:
    principal = authenticate(token)
    if is_allowed:
        principal.check_method(service, method)
        return
    with pytest.raises(ApiError) as error:
        principal.check_method(service, method)
    assert _reason(error) == "METHOD_NOT_ALLOWED"


def test_without_tokens_everybody_is_the_default_tenant() -> None:
    principal = Authenticator(None).authenticate({})
    principal.check_method(OPS_SERVICE, "Drain")
    principal.check_method(INFERENCE_SERVICE, "Generate")
    assert principal.own_tenant == "default"


@pytest.mark.parametrize("content", [b"", b"\n# nothing yet\n", b"[tenants.a]", b"{}", b'{"tokens": []}'])
def test_a_file_without_tokens_is_refused(content: bytes) -> None:
    with pytest.raises(CredentialsError, match="every caller"):
        parse_credentials(content)


def test_json_does_as_well() -> None:
    content = {"tenants": {"a": {}}, "tokens": [{"name": "n", "hash": hash_token("t"), "tenant": "a"}]}
    assert parse_credentials(json.dumps(content).encode()).find("t") is not None


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ('[[tokens]]\nname="a"\nhash="sha256:00"\ntenant="x"', "tokens[0].hash"),
        (f'[[tokens]]\nname="a"\nhash="{hash_token("t")}"', "tokens[0].tenant"),
        (f'[[tokens]]\nname="a"\nhash="{hash_token("t")}"\ntenant="x"', "[tenants.x]"),
        (f'[[tokens]]\nname="a"\nhash="{hash_token("t")}"\nrole="root"', "$.tokens[0].role"),
        (f'[[tokens]]\nname="a"\nhash="{hash_token("t")}"\nrole="admin"\nsecret=1', "secret"),
        (f'[[tokens]]\nname="a"\nhash="{hash_token("t")}"\nrole="admin"\nnot_after=2027-01-01T00:00:00', "not_after"),
        (f'[tenants.x]\nmethods=["Delete"]\n[[tokens]]\nname="a"\nhash="{hash_token("t")}"', "tenants.x.methods"),
        (f'[[tokens]]\nname="a\\n"\nhash="{hash_token("t")}"\nrole="admin"', "$.tokens[0].name"),
        ("tokens = [", "neither TOML nor JSON"),
        ('{"tokens": [', "neither TOML nor JSON"),
    ],
)
def test_a_bad_file_says_where(content: str, where: str) -> None:
    with pytest.raises(CredentialsError) as error:
        parse_credentials(content.encode())
    assert where in str(error.value)


def test_names_and_hashes_occur_once() -> None:
    entry = '[[tokens]]\nname="{}"\nhash="' + hash_token("t") + '"\nrole="admin"\n'
    with pytest.raises(CredentialsError, match="'a' occurs twice"):
        parse_credentials((entry.format("a") * 2).encode())
    with pytest.raises(CredentialsError, match="also that of 'a'"):
        parse_credentials((entry.format("a") + entry.format("b")).encode())


def test_a_token_written_in_place_of_its_hash_is_not_quoted() -> None:
    with pytest.raises(CredentialsError) as error:
        parse_credentials(b'[[tokens]]\nname="a"\nhash="the-token-itself"\nrole="admin"')
    assert "the-token-itself" not in str(error.value)


def test_hashes() -> None:
    assert digest_of_hash(hash_token("x" * MAX_TOKEN_CHARS)) != digest_of_hash(hash_token("y"))
    for bad in ("", "sha256:", "sha256:zz", "md5:" + "0" * 64, "0" * 64):
        with pytest.raises(ValueError, match=r"sha256|hexadecimal"):
            digest_of_hash(bad)
