"""How plans are carried out: results leave in order, and a step is launched while the one before it runs."""

import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from chairlift.ipc.device import NeedSnapshot, Plan, StepDone, StepFailed
from gpu_worker.execution import Finished, OverlappedExecution, SerialExecution
from gpu_worker.results import Result

EPOCH = 3
PATIENCE_S = 30.0


@dataclass
class Step:
    """Done when the test says so."""

    plan: Plan
    done: threading.Event = field(default_factory=threading.Event)

    def is_done(self) -> bool:
        return self.done.is_set()

    def wait(self) -> None:
        assert self.done.wait(PATIENCE_S)


class Device:
    """A runner whose steps end when the test ends them. Plans listed in `at_once` have a result at their launch."""

    most_in_flight = 2

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self.at_once: dict[int, Result | None] = {}
        self.calls: list[str] = []

    def launch(self, plan: Plan) -> Step | Result | None:
        self.calls.append(f"launch {plan.step}")
        if plan.step in self.at_once:
            return self.at_once[plan.step]
        self.steps[plan.step] = Step(plan)
        return self.steps[plan.step]

    def finish(self, pending: Step) -> Result | None:
        self.calls.append(f"finish {pending.plan.step}")
        pending.wait()
        return StepDone(EPOCH, pending.plan.step, b"")


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def execution(device: Device) -> Iterator[OverlappedExecution]:
    made = OverlappedExecution(device)
    yield made
    for step in device.steps.values():
        step.done.set()
    made.close()


def plan(step: int) -> Plan:
    return Plan(EPOCH, step)


def steps(finished: Iterator[Finished]) -> list[int]:
    return [plan.step for plan, _ in finished]


def woken(execution: OverlappedExecution) -> bool:
    assert execution.wake_fd is not None
    return bool(select.select([execution.wake_fd], [], [], PATIENCE_S)[0])


def test_the_next_step_is_launched_before_the_last_is_finished(device: Device, execution: OverlappedExecution) -> None:
    execution.submit(plan(1))
    assert execution.has_room
    execution.submit(plan(2))
    assert device.calls == ["launch 1", "launch 2"]
    assert not execution.has_room
    assert steps(execution.finished()) == []
    device.steps[1].done.set()
    assert woken(execution)
    assert steps(execution.finished()) == [1]
    assert execution.has_room


def test_a_step_that_ends_wakes_the_loop_and_a_look_puts_it_to_rest(
    device: Device, execution: OverlappedExecution
) -> None:
    execution.submit(plan(1))
    assert execution.wake_fd is not None
    assert not select.select([execution.wake_fd], [], [], 0)[0]
    device.steps[1].done.set()
    assert woken(execution)
    assert steps(execution.finished()) == [1]
    assert not select.select([execution.wake_fd], [], [], 0)[0]


def test_a_result_at_once_waits_for_the_steps_before_it(device: Device, execution: OverlappedExecution) -> None:
    """A launch that fails says nothing about the step that runs, whose result must reach the scheduler first."""
    device.at_once = {2: StepFailed(EPOCH, 2, "exception", "somewhere")}
    execution.submit(plan(1))
    execution.submit(plan(2))
    assert steps(execution.finished()) == []
    device.steps[1].done.set()
    assert woken(execution)
    results = [result for _, result in execution.finished()]
    assert [type(result) for result in results] == [StepDone, StepFailed]


def test_results_at_once_are_there_at_once(device: Device, execution: OverlappedExecution) -> None:
    device.at_once = {1: NeedSnapshot(EPOCH, 5), 2: None}
    execution.submit(plan(1))
    execution.submit(plan(2))
    assert [result for _, result in execution.finished()] == [NeedSnapshot(EPOCH, 5), None]
    assert execution.busy_since_ns is None


def test_busy_time_starts_anew_with_each_step(device: Device, execution: OverlappedExecution) -> None:
    assert execution.busy_since_ns is None
    execution.submit(plan(1))
    first = execution.busy_since_ns
    execution.submit(plan(2))
    assert first is not None
    assert execution.busy_since_ns == first
    device.steps[1].done.set()
    assert steps(execution.finished()) == [1]
    assert execution.busy_since_ns is not None
    assert execution.busy_since_ns > first


def test_at_the_end_steps_in_work_are_waited_for(device: Device, execution: OverlappedExecution) -> None:
    execution.submit(plan(1))
    execution.submit(plan(2))
    for step in device.steps.values():
        step.done.set()
    assert steps(execution.drain()) == [1, 2]
    assert device.calls[-2:] == ["finish 1", "finish 2"]


def test_a_device_that_is_lost_wakes_the_loop_which_then_meets_the_error() -> None:
    class Lost(Step):
        def is_done(self) -> bool:
            return True

        def wait(self) -> None:
            raise torch.AcceleratorError("an illegal memory access was encountered")

    class Broken(Device):
        def launch(self, plan: Plan) -> Step:
            return Lost(plan)

    execution = OverlappedExecution(Broken())
    try:
        execution.submit(plan(1))
        assert woken(execution)
        with pytest.raises(torch.AcceleratorError):
            steps(execution.finished())
    finally:
        execution.close()


def test_one_at_a_time() -> None:
    class Waiting:
        def execute(self, plan: Plan) -> StepDone:
            return StepDone(EPOCH, plan.step, b"")

    execution = SerialExecution(Waiting())
    execution.submit(plan(1))
    assert not execution.has_room
    assert execution.busy_since_ns is None
    assert steps(execution.finished()) == [1]
    assert execution.has_room
    assert steps(execution.drain()) == []
