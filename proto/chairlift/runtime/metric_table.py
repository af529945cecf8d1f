"""Every metric of every process: name, kind, unit, label, meaning. The one place; a test holds a scrape against it.

Names, units and bucket boundaries of ``gen_ai.*`` are those of OpenTelemetry's semantic conventions for GenAI servers.
A histogram shows with its first measurement, everything else from the start, at zero.
"""

import enum

import msgspec


class MetricKind(enum.StrEnum):
    """What may be done with the numbers."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: MetricKind
    unit: str
    """As UCUM has it; ``{…}`` counts things."""
    description: str
    labels: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()
    """Of a histogram's buckets."""

    @property
    def exposed_name(self) -> str:
        """The name in Prometheus' text, without what a histogram's series add to it."""
        name = self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "")
        return f"{name}_total" if self.kind is MetricKind.COUNTER else name


_SUFFIXES = {"s": "_seconds"}
_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

_GEN_AI_LABELS = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_OUTPUT_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PLAN_TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)

REQUEST_DURATION = MetricSpec(
    "gen_ai.server.request.duration",
    _HISTOGRAM,
    "s",
    "From a Generate call's arrival to its end; error.type where that is not OK.",
    (*_GEN_AI_LABELS, "error.type"),
    _DURATION_S,
)
TIME_TO_FIRST_TOKEN = MetricSpec(
    "gen_ai.server.time_to_first_token",
    _HISTOGRAM,
    "s",
    "From a Generate call's arrival to its first token, of those that end well.",
    _GEN_AI_LABELS,
    _FIRST_TOKEN_S,
)
TIME_PER_OUTPUT_TOKEN = MetricSpec(
    "gen_ai.server.time_per_output_token",
    _HISTOGRAM,
    "s",
    "Time for each token after the first, of Generate calls that end well.",
    _GEN_AI_LABELS,
    _OUTPUT_TOKEN_S,
)
REQUESTS = MetricSpec(
    "chairlift.gateway.requests", _COUNTER, "{request}", "Generate and Resume calls that ended.", ("code",)
)
REFUSALS = MetricSpec(
    "chairlift.gateway.refusals",
    _COUNTER,
    "{request}",
    "Generate and Resume calls turned away before the request was in.",
    ("reason",),
)
OPEN_STREAMS = MetricSpec("chairlift.gateway.streams", _GAUGE, "{stream}", "Streams open now.")
RESUBMISSIONS = MetricSpec(
    "chairlift.gateway.requests.resubmitted",
    _COUNTER,
    "{request}",
    "Submissions of requests whose scheduler was lost, or could serve no longer, to another or to its next life.",
)
SLOW_CLIENTS = MetricSpec(
    "chairlift.gateway.streams.cut", _COUNTER, "{stream}", "Streams ended because their client did not read."
)
GATEWAY_MALFORMED = MetricSpec(
    "chairlift.gateway.malformed_messages",
    _COUNTER,
    "{message}",
    "Messages of schedulers dropped because they were none, or did not fit what came before.",
)

SPANS_EXPORTED = MetricSpec(
    "chairlift.telemetry.spans.exported", _COUNTER, "{span}", "Spans that were sent to the collector."
)
SPANS_DROPPED = MetricSpec(
    "chairlift.telemetry.spans.dropped",
    _COUNTER,
    "{span}",
    "Spans that were lost: queue_full, or export_failed.",
    ("reason",),
)
_EVERYWHERE = (SPANS_EXPORTED, SPANS_DROPPED)

GATEWAY = (
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    REQUESTS,
    REFUSALS,
    OPEN_STREAMS,
    RESUBMISSIONS,
    SLOW_CLIENTS,
    GATEWAY_MALFORMED,
    *_EVERYWHERE,
)

