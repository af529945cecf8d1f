"""Results are kept as columns only so long: whoever decodes reads its tokens out of them in time."""

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core import events, invariants
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.effects import SendPlan
from scheduler_svc.sim.counting_device import CountingDevice

_NUM_SEQS = 1000
_GONE = 960
_WHEN = 180
"""Blocks have just become due: a sequence's 192nd token is computed."""


def test_those_that_stay_are_settled_in_time_when_most_leave_at_once() -> None:
    """All block borders fall on one step, and then nearly everyone is cancelled whose turn came before theirs."""
    geometry = device.Geometry("m", "f", 1000, 1000, (2,), 16, 40_000, 0, _NUM_SEQS, 16_384, 4, "float32")
    core, worker = Core(SchedulingConfig(), b"key", 1), CountingDevice(1)
    core.handle(events.WorkerUp(1, geometry), 0)
    for number in range(1, _NUM_SEQS + 1):
        message = front.Submit(
            256 * number, "t", f"r{number}", bytes(16), pack_u32([number % 999] * 16), SamplingParams(ignore_eos=True)
        )
        core.handle(events.Submit(1, message), 0)
    plans: list[device.Plan] = []
    for now in range(1, 400):
        effects = core.handle(events.Tick(), now)
        plans += [effect.plan for effect in effects if isinstance(effect, SendPlan)]
        core.handle(events.StepDone(worker.execute(plans.pop(0))), now)
        if now == _WHEN:
            for number in range(1, _GONE + 1):
                core.handle(events.Cancel(1, front.Cancel(1, "t", f"r{number}")), now)
        if now % 50 == 0:
            invariants.check(core, now)
    sequences = [request.sequences[0] for request in core.state.requests.values()]
    assert len(sequences) == _NUM_SEQS - _GONE
    for sequence in sequences:
        core.state.settle(sequence)
    assert len({len(sequence.outputs) for sequence in sequences}) == 1
    assert len(sequences[0].outputs) > 390
