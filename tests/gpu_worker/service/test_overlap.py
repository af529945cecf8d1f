"""The service's loop over a runner that launches ahead, as a GPU's does: the CPU's own with results held back."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from chairlift.ipc import device
from chairlift.runtime.model_source import resolve_model
from chairlift.runtime.process import ExitCode, StopSignal
from chairlift.runtime.settings import Settings
from gpu_worker.faults import FaultInjector
from gpu_worker.loading.loader import open_model
from gpu_worker.service import WorkerService
from gpu_worker.threads import ThreadPlan

PATIENCE_S = 60.0


@dataclass
class HeldBack:
    """A step that is done, whose result the test has not let go."""

    result: Any
    may_go: threading.Event = field(default_factory=threading.Event)

    def is_done(self) -> bool:
        return self.may_go.is_set()

    def wait(self) -> None:
        self.may_go.wait(PATIENCE_S)


class LaunchingRunner:
    """The engine's runner behind launch and finish."""

    most_in_flight = 2

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.counters = runner.counters
        self.steps: dict[int, HeldBack] = {}

    def launch(self, plan: device.Plan) -> HeldBack:
        self.steps[plan.step] = HeldBack(self._runner.execute(plan))
        return self.steps[plan.step]

    def finish(self, pending: HeldBack) -> Any:
        pending.wait()
        return pending.result


@dataclass
class Running:
    """A service on a thread of the test."""

    service: WorkerService
    runner: LaunchingRunner
    stop: StopSignal
    thread: threading.Thread
    exit_codes: list[int]


@pytest.fixture
def running(worker_settings: Settings) -> Iterator[Running]:
    stop, exit_codes = StopSignal(), []
    files = open_model(resolve_model(worker_settings.model.source))
    service = WorkerService(worker_settings, files.config, FaultInjector())
    engine = service.load(files, ThreadPlan(1, 0, ()), stop)
    runner: Any = LaunchingRunner(engine.runner)
    launching = dataclasses.replace(engine, runner=runner)
    thread = threading.Thread(target=lambda: exit_codes.append(service.run(launching, stop)))
    thread.start()
    yield Running(service, runner, stop, thread, exit_codes)
    for step in runner.steps.values():
        step.may_go.set()
    stop.request()
    thread.join(PATIENCE_S)
    service.close()
    stop.close()


def test_two_steps_are_in_flight_and_each_result_leaves_as_it_comes(
    running: Running, new_scheduler: Callable[..., Any], until: Callable[..., Any]
) -> None:
    scheduler = new_scheduler()
    epoch = scheduler.greet().worker_epoch
    for step in (1, 2, 3):
        scheduler.send(device.Plan(epoch, step, reset=step == 1))
    until(lambda: set(running.runner.steps) == {1, 2}, "the second launch before the first result")
    running.runner.steps[1].may_go.set()
    assert scheduler.receive(device.StepDone).step == 1
    until(lambda: 3 in running.runner.steps, "the third launch")
    for step in (2, 3):
        running.runner.steps[step].may_go.set()
        assert scheduler.receive(device.StepDone).step == step


def test_a_device_that_hangs_is_no_sign_of_life(
    running: Running, new_scheduler: Callable[..., Any], until: Callable[..., Any]
) -> None:
    scheduler = new_scheduler()
    epoch = scheduler.greet().worker_epoch
    scheduler.send(device.Plan(epoch, 1, reset=True))
    until(lambda: 1 in running.runner.steps, "the launch")
    beat = until(lambda: next((beat for beat in beats(scheduler) if beat.busy_ns > 0), None), "a beat that says busy")
    assert beat.last_step == 0
    beat_identity = next(who for who, what in scheduler.received if what is beat)
    assert beat_identity == scheduler.worker + device.BEAT_SUFFIX


def test_what_is_in_flight_leaves_before_the_end(
    running: Running, new_scheduler: Callable[..., Any], until: Callable[..., Any]
) -> None:
    scheduler = new_scheduler()
    epoch = scheduler.greet().worker_epoch
    scheduler.send(device.Plan(epoch, 1, reset=True))
    until(lambda: 1 in running.runner.steps, "the launch")
    running.stop.request()
    running.runner.steps[1].may_go.set()
    assert scheduler.receive(device.StepDone).step == 1
    scheduler.receive(device.WorkerBye)
    running.thread.join(PATIENCE_S)
    assert running.exit_codes == [ExitCode.OK]


def beats(scheduler: Any) -> Iterator[device.WorkerBeat]:
    yield scheduler.receive(device.WorkerBeat, skipping=())
