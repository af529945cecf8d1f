"""What is tried, what it showed, and whether it is within the objectives. Pure."""

from typing import Annotated

import msgspec
from msgspec import Meta

from deploy.bench.errors import BenchError
from deploy.bench.output.result import RunResult

KnobValue = int | float | None
"""None is the server's own choice."""


_FEW_RESAMPLES = 10
"""Trials are judged by their percentiles alone."""


class TuneObjectives(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold in every trial that may be chosen."""

    ttft_p99_ms: Annotated[float, Meta(gt=0)]
    itl_p99_ms: Annotated[float, Meta(gt=0)]
    max_error_rate: float = 0.0
    max_kv_used_share: float = 0.95
    """Beyond it the next longer request preempts others."""
    max_preemptions_per_request: float = 0.1


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the search: knobs of the scheduler, and the load."""

    knobs: dict[str, KnobValue]
    concurrency: int

    def key(self) -> tuple[object, ...]:
        """Equal for equal settings."""
        return (self.concurrency, *sorted(self.knobs.items(), key=lambda pair: pair[0]))


class SettingRefusedError(BenchError):
    """A setting that the server does not take, or does not run with: another may do. The message says why."""


class TrialRun(msgspec.Struct, frozen=True):
    """One run of a setting, as a plant gives it."""

    result: RunResult
    violations: tuple[str, ...] = ()
    """Why its figures are not the setting's; empty where they are."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A setting and what it showed."""

    setting: Setting
    output_throughput: float
    request_throughput: float
    ttft_p99_ms: float | None
    """None: no request came to its end."""
    itl_p99_ms: float | None
    """None: no request had two tokens."""
    error_rate: float
    preemptions_per_request: float
    kv_used_share_max: float | None
    violations: tuple[str, ...]
    """Objectives that it left, in words; empty: it may be chosen."""
    excess: float
    """The worst figure as a multiple of its objective; above 1 where an objective with a bound above 0 was left."""
    is_refused: bool = False
    """Whether it did not run at all: what lies beyond it will not either."""

    @property
    def is_feasible(self) -> bool:
        """Whether it may be chosen."""
        return not self.violations


def refused_trial(setting: Setting, why: str) -> Trial:
    """The trial of a setting that did not run."""
    return Trial(
        setting=setting,
        output_throughput=0.0,
        request_throughput=0.0,
        ttft_p99_ms=None,
        itl_p99_ms=None,
        error_rate=0.0,
        preemptions_per_request=0.0,
        kv_used_share_max=None,
        violations=(why,),
        excess=0.0,
        is_refused=True,
    )


def judge_trial(setting: Setting, run: TrialRun, objectives: TuneObjectives) -> Trial:
    """The trial that a run is."""
    result = run.result
    summary = result.summarize(_FEW_RESAMPLES)
    ttft, itl = summary.latencies.get("ttft"), summary.latencies.get("itl")
    ttft_p99_ms = None if ttft is None else ttft.percentiles[99.0]
    itl_p99_ms = None if itl is None else itl.percentiles[99.0]
    preemptions = summary.preemptions / len(result.records) if result.records else 0.0
    kv_share = None if result.server is None else result.server.kv_used_share_max
    checks = (
        ("p99 TTFT", ttft_p99_ms, objectives.ttft_p99_ms, "ms"),
        ("p99 ITL", itl_p99_ms, objectives.itl_p99_ms, "ms"),
        ("error rate", summary.error_rate, objectives.max_error_rate, ""),
        ("peak KV use", kv_share, objectives.max_kv_used_share, ""),
        ("preemptions a request", preemptions, objectives.max_preemptions_per_request, ""),
    )
    return Trial(
        setting=setting,
        output_throughput=summary.output_throughput,
        request_throughput=summary.request_throughput,
        ttft_p99_ms=ttft_p99_ms,
        itl_p99_ms=itl_p99_ms,
        error_rate=summary.error_rate,
        preemptions_per_request=preemptions,
        kv_used_share_max=kv_share,
        excess=max((value / bound for _, value, bound, _ in checks if value is not None and bound > 0), default=0.0),
        violations=(
            *run.violations,
            *(() if summary.completed else ("no request came to its end",)),
            *(
                f"{name} {value:.4g} {unit}".rstrip() + f" over {bound:g}"
                for name, value, bound, unit in checks
                if value is not None and value > bound
            ),
        ),
    )
