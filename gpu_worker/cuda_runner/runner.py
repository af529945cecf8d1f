"""Carries out plans on a GPU: a plan is enqueued without waiting for the one before it, results are read when done.

`launch` enqueues a step and `finish` reads its result; up to `IN_FLIGHT` steps may lie between the two. `execute` does
both at once and is the `Runner`'s interface. Planning never needs a value that is still being computed: lengths
advance on the host as the plan says, token ids on the device.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from chairlift.ipc.device import Plan, PromptLogprobs, StepDone
from gpu_worker.batch.columns import Column, PlanColumns, unpack_plan
from gpu_worker.batch.limits import BatchLimits
from gpu_worker.batch.state import Boarding
from gpu_worker.batch.step import StepSampling, step_sampling
from gpu_worker.cuda_runner.device_step import MAX_ENDS, DeviceStep
from gpu_worker.cuda_runner.graphs import DecodeGraphs, GraphCapturer
from gpu_worker.cuda_runner.packing import BoardingWords, Upload
from gpu_worker.cuda_runner.pending import PendingStep, RowEnds
from gpu_worker.cuda_runner.resident_batch import ResidentBatch
from gpu_worker.cuda_runner.transfer import IN_FLIGHT, Downloader, Uploader
from gpu_worker.failures import NonFiniteLogitsError
from gpu_worker.faults import FaultInjector
from gpu_worker.kv_cache import KvCache
from gpu_worker.model.decoder import Decoder
from gpu_worker.results import Result, pack_ends, pack_ids
from gpu_worker.runner import Runner
from gpu_worker.sampling.logprobs import TokenLogprobs, describe_tokens
from gpu_worker.sampling.rows import Needs

_UPLOAD_WORDS = 1 << 19
"""Room for a step's changes: 2 MiB. More than that takes another copy."""


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """What a runner for CUDA is built with."""

    buckets: tuple[int, ...]
    """Batch sizes that graphs are captured for; empty: none are."""
    max_logprobs: int = 20
    """Alternatives a token that graphs have room for; a row that asks for more runs without one."""


