"""A running server as what is tuned: knobs change between two iterations, under a guard, and are put back at the end.

Its other users go on being served: what a trial does to them is bounded by the guard, which takes the change back by
itself, and by the revision from before, to which every replica returns whatever ends the search.
"""

from types import TracebackType
from typing import Self

import grpc.aio
import msgspec
from google.protobuf import duration_pb2, field_mask_pb2

from chairlift.v1 import ops_pb2, ops_pb2_grpc
from deploy.bench.load.client import TargetError
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget, connect, describe_error, open_channel
from deploy.bench.measure import measure
from deploy.bench.output.result import RunResult
from deploy.bench.tune.plant import LADDERS, TrialLoad, plan_trial
from deploy.bench.tune.trial import KnobValue, Setting, TuneObjectives

GUARD_EXCESS = 3.0
"""A trial may leave the objective: that is how its border is found. At so many times of it the server itself acts."""
GUARD_WINDOW_S = 120
_CALL_TIMEOUT_S = 10.0
_ALL = "all"


class LivePlant:
    """Moves the knobs of a server that runs already. Raises TargetError where it cannot be asked or refuses."""

    def __init__(self, target: GrpcTarget, ops: GrpcTarget, load: TrialLoad, objectives: TuneObjectives) -> None:
        """`ops` needs the credentials of an administrator."""
        connection = connect(ops)
        self._ops_target = ops
        self._metadata = connection.metadata
        self._channel = open_channel(connection)
        self._ops: ops_pb2_grpc.OpsServiceAsyncStub = ops_pb2_grpc.OpsServiceStub(self._channel)
        self._client = GrpcClient(target, MonotonicClock())
        self._load = load
        self._objectives = objectives
        self._rollback_points: dict[str, int] = {}
        """Revision from before, by replica."""
        self._knobs: dict[str, KnobValue] = {}
        """In force now."""
        self._chosen: dict[str, KnobValue] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._take_rollback_points()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Every replica returns to its rollback point, unless `keep` was called."""
        try:
            if self._chosen is not None and kind is None:
                await self._apply(self._chosen, "chosen by chairlift tune")
            else:
                await self._roll_back()
        finally:
            await self._close()

    async def start_values(self) -> dict[str, KnobValue]:
        """As the server has them."""
        return dict(self._knobs)

    async def run(self, setting: Setting, repetition: int) -> RunResult:
        """See `Plant`. A warning tells where the guard took the change back meanwhile: the next trial sets it anew."""
        if setting.knobs != self._knobs:
            await self._apply(setting.knobs, "trial of chairlift tune")
        wanted = plan_trial(self._load, setting, repetition, await self._client.describe())
        wanted = msgspec.structs.replace(wanted, ops=self._ops_target)
        result = await measure(self._client, wanted, MonotonicClock())
        found = await self._read_config()
        self._knobs = _knobs_of(found[0])
        if any(one.current.origin == ops_pb2.CONFIG_ORIGIN_GUARD for one in found):
            result.warnings.append("the server's guard took the change back during this trial")
        return result

    def keep(self, knobs: dict[str, KnobValue]) -> None:
        """These stay in force at the end, instead of what was before."""
        self._chosen = knobs

    async def _take_rollback_points(self) -> None:
        found = await self._read_config()
        knobs = [_knobs_of(one) for one in found]
        if any(one != knobs[0] for one in knobs):
            raise TargetError("the replicas have different knobs: give them the same first, or tune one alone")
        self._knobs = knobs[0]
        self._rollback_points = {one.replica_id: one.current.revision for one in found}

    async def _read_config(self) -> list[ops_pb2.ReplicaConfig]:
        try:
            answer = await self._ops.GetConfig(
                ops_pb2.GetConfigRequest(), metadata=self._metadata, timeout=_CALL_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise TargetError(f"{self._ops_target.address}: GetConfig: {describe_error(error)}") from None
        return _check(list(answer.replicas))

    async def _apply(self, knobs: dict[str, KnobValue], comment: str) -> None:
        config = ops_pb2.SchedulingConfig()
        changed = [name for name, value in knobs.items() if value != self._knobs.get(name)]
        for name in changed:
            if (value := _to_wire(name, knobs[name])) is not None:
                setattr(config, name, value)
        request = ops_pb2.UpdateConfigRequest(
            config=config,
            update_mask=field_mask_pb2.FieldMask(paths=changed),
            replica_id=_ALL,
            guard=ops_pb2.Guard(
                metric=ops_pb2.GUARD_METRIC_ITL_P99_MS,
                bound=GUARD_EXCESS * self._objectives.itl_p99_ms,
                window=duration_pb2.Duration(seconds=GUARD_WINDOW_S),
            ),
            comment=comment,
        )
        if not changed:
            return
        try:
            answer = await self._ops.UpdateConfig(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise TargetError(f"{self._ops_target.address}: UpdateConfig: {describe_error(error)}") from None
        _check(list(answer.replicas))
        self._knobs = dict(knobs)

    async def _roll_back(self) -> None:
        for replica_id, revision in self._rollback_points.items():
            found = await self._read_config()
            current = next((one.current for one in found if one.replica_id == replica_id), None)
            if current is None or current.revision == revision:
                continue
            request = ops_pb2.RollbackConfigRequest(
                replica_id=replica_id, revision=revision, comment="end of chairlift tune"
            )
            try:
                answer = await self._ops.RollbackConfig(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise TargetError(
                    f"{replica_id} could not return to revision {revision}, do it by hand "
                    f"(chairlift config rollback): {describe_error(error)}"
                ) from None
            _check(list(answer.replicas))

    async def _close(self) -> None:
        await self._client.close()
        await self._channel.close()


def _check(replicas: list[ops_pb2.ReplicaConfig]) -> list[ops_pb2.ReplicaConfig]:
    if not replicas:
        raise TargetError("the gateway knows no replica")
    for one in replicas:
        if one.HasField("failure"):
            raise TargetError(f"{one.replica_id}: {one.failure.reason}: {one.failure.message}")
    return replicas


def _knobs_of(replica: ops_pb2.ReplicaConfig) -> dict[str, KnobValue]:
    told = {field.name: value for field, value in replica.current.config.ListFields()}
    return {name: _from_wire(name, told[name]) for name in LADDERS if name in told}


def _from_wire(name: str, value: float) -> KnobValue:
    return None if name == "itl_target_ms" and not value else value


def _to_wire(name: str, value: KnobValue) -> KnobValue:
    """None leaves the knob to the device; a target of 0 is none."""
    return 0.0 if name == "itl_target_ms" and value is None else value
