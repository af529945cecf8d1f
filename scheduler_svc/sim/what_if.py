"""The same arrivals under other knobs: what a recorded hour would have been like with another policy.

Replays the recording for what each request was (when it came, how long its prompt and output, whose, which prefixes it
shared) and what the device cost, then simulates that load, once as it was configured and once with the changes. What
clients did in between (cancelling, going away) is part of a request's length, not of its own.
"""

from collections.abc import Iterator

import msgspec

from chairlift.ipc import device, front
from scheduler_svc.core import events
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.cost_model import StepCosts
from scheduler_svc.core.effects import Emit
from scheduler_svc.core.frames import Frame, Header, RecordError
from scheduler_svc.core.hash_source import PROMPT, HashKey, HashSource, RecordedHashes, known_hashes
from scheduler_svc.sim.outcome import Objective, Outcome, Report
from scheduler_svc.sim.replay import make_core
from scheduler_svc.sim.simulator import SimulatedHardware, Simulator
from scheduler_svc.sim.workload import Arrival


class RecordedLoad(msgspec.Struct, kw_only=True):
    """What a recording says about its requests and its device."""

    arrivals: list[Arrival]
    chains: list[bytes]
    """Block hashes of each arrival's prompt."""
    geometry: device.Geometry
    costs: StepCosts
    config: SchedulingConfig


class _Pending(msgspec.Struct):
    at_ns: int
    number: int
    message: front.Submit
    num_tokens: int = 0


def read_load(header: Header, frames: Iterator[Frame]) -> RecordedLoad:
    """Raises RecordError when the recording has no worker or no request in it that was let in."""
    known: dict[HashKey, bytes] = {}
    core = make_core(header, known)
    seen: dict[tuple[int, int], _Pending] = {}
    accepted: list[_Pending] = []
    began: int | None = None
    for frame in frames:
        began = frame.now if began is None else began
        known.update(known_hashes(frame.hashes))
        effects = core.handle(frame.event, frame.now)
        if isinstance(frame.event, events.Submit):
            key = (frame.event.gateway, frame.event.message.handle)
            seen[key] = _Pending(frame.now - began, core.state.last_number, frame.event.message)
        for effect in effects:
            if not isinstance(effect, Emit):
                continue
            match effect.message:
                case front.Accepted(handle):
                    accepted.append(seen[(effect.gateway, handle)])
                case front.Finished(handle) as message:
                    pending = seen.get((effect.gateway, handle - handle % front.MAX_CHOICES))
                    if pending is not None:
                        pending.num_tokens = max(pending.num_tokens, message.num_tokens)
    return _load(header, core, known, accepted)


def _load(header: Header, core: Core, known: dict[HashKey, bytes], accepted: list[_Pending]) -> RecordedLoad:
    worker = core.state.worker
    if worker is None or not accepted:
        raise RecordError("the recording has no worker, or no request that was let in")
    return RecordedLoad(
        arrivals=[
            Arrival(
                one.at_ns,
                len(one.message.prompt) // 4,
                max(one.num_tokens, 1),
                one.message.tenant,
                one.message.priority,
                num_choices=one.message.n,
            )
            for one in accepted
        ],
        chains=[known.get(HashKey(one.number, PROMPT, 0), b"") for one in accepted],
        geometry=worker.geometry,
        costs=core.state.cost_model.costs or SimulatedHardware().costs,
        config=header.config,
    )


def hardware_of(geometry: device.Geometry, costs: StepCosts) -> SimulatedHardware:
    """A device to simulate that is like a real one."""
    return SimulatedHardware(
        costs=costs,
        num_blocks=geometry.num_blocks,
        block_size=geometry.block_size,
        max_num_seqs=geometry.max_num_seqs,
        max_num_batched_tokens=geometry.max_num_batched_tokens,
        max_model_len=geometry.max_model_len,
        num_host_blocks=geometry.num_host_blocks,
    )


def read_device(header: Header, frames: Iterator[Frame]) -> SimulatedHardware | None:
    """What a recorded scheduler had learnt of its device by the end; None where that is nothing.

    Raises RecordError and CheckpointError.
    """
    known: dict[HashKey, bytes] = {}
    core = make_core(header, known)
    for frame in frames:
        known.update(known_hashes(frame.hashes))
        core.handle(frame.event, frame.now)
    worker, costs = core.state.worker, core.state.cost_model.costs
    return None if worker is None or costs is None else hardware_of(worker.geometry, costs)


def simulate_load(load: RecordedLoad, config: SchedulingConfig, objective: Objective) -> Report:
    """The recorded load under these knobs."""
    known = {HashKey(number, PROMPT, 0): chain for number, chain in enumerate(load.chains, start=1) if chain}

    def make_hashes(block_size: int) -> HashSource:
        return RecordedHashes(known, block_size)

    outcome = Outcome(objective)
    simulator = Simulator(config, hardware_of(load.geometry, load.costs), outcome, make_hashes=make_hashes)
    duration_ns = simulator.run(iter(load.arrivals))
    return outcome.report(duration_ns, simulator.num_swapped_blocks)