class CudaRunner(Runner):
    """A `Runner` whose rows live on the device."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        limits: BatchLimits,
        worker_epoch: int,
        options: CudaOptions,
        capturer: GraphCapturer,
        faults: FaultInjector | None = None,
    ) -> None:
        """Allocates row state and captures the graphs."""
        super().__init__(decoder, cache, limits, worker_epoch, faults)
        self._batch = ResidentBatch(limits)
        self._state = self._batch
        self._generation = 0
        """Changes when steps in flight become worthless: at a reset, and when a step fails."""
        self._max_logprobs = options.max_logprobs
        self._ends = RowEnds(limits.max_num_seqs, decoder.config.eos_token_ids, MAX_ENDS)
        with torch.inference_mode():
            self._step = DeviceStep(decoder, cache, limits, options.max_logprobs)
            self._uploader = Uploader(self._step.state, _UPLOAD_WORDS)
            most = limits.max_num_seqs * (2 + 2 * options.max_logprobs)
            self._downloader = Downloader(most, self._device)
            self._graphs = DecodeGraphs(options.buckets, self._step.decode_body, capturer)

    @property
    def most_in_flight(self) -> int:
        """Steps that may lie between launch and finish: as many as there is room for results of."""
        return IN_FLIGHT

    @property
    def state_bytes(self) -> int:
        """Device memory of the rows."""
        return self._step.state.num_bytes

    def launch(self, plan: Plan) -> PendingStep | Result | None:
        """Enqueues a plan. A result at once where there is nothing to wait for, None where `execute` has none."""
        if plan.worker_epoch != self._epoch:
            self.counters.foreign += 1
            return None
        if not plan.reset and plan.step != self._follows:
            return self._refuse(plan)
        try:
            with torch.inference_mode():
                pending = self._enqueue(plan)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a step raises is the scheduler's to isolate
            # Steps launched before it are as good as they were.
            return self._fail(plan, error)
        self.last_step, self._follows, self._refused_step = plan.step, plan.step + 1, None
        return pending

    def finish(self, pending: PendingStep) -> Result | None:
        """Waits for a step's result. None: a step before it failed, or a reset came, and its result means nothing."""
        if pending.generation != self._generation:
            self.counters.refused += 1
            self._refused_step = None
            return None
        try:
            result = self._read(pending)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._generation += 1
            return self._fail(pending.plan, error)
        self.counters.steps += 1
        return result

    def execute(self, plan: Plan) -> Result | None:
        """As `Runner.execute`: launches and waits."""
        pending = self.launch(plan)
        return self.finish(pending) if isinstance(pending, PendingStep) else pending

    def forget(self) -> None:
        """As `Runner.forget`; steps in flight have no result any more."""
        self._generation += 1
        super().forget()

    # ---- one step ----

    def _enqueue(self, plan: Plan) -> PendingStep:
        started = time.perf_counter_ns()
        columns = unpack_plan(plan)
        if plan.reset:
            self.forget()
        upload = Upload(self._step.state)
        boardings = self._batch.change_and_pack(plan, columns, self._step.state, upload)
        self._host_pool.check(columns.swaps)
        counted = [row for boarding in boardings if (row := self._board(boarding, upload)) is not None]
        self._faults.check(columns)
        sampling = step_sampling(self._batch, columns)
        bucket = self._bucket_of(columns, sampling)
        self._step.area.add_counted(upload, counted)
        self._step.area.add_copies(upload, columns)
        if bucket is None:
            self._step.area.add_step(upload, self._batch, columns, sampling)
        else:
            self._step.area.add_decodes(upload, columns.decode_rows, bucket)
        self._uploader.send(upload)
        longest = max((len(boarding.tokens) for boarding in boardings), default=0)
        self._step.count_tokens(len(counted), longest)
        self._host_pool.swap_out(columns.swaps)
        self._step.copy_blocks(len(columns.copy_sources))
        self._host_pool.swap_in(columns.swaps)
        stop_timer = self._step.timer()
        prompts = self._compute(columns, sampling, bucket) if columns.num_tokens else ()
        elapsed_ns = stop_timer()
        self._batch.advance_lengths(columns, sampling.rows)
        download = self._downloader.fetch(self._step.results(len(sampling.rows), self._asked(sampling)))
        return PendingStep(
            plan,
            self._generation,
            time.perf_counter_ns() - started,
            sampling.rows,
            self._ends.of(sampling.rows),
            self._rows.num_logprobs[sampling.rows],
            download,
            prompts,
            elapsed_ns,
        )

    def _board(self, boarding: Boarding, upload: Upload) -> int | None:
        """Takes a sequence in; its row where tokens have to be counted for penalties."""
        message, row = boarding.message, boarding.message.row
        self._rows.set(row, message.sampling, message.choice)
        needs = Needs(int(self._rows.needs[row]))
        end_ids = self._ends.set(row, message.sampling)
        upload.add_boarding(
            BoardingWords(
                row,
                boarding.tokens,
                message.prompt_len,
                self._batch.blocks_of(row),
                message.choice,
                message.sampling,
                needs,
                end_ids,
            )
        )
        if self._faults.is_armed:
            self._faults.boarded(row, boarding.tokens[: message.prompt_len])
        return row if needs & Needs.PENALTIES else None

    def _bucket_of(self, columns: PlanColumns, sampling: StepSampling) -> int | None:
        """The graph that the step can take."""
        if len(columns.chunk_rows) or not len(columns.decode_rows) or self._asked(sampling) > self._max_logprobs:
            return None
        return self._graphs.bucket_for(len(columns.decode_rows))

    def _asked(self, sampling: StepSampling) -> int:
        """Most alternatives that a row of the step asks for; -1 when none asks for log-probabilities."""
        return int(self._rows.num_logprobs[sampling.rows].max(initial=-1))

    def _compute(self, columns: PlanColumns, sampling: StepSampling, bucket: int | None) -> tuple[PromptLogprobs, ...]:
        """Enqueues the model and the sampling. Rows that ask for log-probabilities of their prompt make it wait."""
        if bucket is not None:
            self._graphs.replay(bucket)
            self._step.use_graph_results()
            return ()
        decode_ends = self._batch.computed[columns.decode_rows] + 1
        chunk_ends = self._batch.computed[columns.chunk_rows] + columns.chunk_tokens
        max_kv_len = int(np.concatenate((decode_ends, chunk_ends)).max())
        hidden = self._step.run_mixed(columns, len(sampling.rows), max_kv_len, self._asked(sampling))
        return self._prompt_logprobs(columns, hidden)

    def _describe(self, row: int, span: Column, hidden: torch.Tensor, count: int) -> list[TokenLogprobs]:
        """As `Runner._describe`, with the ids that lie on the device. The host waits here."""
        token_ids = self._step.state.tokens[row, int(span[0]) : int(span[-1]) + 1].long()
        return describe_tokens(self._decoder.logits, hidden, token_ids, count)

    # ---- results ----

    def _read(self, pending: PendingStep) -> StepDone:
        words = pending.download.read()
        read_at = time.perf_counter_ns()
        token_ids = words[:, 0].astype(np.int64)
        if (token_ids < 0).any():
            raise NonFiniteLogitsError(tuple(pending.rows[token_ids < 0].tolist()))
        return StepDone(
            self._epoch,
            pending.plan.step,
            pack_ids(token_ids),
            pack_ends(pending.ends.kinds(token_ids)),
            pending.row_logprobs(words) if words.shape[1] > 1 else (),
            pending.prompts,
            pending.elapsed_ns(),
            pending.host_ns + time.perf_counter_ns() - read_at,
        )
