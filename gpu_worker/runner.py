"""Carries out plans: the batch changes, the model runs, rows sample. Plans in, results out; no socket, no thread.

The order of plans is kept here: one that does not follow the last is answered with NeedSnapshot, and after that, or
after a step that failed, nothing is carried out until a plan with `reset`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog
import torch

from chairlift.ipc.device import NeedSnapshot, Plan, PromptLogprobs, StepDone, StepFailed
from gpu_worker.backends.backend import StepDecoder
from gpu_worker.batch.columns import Column, PlanColumns, unpack_plan
from gpu_worker.batch.limits import BatchLimits, InvalidPlanError
from gpu_worker.batch.state import BatchState
from gpu_worker.batch.steady import SteadyDecode
from gpu_worker.batch.step import StepSampling, build_input, step_sampling
from gpu_worker.failures import NonFiniteLogitsError, failure_kind, failure_place
from gpu_worker.faults import FaultInjector
from gpu_worker.host_pool import HostPool
from gpu_worker.kv_cache import KvCache
from gpu_worker.model.decoder import LayerPages, StepInput
from gpu_worker.results import Result, pack_ends, pack_ids, prompt_logprobs, prompt_span, row_logprobs
from gpu_worker.sampling.choose import greedy_rows
from gpu_worker.sampling.logprobs import TokenLogprobs, describe_tokens
from gpu_worker.sampling.penalties import PenaltyCounters
from gpu_worker.sampling.rows import Needs, SamplingRows
from gpu_worker.sampling.sampler import GreedyRows, Sampled, Sampler

DecodeGreedily = Callable[[StepInput, Sequence[LayerPages]], Column]
"""A step of decodes alone, whose rows ask for nothing but the largest logit: their token ids, good until the next."""


@dataclass(slots=True)
class RunnerCounters:
    """What happened to the scheduler's plans since the start; each counts once."""

    steps: int = 0
    failed: int = 0
    refused: int = 0
    """Plans that did not follow the last, or whose result means nothing since the one before them failed."""
    foreign: int = 0
    """Plans for another life of this worker."""


