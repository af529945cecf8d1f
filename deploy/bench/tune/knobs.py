"""A running server's knobs, read and moved by its operator's port: each replica for itself, each change on a revision.

Knows the port's messages, nothing of trials.
"""

from collections.abc import Iterable
from typing import Self

import grpc.aio
import msgspec
from google.protobuf import duration_pb2, field_mask_pb2

from chairlift.v1 import ops_pb2, ops_pb2_grpc
from deploy.bench.load.client import TargetError
from deploy.bench.load.grpc_client import GrpcTarget, connect, describe_error, open_channel
from deploy.bench.tune.trial import KnobValue, SettingRefusedError

LADDERS = {
    "itl_target_ms": (10.0, 20.0, 40.0, 80.0, 160.0),
    "max_num_batched_tokens": (64, 128, 256, 512, 1024, 2048, 4096),
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256),
}
"""The knobs that are moved, and the values tried, ascending."""
NO_ITL_TARGET = float("inf")
"""What no target comes to: gaps may be of any length."""
_CALL_TIMEOUT_S = 10.0


class WrongRevisionError(TargetError):
    """Another revision is in force than the one that was to be changed."""


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica runs with."""

    replica_id: str
    revision: int
    knobs: dict[str, KnobValue]
    actor: str
    """Who made the revision; empty for the scheduler itself."""
    is_taken_back: bool
    """Whether a guard took the change before it back."""


class KnobClient:
    """Of one server. An async context manager. Its methods raise TargetError where it cannot be asked."""

    def __init__(self, ops: GrpcTarget) -> None:
        """Changes need the credentials of an administrator."""
        connection = connect(ops)
        self._address = ops.address
        self._metadata = connection.metadata
        self._channel = open_channel(connection)
        self._stub: ops_pb2_grpc.OpsServiceAsyncStub = ops_pb2_grpc.OpsServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of the connection."""
        await self._channel.close()

    async def read(self, *, is_patient: bool = False) -> list[InForce]:
        """Of every replica; at least one. `is_patient` waits some seconds for a gateway that is not there."""
        try:
            answer = await self._stub.GetConfig(
                ops_pb2.GetConfigRequest(),
                metadata=self._metadata,
                timeout=_CALL_TIMEOUT_S,
                wait_for_ready=is_patient,
            )
        except grpc.aio.AioRpcError as error:
            raise TargetError(f"{self._address}: GetConfig: {describe_error(error)}") from None
        return [_in_force(one) for one in _check(answer.replicas)]

    async def change(self, at: InForce, changes: dict[str, KnobValue], guard: ops_pb2.Guard, comment: str) -> InForce:
        """`changes` go over the revision `at`. Raises SettingRefusedError and WrongRevisionError too."""
        config = ops_pb2.SchedulingConfig()
        for name, value in changes.items():
            if (told := _to_wire(name, value)) is not None:
                setattr(config, name, told)
        request = ops_pb2.UpdateConfigRequest(
            config=config,
            update_mask=field_mask_pb2.FieldMask(paths=sorted(changes)),
            expected_revision=at.revision,
            replica_id=at.replica_id,
            guard=guard,
            comment=comment,
        )
        try:
            answer = await self._stub.UpdateConfig(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._refusal(at, "UpdateConfig", error) from None
        return _in_force(_check(answer.replicas)[0])

    async def roll_back(self, at: InForce, revision: int, comment: str) -> InForce:
        """Makes the values of `revision` a new one, over the revision `at`. Raises as `change` does."""
        request = ops_pb2.RollbackConfigRequest(
            replica_id=at.replica_id, revision=revision, expected_revision=at.revision, comment=comment
        )
        try:
            answer = await self._stub.RollbackConfig(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._refusal(at, "RollbackConfig", error) from None
        return _in_force(_check(answer.replicas)[0])

    def _refusal(self, at: InForce, method: str, error: grpc.aio.AioRpcError) -> TargetError | SettingRefusedError:
        told = error.details() or describe_error(error)
        match error.code():
            case grpc.StatusCode.INVALID_ARGUMENT:
                return SettingRefusedError(f"{at.replica_id} refuses it: {told}")
            case grpc.StatusCode.ABORTED:
                return WrongRevisionError(f"{at.replica_id}: {told}")
            case _:
                return TargetError(f"{self._address}: {method}: {describe_error(error)}")


def guard_itl(bound_ms: float, window_s: int) -> ops_pb2.Guard:
    """Takes a change back when the p99 of the time between two tokens is above `bound_ms` within `window_s`."""
    return ops_pb2.Guard(
        metric=ops_pb2.GUARD_METRIC_ITL_P99_MS, bound=bound_ms, window=duration_pb2.Duration(seconds=window_s)
    )


def _check(replicas: Iterable[ops_pb2.ReplicaConfig]) -> list[ops_pb2.ReplicaConfig]:
    found = list(replicas)
    if not found:
        raise TargetError("the gateway knows no replica")
    for one in found:
        if one.HasField("failure"):
            raise TargetError(f"{one.replica_id}: {one.failure.reason}: {one.failure.message}")
    return found


def _in_force(replica: ops_pb2.ReplicaConfig) -> InForce:
    told = {field.name: value for field, value in replica.current.config.ListFields()}
    return InForce(
        replica_id=replica.replica_id,
        revision=replica.current.revision,
        knobs={name: _from_wire(name, told[name]) for name in LADDERS if name in told},
        actor=replica.current.actor,
        is_taken_back=replica.current.origin == ops_pb2.CONFIG_ORIGIN_GUARD,
    )


def _from_wire(name: str, value: float) -> KnobValue:
    return None if name == "itl_target_ms" and not value else value


def _to_wire(name: str, value: KnobValue) -> KnobValue:
    """None leaves the knob to the device; a target of 0 is none."""
    return 0.0 if name == "itl_target_ms" and value is None else value
