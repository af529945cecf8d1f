"""What an experiment found: each variant against the first, and the claim about the primary metric. Pure."""

import statistics

import msgspec

from deploy.bench.experiment.conduct import Conducted, VariantRuns
from deploy.bench.figures.comparison import Difference, Run, Verdict, compare_runs, metrics_of, read_metric
from deploy.bench.load.record import Outcome


class VariantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One variant's figures, means over its repetitions."""

    name: str
    figures: dict[str, float]
    kv_used_share_max: float | None
    preemptions: int
    errors: int


class VariantDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One variant against the first."""

    variant: str
    against: str
    claim: str
    """About the primary metric. The others were not chosen beforehand: they suggest, and prove less."""
    differences: list[Difference]


class ExperimentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed and kept."""

    name: str
    question: str
    variables: tuple[str, ...]
    primary: str
    repetitions: int
    is_simulated: bool
    same_tokens: bool
    num_outputs_compared: int
    problems: list[str]
    variants: list[VariantFigures]
    comparisons: list[VariantDifference]


def judge(conducted: Conducted, *, is_simulated: bool) -> ExperimentReport:
    """The report."""
    experiment, (base, *others) = conducted.experiment, conducted.variants
    base_runs = to_runs(base)
    comparisons = []
    for other in others:
        differences = compare_runs(base_runs, to_runs(other), are_paired=len(base.runs) > 1)
        comparisons.append(
            VariantDifference(
                variant=other.variant.name,
                against=base.variant.name,
                claim=_claim(experiment.primary, base.variant.name, other.variant.name, differences),
                differences=differences,
            )
        )
    return ExperimentReport(
        name=experiment.name,
        question=experiment.question,
        variables=experiment.variables,
        primary=experiment.primary,
        repetitions=experiment.repetitions,
        is_simulated=is_simulated,
        same_tokens=conducted.num_outputs_compared > 0 and conducted.num_outputs_different == 0,
        num_outputs_compared=conducted.num_outputs_compared,
        problems=conducted.problems,
        variants=[_sum_up(side) for side in conducted.variants],
        comparisons=comparisons,
    )


def to_runs(side: VariantRuns) -> list[Run]:
    """A variant's runs as they are compared."""
    return [Run(result.summarize(), result.records) for result in side.runs]


def _sum_up(side: VariantRuns) -> VariantFigures:
    summaries = [result.summarize() for result in side.runs]
    figures: dict[str, float] = {}
    for metric in metrics_of(summaries):
        values = [value for summary in summaries if (value := read_metric(summary, metric)) is not None]
        if values:
            figures[metric.name] = statistics.fmean(values)
    shares = [result.server.kv_used_share_max for result in side.runs if result.server is not None]
    return VariantFigures(
        name=side.variant.name,
        figures=figures,
        kv_used_share_max=max(shares, default=None),
        preemptions=sum(summary.preemptions for summary in summaries),
        errors=sum(
            record.outcome not in (Outcome.OK, Outcome.ABANDONED) for result in side.runs for record in result.records
        ),
    )


def _claim(primary: str, base: str, other: str, differences: list[Difference]) -> str:
    found = next((one for one in differences if one.metric == primary), None)
    if found is None:
        return f"{primary} could not be compared"
    change = f"{found.ours:.4g} → {found.theirs:.4g}"
    if found.relative is not None:
        change += f" ({found.relative:+.1%})"
    match found.verdict:
        case Verdict.BETTER | Verdict.WORSE:
            caution = "; one run each: from run to run it may be otherwise" if found.is_within_run else ""
            return f"{other} is {found.verdict} than {base} in {primary}: {change}{caution}"
        case Verdict.NOISE:
            return f"{other} and {base} are not distinguishable in {primary}: {change}"
        case Verdict.UNKNOWN:
            return f"too few runs to tell {other} from {base} in {primary}: {change}"