_S = "chairlift.scheduler."
KV_USAGE = MetricSpec(
    f"{_S}kv.usage", _GAUGE, "1", "Share of KV blocks in use, 0 to 1; read by Kubernetes' inference extension."
)
SCHEDULER_READINGS = {
    "running": MetricSpec(
        f"{_S}running", _GAUGE, "{sequence}", "Sequences in the batch; read by Kubernetes' inference extension."
    ),
    "waiting": MetricSpec(
        f"{_S}waiting",
        _GAUGE,
        "{sequence}",
        "Sequences without a seat, preempted ones included; read by Kubernetes' inference extension.",
    ),
    "preempted": MetricSpec(f"{_S}preempted", _GAUGE, "{sequence}", "Waiting sequences that had a seat before."),
    "queued_tokens": MetricSpec(
        f"{_S}queued_tokens", _GAUGE, "{token}", "Prompt tokens of waiting sequences that are not computed."
    ),
    "blocks_total": MetricSpec(f"{_S}kv.blocks.limit", _GAUGE, "{block}", "KV blocks that there are."),
    "blocks_free": MetricSpec(f"{_S}kv.blocks.free", _GAUGE, "{block}", "KV blocks without use and content."),
    "blocks_cached": MetricSpec(
        f"{_S}kv.blocks.cached", _GAUGE, "{block}", "KV blocks that nobody uses, kept for prefix hits."
    ),
    "blocks_used": MetricSpec(f"{_S}kv.blocks.used", _GAUGE, "{block}", "KV blocks in use."),
    "attached_gateways": MetricSpec(f"{_S}gateways", _GAUGE, "{gateway}", "Gateways attached."),
    "steps": MetricSpec(f"{_S}steps", _COUNTER, "{step}", "Steps completed."),
    "preemptions": MetricSpec(f"{_S}preemptions", _COUNTER, "{preemption}", "Sequences that lost their seat."),
    "requests_accepted": MetricSpec(f"{_S}requests.accepted", _COUNTER, "{request}", "Requests let in."),
    "requests_refused": MetricSpec(f"{_S}requests.refused", _COUNTER, "{request}", "Requests refused."),
    "requests_ended": MetricSpec(f"{_S}requests.ended", _COUNTER, "{request}", "Requests that ended, however."),
    "prompt_tokens": MetricSpec(f"{_S}tokens.prompt", _COUNTER, "{token}", "Prompt tokens of requests."),
    "cached_tokens": MetricSpec(
        f"{_S}tokens.cached", _COUNTER, "{token}", "Prompt tokens that prefix hits saved computing."
    ),
    "output_tokens": MetricSpec(f"{_S}tokens.output", _COUNTER, "{token}", "Output tokens."),
    "discarded_rows": MetricSpec(
        f"{_S}discarded_rows", _COUNTER, "{row}", "Rows computed for sequences that had ended meanwhile."
    ),
    "worker_losses": MetricSpec(f"{_S}worker_losses", _COUNTER, "{worker}", "Workers lost."),
    "malformed_messages": MetricSpec(
        f"{_S}malformed_messages", _COUNTER, "{message}", "Frames dropped because they were no message of their link."
    ),
    "swapped": MetricSpec(f"{_S}swapped", _GAUGE, "{sequence}", "Waiting sequences whose KV lies in the host's pool."),
    "host_blocks_total": MetricSpec(f"{_S}kv.host_blocks.limit", _GAUGE, "{block}", "Blocks of the host's pool."),
    "host_blocks_used": MetricSpec(f"{_S}kv.host_blocks.used", _GAUGE, "{block}", "Those in use."),
    "config_revision": MetricSpec(
        f"{_S}config.revision", _GAUGE, "{revision}", "Revision of the scheduling configuration in force."
    ),
}
"""By the field of the load report that each tells."""

