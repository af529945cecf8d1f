"""Credentials on a real server: what is open and what is denied, whose request it is, renewal, refusals at start."""

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chairlift.ipc import front
from chairlift.ipc.common import CancelOutcome
from chairlift.runtime.addresses import AddressError
from chairlift.runtime.settings import Settings
from chairlift.runtime.token_hash import hash_token
from chairlift.v1 import inference_pb2 as pb
from chairlift.v1 import ops_pb2
from gateway.security.secret_files import SecretsError
from gateway.server import INFERENCE, OPS
from gateway.service import GatewayService

USERS = {"acme": "acme-token", "free": "free-token"}
FILE = f"""
[tenants.acme]
max_priority = 3
[tenants.free]
models = ["other"]
[tenants.reader]
methods = ["Tokenize"]
[[tokens]]
name = "acme-1"
hash = "{hash_token("acme-token")}"
tenant = "acme"
[[tokens]]
name = "free-1"
hash = "{hash_token("free-token")}"
tenant = "free"
[[tokens]]
name = "reader-1"
hash = "{hash_token("reader-token")}"
tenant = "reader"
[[tokens]]
name = "desk"
hash = "{hash_token("viewer-token")}"
role = "viewer"
[[tokens]]
name = "root"
hash = "{hash_token("admin-token")}"
role = "admin"
"""


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    path = tmp_path / "auth.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def start_guarded(start_rig: Callable[..., Any], auth_file: Path) -> Callable[..., Any]:
    """`async with start_guarded() as rig:` a gateway that asks for tokens."""
    return lambda **changes: start_rig(auth_file=str(auth_file), secret_poll_interval_s=0.05, **changes)


async def _code(rig: Any, call: Any) -> tuple[grpc.StatusCode, str]:
    error = await rig.caller.error(call)
    assert error.num_details == 1
    return error.code, error.info.reason


async def test_every_method_of_every_service_is_denied_by_default(start_guarded: Callable[..., Any]) -> None:
    """vllm#38295: the API key was ignored on gRPC."""
    async with start_guarded(health_without_auth=False) as rig:
        refused = (grpc.StatusCode.UNAUTHENTICATED, "MISSING_CREDENTIALS")
        for channel, service in ((rig.caller.channel, INFERENCE), (rig.caller.ops_channel, OPS)):
            names = [f"/{service.full_name}/{method.name}" for method in service.methods]
            others = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/who.Knows/What", "/nothing"]
            for name in [*names, *others, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]:
                assert await _code(rig, channel.unary_unary(name)(b"")) == refused, name
                assert await _code(rig, channel.unary_stream(name)(b"\xff" * 100)) == refused, name
        assert rig.scheduler.received == []


@pytest.mark.parametrize("metadata", [bearer("wrong"), (("authorization", "Basic YWNtZS10b2tlbg=="),), bearer("")])
async def test_bad_credentials_are_told_apart_from_none_and_not_quoted(
    start_guarded: Callable[..., Any], metadata: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_guarded() as rig:
        error = await rig.caller.error(rig.stub.Generate(pb.GenerateRequest(text="hi"), metadata=metadata))
        assert (error.code, error.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "INVALID_CREDENTIALS")
        assert "wrong" not in error.message
        assert 'code="UNAUTHENTICATED"' in rig.service._observer.exposition()
    assert "wrong" not in "".join(capsys.readouterr())


async def test_roles_on_both_ports(start_guarded: Callable[..., Any]) -> None:
    async with start_guarded() as rig:
        denied = (grpc.StatusCode.PERMISSION_DENIED, "METHOD_NOT_ALLOWED")
        load, drain = ops_pb2.GetLoadRequest(), ops_pb2.UndrainRequest(all=True)
        assert (await rig.ops.GetLoad(load, metadata=bearer("viewer-token"))).replicas
        assert await _code(rig, rig.ops.Undrain(drain, metadata=bearer("viewer-token"))) == denied
        assert await _code(rig, rig.ops.GetLoad(load, metadata=bearer("acme-token"))) == denied
        assert (await rig.ops.GetLoad(load, metadata=bearer("admin-token"))).replicas
        generate = pb.GenerateRequest(text="hi")
        for token in ("viewer-token", "admin-token", "reader-token"):
            assert await _code(rig, rig.stub.Generate(generate, metadata=bearer(token))) == denied
        assert (await rig.stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=bearer("reader-token"))).token_ids


