"""The device of a simulation: what its steps cost and what memory it has, from a file.

A file is JSON with the keys of `ModelCost`, or a recording of a real scheduler: what that had learnt of its device.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from deploy.bench.errors import BenchUsageError
from scheduler_svc.core.checkpoint import CheckpointError
from scheduler_svc.core.cost_model import StepCosts
from scheduler_svc.core.frames import RecordError, read_frames, read_header
from scheduler_svc.sim.simulator import SimulatedHardware
from scheduler_svc.sim.what_if import read_device

RECORDING_SUFFIX = ".chairlift-record"

Cost = Annotated[float, Meta(ge=0, le=1e9)]
Number = Annotated[int, Meta(ge=1, le=1 << 24)]


class ModelCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The default resembles an 8B model in bfloat16 on one H100."""

    fixed_us: Cost = 6000.0
    """Of every step: the weights are read once."""
    decode_row_us: Cost = 18.0
    prefill_token_us: Cost = 42.0
    kv_token_ns: Cost = 1.4
    """For each position that attention reads."""
    swap_block_us: Cost = 200.0
    """To copy a block to or from the host."""
    block_size: Number = 16
    num_blocks: Number = 24_000
    num_host_blocks: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    max_num_seqs: Number = 256
    max_num_batched_tokens: Number = 8192
    max_model_len: Number = 32_768

    def hardware(self) -> SimulatedHardware:
        """For the simulator."""
        return SimulatedHardware(
            costs=StepCosts(
                fixed=self.fixed_us * 1e3,
                decode_row=self.decode_row_us * 1e3,
                prefill_token=self.prefill_token_us * 1e3,
                kv_token=self.kv_token_ns,
            ),
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            num_host_blocks=self.num_host_blocks,
            swap_block_ns=round(self.swap_block_us * 1e3),
        )


def read_model_cost(path: Path) -> SimulatedHardware:
    """Raises BenchUsageError for what is neither, or a recording too short to have learnt anything."""
    try:
        if path.suffix == RECORDING_SUFFIX:
            return _learnt_in(path)
        return msgspec.json.decode(path.read_bytes(), type=ModelCost).hardware()
    except OSError as error:
        raise BenchUsageError(f"{path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, RecordError, CheckpointError, UnicodeDecodeError) as error:
        raise BenchUsageError(f"{path}: {error}") from None


def _learnt_in(path: Path) -> SimulatedHardware:
    with path.open("rb") as file:
        learnt = read_device(read_header(file), read_frames(file))
    if learnt is None:
        raise BenchUsageError(f"{path}: its scheduler had not learnt yet what a step costs")
    return learnt