EXCUSED_LOSSES = MetricSpec(
    f"{_S}worker_losses.excused", _COUNTER, "{worker}", "Deaths of workers that a request was found guilty of."
)
KV_CACHED_SHARE = MetricSpec(
    f"{_S}kv.cached_share", _GAUGE, "1", "Share of KV blocks that nobody uses, kept for prefix hits, 0 to 1."
)
SEATS = MetricSpec(f"{_S}seats.limit", _GAUGE, "{sequence}", "Seats that there are; 0 before the first worker is up.")
TOKEN_BUDGET = MetricSpec(
    f"{_S}token_budget.limit", _GAUGE, "{token}", "Tokens that one step may compute; 0 before the first worker is up."
)
TOKEN_BUDGET_USAGE = MetricSpec(
    f"{_S}token_budget.usage", _GAUGE, "1", "Share of its token budget that the step in flight uses, 0 to 1."
)
QUEUE_WAIT = MetricSpec(
    f"{_S}wait", _COUNTER, "s", "Time that requests which have ended had waited, by what they waited for.", ("reason",)
)
PREDICTION_ERROR = MetricSpec(
    f"{_S}ttft_prediction.error",
    _GAUGE,
    "1",
    "Mean error of the predicted time to the first token, recently: |told - actual| / actual.",
)
PREDICTIONS = MetricSpec(
    f"{_S}ttft_prediction.checked", _COUNTER, "{prediction}", "Predictions of the first token that met the truth."
)
FAILED_STEPS = MetricSpec(f"{_S}steps.failed", _COUNTER, "{step}", "Steps that gave no result.")
STALE_RESULTS = MetricSpec(
    f"{_S}stale_results", _COUNTER, "{result}", "Results of another epoch or of no step in flight: dropped."
)
LOOP_BUSY = MetricSpec(
    f"{_S}loop.busy", _COUNTER, "s", "Time that the loop worked; over steps it is what a step costs the scheduler."
)
TENANT_SERVICE = MetricSpec(
    f"{_S}tenant.service",
    _COUNTER,
    "{token}",
    "Tokens computed by tenant, each once; those beyond telemetry.max_tenant_series together as other.",
    ("tenant",),
)

SCHEDULER = (
    *SCHEDULER_READINGS.values(),
    KV_USAGE,
    KV_CACHED_SHARE,
    EXCUSED_LOSSES,
    SEATS,
    TOKEN_BUDGET,
    TOKEN_BUDGET_USAGE,
    QUEUE_WAIT,
    PREDICTION_ERROR,
    PREDICTIONS,
    FAILED_STEPS,
    STALE_RESULTS,
    LOOP_BUSY,
    TENANT_SERVICE,
    *_EVERYWHERE,
)

_W = "chairlift.worker."
WORKER_STEPS = MetricSpec(f"{_W}steps", _COUNTER, "{step}", "Steps carried out.")
WORKER_FAILED = MetricSpec(f"{_W}steps.failed", _COUNTER, "{step}", "Steps that gave no result.")
WORKER_REFUSED = MetricSpec(
    f"{_W}plans.refused", _COUNTER, "{plan}", "Plans of no use because they did not follow the last, or it failed."
)
WORKER_FOREIGN = MetricSpec(
    f"{_W}plans.foreign", _COUNTER, "{plan}", "Plans dropped because they were for another life of this worker."
)
STEP_DURATION = MetricSpec(
    f"{_W}step.duration",
    _HISTOGRAM,
    "s",
    "Time of a step: part device is the model and sampling, host all around it.",
    ("part",),
    _STEP_S,
)
PLAN_SIZE = MetricSpec(f"{_W}plan.size", _HISTOGRAM, "{token}", "Tokens computed in one step.", boundaries=_PLAN_TOKENS)

WORKER = (WORKER_STEPS, WORKER_FAILED, WORKER_REFUSED, WORKER_FOREIGN, STEP_DURATION, PLAN_SIZE, *_EVERYWHERE)

METRICS = {"gateway": GATEWAY, "scheduler": SCHEDULER, "worker": WORKER}
"""By process."""