async def test_health_is_open_and_reflection_is_not_unless_the_settings_say_so(
    start_guarded: Callable[..., Any],
) -> None:
    """Kubernetes' own gRPC probes carry no credentials."""
    for opens_reflection in (False, True):
        async with start_guarded(reflection_without_auth=opens_reflection) as rig:
            health: Any = health_pb2_grpc.HealthStub(rig.caller.channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == serving
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(rig.caller.channel)
            for metadata, is_open in (((), opens_reflection), (bearer("acme-token"), True)):
                call = stub.ServerReflectionInfo(metadata=metadata)
                if not is_open:
                    assert (await _code(rig, call))[1] == "MISSING_CREDENTIALS"
                    continue
                await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                assert (await call.read()).list_services_response.service
                call.cancel()


async def test_the_tenant_comes_from_the_token_and_travels_with_every_message(
    start_guarded: Callable[..., Any],
) -> None:
    async with start_guarded() as rig:
        metadata = bearer("acme-token")
        request = pb.GenerateRequest(text="hi", request_id="r", scheduling=pb.Scheduling(priority=50))
        call = rig.stub.Generate(request, metadata=metadata)
        submit = await rig.scheduler.accept()
        assert (submit.tenant, submit.priority) == ("acme", 3)
        resume = rig.stub.Resume(pb.ResumeRequest(request_id="r"), metadata=metadata)
        assert (await rig.scheduler.next(front.Attach)).tenant == "acme"
        cancel = rig.stub.Cancel(pb.CancelRequest(request_id="r"), metadata=metadata)
        asked = await rig.scheduler.next(front.Cancel)
        rig.scheduler.send(front.CancelReply(asked.query, CancelOutcome.WAS_RUNNING))
        assert (asked.tenant, (await cancel).outcome) == ("acme", pb.CANCEL_OUTCOME_WAS_RUNNING)
        explain = rig.stub.Explain(pb.ExplainRequest(request_id="r"), metadata=metadata)
        query = await rig.scheduler.next(front.ExplainQuery)
        rig.scheduler.send(front.QueryFailed(query.query, "UNKNOWN_REQUEST", ""))
        assert query.tenant == "acme"
        assert await _code(rig, explain) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST")
        limits = (await rig.stub.GetModel(pb.GetModelRequest(), metadata=metadata)).model.limits
        assert limits.max_priority == 3
        call.cancel()
        resume.cancel()


async def test_a_model_that_the_tenant_may_not_use(start_guarded: Callable[..., Any]) -> None:
    async with start_guarded() as rig:
        metadata = bearer("free-token")
        denied = (grpc.StatusCode.PERMISSION_DENIED, "MODEL_NOT_ALLOWED")
        assert await _code(rig, rig.stub.Generate(pb.GenerateRequest(text="hi"), metadata=metadata)) == denied
        assert await _code(rig, rig.stub.Tokenize(pb.TokenizeRequest(text="hi"), metadata=metadata)) == denied
        assert await _code(rig, rig.stub.GetModel(pb.GetModelRequest(), metadata=metadata)) == denied
        assert not (await rig.stub.ListModels(pb.ListModelsRequest(), metadata=metadata)).models


async def test_tokens_are_read_again_and_a_bad_file_leaves_the_old_ones(
    start_guarded: Callable[..., Any], auth_file: Path, tmp_path: Path
) -> None:
    """A mounted secret changes by a symlink that is swapped."""
    async with start_guarded() as rig:
        request = pb.TokenizeRequest(text="a")
        old, new = bearer("reader-token"), bearer("new-token")
        stream = rig.stub.Generate(pb.GenerateRequest(text="hi"), metadata=bearer("acme-token"))
        submit = await rig.scheduler.accept()

        async def is_known(metadata: Any) -> bool:
            call = rig.stub.Tokenize(request, metadata=metadata)
            code = await call.code()
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
            return code is grpc.StatusCode.OK

        for number, content in enumerate((FILE.replace(hash_token("reader-token"), hash_token("new-token")), "tokens")):
            target = tmp_path / f"v{number}"
            target.write_text(content)
            link = tmp_path / "link"
            link.symlink_to(target)
            link.replace(auth_file)
            if number == 0:
                async with asyncio.timeout(20):
                    while not await is_known(new):  # noqa: ASYNC110  # a poll of the server tells no event
                        await asyncio.sleep(0.02)
                assert not await is_known(old)
        (tmp_path / "empty").touch()
        os.mkfifo(tmp_path / "pipe")
        for bad in ("v1", "empty", "pipe"):
            link.symlink_to(tmp_path / bad)
            link.replace(auth_file)
            # The bad file is in place; two more polls change nothing.
            await asyncio.sleep(0.15)
            assert await is_known(new)
        # Whoever is in stays in.
        rig.scheduler.tokens(submit.handle, 0, 1)
        rig.scheduler.finish(submit.handle, 1)
        await rig.caller.events(stream)
        assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("kind", ["public", "ops"])
def test_a_port_for_the_world_without_credentials_is_refused_at_start(
    settings: Settings, byte_model: Any, byte_text: Any, auth_file: Path, kind: str
) -> None:
    name = "listen" if kind == "public" else "ops_listen"

    def service(**changes: Any) -> GatewayService:
        own = msgspec.structs.replace(settings.gateway, **{name: "0.0.0.0:0"}, **changes)
        return GatewayService(msgspec.structs.replace(settings, gateway=own), byte_model, byte_text)

    async def check() -> None:
        with pytest.raises(AddressError, match=f"gateway.{name} = 0.0.0.0:0: .*asks for no credentials"):
            service()
        for allowed in ({"allow_insecure_public": True}, {"auth_file": str(auth_file)}):
            await service(**allowed).close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auth_file": "nowhere.toml"}, "gateway.auth_file = nowhere.toml: No such file"),
        ({"tls_cert_file": "x.pem"}, "go together"),
        ({"tls_client_ca_file": "x.pem"}, "over TLS only"),
        ({"tls_cert_file": "x.pem", "tls_key_file": "y.pem"}, "x.pem"),
    ],
)
def test_secrets_that_cannot_be_had_are_named_at_start(
    settings: Settings, byte_model: Any, byte_text: Any, changes: Any, message: str
) -> None:
    own = msgspec.structs.replace(settings.gateway, **changes)
    with pytest.raises(SecretsError, match=message):
        GatewayService(msgspec.structs.replace(settings, gateway=own), byte_model, byte_text)


async def test_methods_that_do_not_exist_have_a_typed_refusal(rig: Any) -> None:
    for channel, name in itertools.product(
        (rig.caller.channel, rig.caller.ops_channel), ("/who.Knows/What", "/chairlift.v1.InferenceService/Nope")
    ):
        assert await _code(rig, channel.unary_unary(name)(b"")) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