class Runner:
    """One model, one cache, one batch. Not thread-safe."""

    def __init__(
        self,
        decoder: StepDecoder,
        cache: KvCache,
        limits: BatchLimits,
        worker_epoch: int,
        faults: FaultInjector | None = None,
        greedy: GreedyRows = greedy_rows,
        decode_greedily: DecodeGreedily | None = None,
    ) -> None:
        """`greedy`: what chooses among logits where a row asks for nothing else; `decode_greedily` does that, and the
        model before it, in one go, where there is such.
        """
        self.counters = RunnerCounters()
        self._decoder = decoder
        self._cache = cache
        self._epoch = worker_epoch
        self._device = decoder.device
        self._host_pool = HostPool(cache, limits.num_host_blocks)
        self._state = BatchState(limits, self._device)
        self._rows = SamplingRows(limits.max_num_seqs, decoder.config.eos_token_ids, self._device)
        self._penalties = PenaltyCounters(limits.max_num_seqs, limits.vocab_size, self._device)
        self._sampler = Sampler(self._rows, self._penalties, greedy)
        self._decode_greedily = decode_greedily
        self._faults = faults or FaultInjector()
        self.last_step = 0
        """Number of the last plan carried out; 0 before the first."""
        self._follows: int | None = None
        """Number that the next plan must have; None while only a snapshot is taken."""
        self._refused_step: int | None = None
        self._steady: SteadyDecode | None = None
        """The last step, where the next may be one more like it."""
        self._log = structlog.get_logger()

    def execute(self, plan: Plan) -> Result | None:
        """Carries out one plan; never raises for what a plan holds.

        None: dropped without an answer, since it was for another epoch, or sent before the scheduler could know of the
        failure before it. Raises torch.AcceleratorError, after which the device is of no use to this process.
        """
        if plan.worker_epoch != self._epoch:
            self.counters.foreign += 1
            return None
        if not plan.reset and plan.step != self._follows:
            return self._refuse(plan)
        started = time.perf_counter_ns()
        try:
            result = self._carry_out(plan, started)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a step raises is the scheduler's to isolate
            return self._fail(plan, error)
        self.last_step, self._follows, self._refused_step = plan.step, plan.step + 1, None
        self.counters.steps += 1
        return result

    def forget(self) -> None:
        """Drops every row, as before the first plan."""
        self._follows = self._refused_step = self._steady = None
        self._state.clear()
        self._penalties.clear()

    # ---- order of plans ----

    def _refuse(self, plan: Plan) -> NeedSnapshot | None:
        self.counters.refused += 1
        follows_a_refused_one = self._refused_step is not None and plan.step == self._refused_step + 1
        self._refused_step = None if follows_a_refused_one else plan.step
        expected, self._follows = self._follows or self.last_step + 1, None
        # Two plans may be in flight: the second was sent before the answer to the first could arrive.
        return None if follows_a_refused_one else NeedSnapshot(self._epoch, expected)

    def _fail(self, plan: Plan, error: Exception) -> StepFailed:
        self.counters.failed += 1
        self._follows, self._refused_step, self._steady = None, plan.step, None
        kind, place = failure_kind(error), failure_place(error)
        rows = error.rows if isinstance(error, InvalidPlanError | NonFiniteLogitsError) else ()
        message = str(error) if isinstance(error, InvalidPlanError | NonFiniteLogitsError) else place
        self._log.error("step_failed", step=plan.step, kind=kind, error=type(error).__name__, at=place, rows=rows)
        return StepFailed(self._epoch, plan.step, kind, message, pack_ids(np.array(rows, np.int64)))

    # ---- one step ----

    def _carry_out(self, plan: Plan, started: int) -> StepDone:
        self._faults.check_file()
        steady = self._steady
        if steady is not None and steady.continues_with(plan):
            steady.advance(plan)
            if self._decode_greedily is not None and not self._rows.needs[steady.rows].any():
                return self._decode_plainly(plan, steady, self._decode_greedily, started)
            with torch.inference_mode():
                return self._decode_again(plan, steady, started)
        with torch.inference_mode():
            return self._begin(plan, started)

    def _begin(self, plan: Plan, started: int) -> StepDone:
        """A step of any kind."""
        self._steady = None
        columns = unpack_plan(plan)
        if plan.reset:
            self.forget()
        self._change_batch(plan, columns)
        self._faults.check(columns)
        if not columns.num_tokens:
            return StepDone(self._epoch, plan.step, b"", host_ns=time.perf_counter_ns() - started)
        sampling = step_sampling(self._state, columns)
        step = build_input(self._state, columns)
        on_device = time.perf_counter_ns()
        hidden = self._decoder.forward(step, self._cache.pages)
        prompts = self._prompt_logprobs(columns, hidden)
        sampled = self._sample(sampling, hidden)
        token_ids = sampled.token_ids.cpu().numpy()
        device_ns = time.perf_counter_ns() - on_device
        self._check_finite(sampling.rows, token_ids)
        self._state.advance(columns, sampling.rows, token_ids)
        if self._can_go_on(columns):
            self._steady = SteadyDecode(self._state, plan, columns.decode_rows, step)
        return self._step_done(plan, sampling.rows, sampled.logprobs, token_ids, prompts, device_ns, started)

    def _can_go_on(self, columns: PlanColumns) -> bool:
        return not len(columns.chunk_rows) and self._device.type == "cpu" and not self._faults.is_armed

    def _decode_plainly(self, plan: Plan, steady: SteadyDecode, decode: DecodeGreedily, started: int) -> StepDone:
        """The usual step. It does nothing that it need not: after each the caches hold none of it any more."""
        rows = steady.rows
        on_device = time.perf_counter_ns()
        token_ids = decode(steady.step, self._cache.pages)
        device_ns = time.perf_counter_ns() - on_device
        self._check_finite(rows, token_ids)
        self._state.advance_decodes(rows, token_ids)
        return self._step_done(plan, rows, [], token_ids, (), device_ns, started)

    def _decode_again(self, plan: Plan, steady: SteadyDecode, started: int) -> StepDone:
        """The same for rows that ask for more than the largest logit."""
        rows = steady.rows
        on_device = time.perf_counter_ns()
        logits = self._decoder.logits(self._decoder.forward(steady.step, self._cache.pages))
        sampled = self._sampler.sample(logits, rows, self._state.num_tokens[rows] - self._state.prompt_lens[rows])
        token_ids = sampled.token_ids.numpy()
        device_ns = time.perf_counter_ns() - on_device
        self._check_finite(rows, token_ids)
        self._state.advance_decodes(rows, token_ids)
        return self._step_done(plan, rows, sampled.logprobs, token_ids, (), device_ns, started)

    def _step_done(
        self,
        plan: Plan,
        rows: Column,
        logprobs: list[TokenLogprobs],
        token_ids: Column,
        prompts: tuple[PromptLogprobs, ...],
        device_ns: int,
        started: int,
    ) -> StepDone:
        return StepDone(
            self._epoch,
            plan.step,
            pack_ids(token_ids),
            pack_ends(self._rows.end_kinds(rows, token_ids)),
            row_logprobs(logprobs) if logprobs else (),
            prompts,
            device_ns,
            time.perf_counter_ns() - started - device_ns,
        )

    def _change_batch(self, plan: Plan, columns: PlanColumns) -> None:
        boardings = self._state.change(plan, columns)
        self._host_pool.check(columns.swaps)
        for row in columns.left.tolist():
            self._penalties.remove(row)
        for boarding in boardings:
            message, row = boarding.message, boarding.message.row
            self._rows.set(row, message.sampling, message.choice)
            if self._rows.needs[row] & Needs.PENALTIES:
                tokens = torch.from_numpy(boarding.tokens).to(self._device)
                self._penalties.add(row, tokens[: message.prompt_len], tokens[message.prompt_len :])
            if self._faults.is_armed:
                self._faults.boarded(row, boarding.tokens[: message.prompt_len])
        self._host_pool.swap_out(columns.swaps)
        if len(columns.copy_sources):
            sources, destinations = columns.copy_sources, columns.copy_destinations
            self._cache.copy_blocks(
                torch.from_numpy(sources).to(self._device), torch.from_numpy(destinations).to(self._device)
            )
        self._host_pool.swap_in(columns.swaps)

    def _sample(self, sampling: StepSampling, hidden: torch.Tensor) -> Sampled:
        if not len(sampling.rows):
            return Sampled(torch.empty(0, dtype=torch.int64, device=self._device), [])
        # Every token of a step of decodes alone is sampled from.
        if len(sampling.rows) < len(hidden):
            hidden = hidden[torch.from_numpy(sampling.token_indices).to(self._device)]
        return self._sampler.sample(self._decoder.logits(hidden), sampling.rows, sampling.offsets)

    @staticmethod
    def _check_finite(rows: Column, token_ids: Column) -> None:
        if token_ids.min(initial=0) < 0:
            raise NonFiniteLogitsError(tuple(rows[token_ids < 0].tolist()))

    # ---- log-probabilities of prompt tokens ----

    def _prompt_logprobs(self, columns: PlanColumns, hidden: torch.Tensor) -> tuple[PromptLogprobs, ...]:
        """For each chunk whose row asks: the logits after token i describe token i + 1, where that is prompt still."""
        wanted = self._rows.num_prompt_logprobs[columns.chunk_rows]
        if wanted.max(initial=-1) < 0:
            return ()
        found = []
        starts = len(columns.decode_rows) + np.cumsum(columns.chunk_tokens) - columns.chunk_tokens
        for index in np.flatnonzero(wanted >= 0).tolist():
            row = int(columns.chunk_rows[index])
            count = int(columns.chunk_tokens[index])
            span = prompt_span(int(self._state.computed[row]), count, int(self._state.prompt_lens[row]))
            if len(span):
                start = int(starts[index])
                parts = self._describe(row, span, hidden[start : start + len(span)], int(wanted[index]))
                found.append(prompt_logprobs(row, int(span[0]), parts))
        return tuple(found)

    def _describe(self, row: int, span: Column, hidden: torch.Tensor, count: int) -> list[TokenLogprobs]:
        known = self._state.tokens[row, int(span[0]) : int(span[-1]) + 1]
        token_ids = torch.from_numpy(known.astype(np.int64)).to(self._device)
        return describe_tokens(self._decoder.logits, hidden, token_ids, count)
