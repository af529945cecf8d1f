"""A running server as what is tuned: knobs change between two iterations, under a guard, and are put back at the end.

Its other users go on being served: what a trial does to them is bounded by the guard, which takes the change back by
itself, and by the revision from before, to which every replica returns whatever ends the search. A revision that
somebody else made ends the search too, and is left in force.
"""

import asyncio
import contextlib
import signal
from types import TracebackType
from typing import Self

import msgspec

from deploy.bench.errors import BenchError
from deploy.bench.load.client import TargetError
from deploy.bench.load.clock import MonotonicClock
from deploy.bench.load.grpc_client import GrpcClient, GrpcTarget
from deploy.bench.measure import measure
from deploy.bench.tune.knobs import NO_ITL_TARGET, InForce, KnobClient, WrongRevisionError, guard_itl
from deploy.bench.tune.plant import PlantFacts, TrialLoad, plan_trial
from deploy.bench.tune.trial import KnobValue, Setting, TrialRun, TuneObjectives

GUARD_EXCESS = 3.0
"""A trial may leave the objective: that is how its border is found. At so many times of it the server itself acts."""
GUARD_WINDOW_S = 120
_ENDS = (signal.SIGTERM, signal.SIGHUP)
GUARD_ACTED = "the server's guard took the change back during this trial"


class LivePlant:
    """Moves the knobs of a server that runs already. Raises TargetError where it cannot be asked."""

    def __init__(self, target: GrpcTarget, ops: GrpcTarget, load: TrialLoad, objectives: TuneObjectives) -> None:
        """`ops` needs the credentials of an administrator."""
        self._ops_target = ops
        self._knobs = KnobClient(ops)
        self._client = GrpcClient(target, MonotonicClock())
        self._load = load
        self._objectives = objectives
        self._start: dict[str, InForce] = {}
        """Where every replica returns to, by its name."""
        self._ours: dict[str, InForce] = {}
        """What we last saw or put in force."""
        self._chosen: dict[str, KnobValue] | None = None

    async def __aenter__(self) -> Self:
        """SIGTERM or SIGHUP cancels the block from now on, once: putting things back is not to be cancelled again."""
        try:
            await self._take_rollback_points()
        except BaseException:
            await self._close()
            raise
        _cancel_once_when_told_to_end()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Every replica returns to its rollback point, unless `keep` was called and what was chosen is taken."""
        try:
            await self._end(is_kept=kind is None)
        finally:
            for end in _ENDS:
                asyncio.get_running_loop().remove_signal_handler(end)
            await self._close()

    async def describe(self) -> PlantFacts:
        """See `Plant`."""
        model = await self._client.describe()
        return PlantFacts(
            knobs=dict(next(iter(self._start.values())).knobs),
            defaults={"itl_target_ms": NO_ITL_TARGET},
            fingerprint=model.fingerprint or "",
        )

    async def run(self, setting: Setting, repetition: int) -> TrialRun:
        """See `Plant`. Where the guard takes the change back meanwhile, the next trial sets it anew."""
        await self._apply(setting.knobs, "trial of chairlift tune")
        wanted = plan_trial(self._load, setting, repetition, await self._client.describe())
        wanted = msgspec.structs.replace(wanted, ops=self._ops_target)
        result = await measure(self._client, wanted, MonotonicClock())
        was_taken_back = await self._look_again()
        return TrialRun(result, (GUARD_ACTED,) if was_taken_back else ())

    def keep(self, knobs: dict[str, KnobValue]) -> None:
        """These stay in force at the end, instead of what was before."""
        self._chosen = knobs

    async def _take_rollback_points(self) -> None:
        found = await self._knobs.read()
        if any(one.knobs != found[0].knobs for one in found):
            raise TargetError("the replicas have different knobs: give them the same first, or tune one alone")
        self._start = {one.replica_id: one for one in found}
        self._ours = dict(self._start)

    async def _look_again(self) -> bool:
        """Whether a guard of ours took a change back meanwhile. Raises TargetError where somebody else changed one."""
        was_taken_back = False
        for one in await self._knobs.read():
            before = self._ours.get(one.replica_id)
            if before is None or before.revision == one.revision:
                continue
            if not _is_our_guards(one, before):
                raise TargetError(_describe_stranger(one))
            self._ours[one.replica_id] = one
            was_taken_back = True
        return was_taken_back

    async def _apply(self, knobs: dict[str, KnobValue], comment: str) -> None:
        try:
            await self._change(knobs, comment)
        except WrongRevisionError:
            # A guard may act between two trials; anybody else ends the search.
            if not await self._look_again():
                raise
            await self._change(knobs, comment)

    async def _change(self, knobs: dict[str, KnobValue], comment: str) -> None:
        guard = guard_itl(GUARD_EXCESS * self._objectives.itl_p99_ms, GUARD_WINDOW_S)
        for name, at in self._ours.items():
            changes = {knob: value for knob, value in knobs.items() if value != at.knobs.get(knob)}
            if changes:
                change = asyncio.ensure_future(self._knobs.change(at, changes, guard, comment))
                try:
                    self._ours[name] = await asyncio.shield(change)
                except asyncio.CancelledError:
                    # It may be in force already: what is not known to be ours would be left as somebody else's.
                    with contextlib.suppress(BenchError):
                        self._ours[name] = await change
                    raise

    async def _end(self, *, is_kept: bool) -> None:
        if self._chosen is None or not is_kept:
            await self._roll_back()
            return
        try:
            await self._apply(self._chosen, "chosen by chairlift tune")
        except BaseException:
            await self._roll_back()
            raise

    async def _roll_back(self) -> None:
        """Every replica that can; then raises TargetError where one could not, or has what somebody else gave it."""
        failures = []
        try:
            found = await self._knobs.read(is_patient=True)
        except TargetError as error:
            starts = ", ".join(f"{name} to revision {one.revision}" for name, one in self._start.items())
            raise TargetError(f"put the knobs back by hand (chairlift config rollback): {starts}: {error}") from None
        for one in found:
            start, ours = self._start.get(one.replica_id), self._ours.get(one.replica_id)
            if start is None or ours is None or one.revision == start.revision:
                continue
            if one.revision != ours.revision and not _is_our_guards(one, ours):
                failures.append(_describe_stranger(one))
                continue
            try:
                await self._knobs.roll_back(one, start.revision, "end of chairlift tune")
            except BenchError as error:
                failures.append(
                    f"{one.replica_id} could not return to revision {start.revision}, do it by hand "
                    f"(chairlift config rollback): {error}"
                )
        if failures:
            raise TargetError("; ".join(failures))

    async def _close(self) -> None:
        await self._client.close()
        await self._knobs.close()


def _is_our_guards(now: InForce, ours: InForce) -> bool:
    """Whether what is in force came from our change being taken back: nobody can have come between."""
    return now.is_taken_back and now.revision == ours.revision + 1


def _describe_stranger(one: InForce) -> str:
    who = f" by {one.actor}" if one.actor else ""
    return f"{one.replica_id}: somebody else made revision {one.revision}{who} meanwhile; it is left in force"


def _cancel_once_when_told_to_end() -> None:
    block, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert block is not None

    def cancel() -> None:
        for end in _ENDS:
            loop.add_signal_handler(end, lambda: None)
        block.cancel()

    for end in _ENDS:
        loop.add_signal_handler(end, cancel)
