"""The chosen settings as a settings file, with the evidence as comments. Pure."""

from collections.abc import Sequence

from deploy.bench.output.machine_line import describe_place
from deploy.bench.output.result import RunConditions
from deploy.bench.tune.evidence import Evidence, render_evidence
from deploy.bench.tune.search import Outcome
from deploy.bench.tune.trial import Trial, TuneObjectives
from deploy.bench.tune.tuner import Confirmation

_CONFIRMED = ("p99_ttft_ms", "p99_itl_ms", "output_throughput")


def render_tuned_file(
    outcome: Outcome,
    confirmation: Confirmation | None,
    trials: Sequence[Trial],
    objectives: TuneObjectives,
    conditions: RunConditions | None,
) -> str:
    """TOML for ``chairlift serve --config``. `outcome` must have a best trial."""
    assert outcome.best is not None
    best = outcome.best
    lines = [
        "# Chosen by `chairlift tune`: the most output tokens a second within",
        f"#   p99 TTFT {objectives.ttft_p99_ms:g} ms, p99 ITL {objectives.itl_p99_ms:g} ms.",
        f"# Holds up to {best.setting.concurrency} users at once of the workload below. The search ended because",
        f"#   {outcome.reason}.",
    ]
    if conditions is not None:
        details = ", ".join(f"{key} {value}" for key, value in conditions.workload_details.items())
        lines += [
            f"# Workload: {conditions.workload} ({details})",
            f"# Model: {conditions.model.name}, fingerprint {conditions.model.fingerprint}, {conditions.model.dtype}",
            f"# Measured: {conditions.date}, {describe_place(conditions)}",
        ]
        lines.append(render_evidence(_to_evidence(conditions)))
    if confirmation is not None:
        lines += ["#", "# Repeated in turn with the knobs of the start, under the same load:"]
        lines += [
            f"#   {one.metric} {one.ours:.4g} at the start, {one.theirs:.4g} as chosen: {one.verdict.value}"
            for one in confirmation.differences
            if one.metric in _CONFIRMED
        ]
        lines += [f"#   Not to be relied on: {problem}." for problem in confirmation.problems]
    lines += ["#", "# Trials:"]
    lines += [f"#   {format_trial(trial)}" for trial in trials]
    lines += ["", "[scheduler]"]
    moved = {name: value for name, value in best.setting.knobs.items() if value is not None}
    lines += [f"{name} = {value}" for name, value in moved.items()] or ["# Every knob stays with the server's choice."]
    return "\n".join(lines) + "\n"


def _to_evidence(conditions: RunConditions) -> Evidence:
    return Evidence(
        version=conditions.software.chairlift,
        commit=conditions.software.commit,
        model_fingerprint=conditions.model.fingerprint,
        config_revision=conditions.config_revision,
        machine=conditions.machine,
    )


def format_trial(trial: Trial) -> str:
    """One line."""
    knobs = ", ".join(f"{name}={value}" for name, value in trial.setting.knobs.items() if value is not None)
    verdict = "within" if trial.is_feasible else _one_line("; ".join(trial.violations))
    if trial.is_refused:
        return f"{trial.setting.concurrency} users, {knobs or 'defaults'}: did not run: {verdict}"
    return (
        f"{trial.setting.concurrency} users, {knobs or 'defaults'}: {trial.output_throughput:.1f} tok/s, "
        f"p99 TTFT {_ms(trial.ttft_p99_ms)}, p99 ITL {_ms(trial.itl_p99_ms)}: {verdict}"
    )


def _one_line(text: str) -> str:
    """A server's message may have lines, and a comment of the file has one."""
    return " ".join(text.split())


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} ms"
