"""Every setting of every process, with its default, its bounds and what it is for.

One file holds all of it; each process validates the whole. `chairlift.runtime.settings_loader` reads it.
Durations end in ``_s`` (seconds) or ``_ms``, sizes in ``_bytes``.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chairlift.ipc.tenant_rule import TenantRule

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
CountOrZero = Annotated[int, Meta(ge=0, le=1 << 31)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
BytesOrZero = Annotated[int, Meta(ge=0, le=1 << 50)]
Seconds = Annotated[float, Meta(gt=0, le=1e7)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=1e7)]
Seats = Annotated[int, Meta(ge=1, le=65_536)]
StepTokens = Annotated[int, Meta(ge=1, le=1 << 20)]
Threads = Annotated[int, Meta(ge=1, le=256)]
Share = Annotated[float, Meta(gt=0, le=1)]
Milliseconds = Annotated[float, Meta(gt=0, le=1e10)]
MillisecondsOrZero = Annotated[float, Meta(ge=0, le=1e10)]
ShareOrZero = Annotated[float, Meta(ge=0, lt=1)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of a section: unknown keys are refused with their path."""


class ModelSettings(_Section, frozen=True):
    """Which model is served, by all three processes."""

    source: Annotated[str, Meta(description="A folder, a GGUF file, smollm2-135m (built in), or a hub id.")] = (
        "smollm2-135m"
    )
    revision: Annotated[str | None, Meta(description="Revision of a hub id.")] = None
    served_name: Annotated[str | None, Meta(description="Name that clients use; default: from the source.")] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], Meta(description="Of weights and KV cache; auto: bfloat16.")
    ] = "auto"
    quantization: Annotated[
        Literal["auto", "none", "int8", "gguf"],
        Meta(
            description="How weights are held. none: in dtype; int8: in 8 bits, with a scale for each output; gguf: "
            "in the 4 or 8 bits of a GGUF file, without loss; auto: none. gguf: native kernels only; int8: triton too."
        ),
    ] = "auto"
    max_model_len: Annotated[
        Count | None, Meta(description="Tokens of prompt and output together; default: the model's own.")
    ] = None


class IpcSettings(_Section, frozen=True):
    """The two ZeroMQ links."""

    run_dir: Annotated[
        str | None,
        Meta(description="0700 folder for ipc:// sockets; default: a folder for this user in the run-time folder."),
    ] = None
    gateway_endpoint: Annotated[
        str | None, Meta(description="Where the scheduler binds for gateways; default: ipc:// in run_dir.")
    ] = None
    worker_endpoint: Annotated[
        str | None, Meta(description="Where the scheduler binds for workers; default: ipc:// in run_dir.")
    ] = None
    allow_plaintext: Annotated[
        bool, Meta(description="Allow tcp:// endpoints that are not on loopback without encryption.")
    ] = False
    curve_secret_key_file: Annotated[
        str | None,
        Meta(
            description="This process's CURVE key, as `chairlift keys new` writes it: tcp:// links are then encrypted "
            "and both ends prove who they are; default: plaintext."
        ),
    ] = None
    curve_scheduler_keys_file: Annotated[
        str | None,
        Meta(description="Gateway, worker: the scheduler's public key; several: one a line, each with its endpoint."),
    ] = None
    curve_gateway_keys_file: Annotated[
        str | None, Meta(description="Scheduler: public keys of gateways, one a line; nobody else is let in.")
    ] = None
    curve_worker_keys_file: Annotated[
        str | None, Meta(description="Scheduler: public keys of workers, one a line; nobody else is let in.")
    ] = None
    heartbeat_interval_s: Annotated[
        Seconds,
        Meta(description="How often the scheduler says that it lives, which the others answer."),
    ] = 0.5
    idle_heartbeat_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="The same while it has no request and nothing happens: so much later is silence noticed then. "
            "It is heartbeat_interval_s where that is larger, and while the scheduler records.",
        ),
    ] = 10.0
    heartbeat_timeout_s: Annotated[Seconds, Meta(description="Silence after which a peer counts as lost.")] = 2.0
    max_message_bytes: Annotated[Bytes, Meta(description="Largest frame taken from a link.")] = 64 << 20
    send_queue_messages: Annotated[Count, Meta(description="Messages queued to one peer before it counts as lost.")] = (
        4096
    )


class TelemetrySettings(_Section, frozen=True):
    """Logs, traces and metrics. Where the last two are sent is said by OpenTelemetry's standard variables."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is written.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"], Meta(description="auto: console on a terminal, else JSON.")
    ] = "auto"
    iteration_span_share: Annotated[
        float,
        Meta(
            ge=0, le=1, description="Share of the iterations with a sampled request in them that get a span; 0: none."
        ),
    ] = 0.01
    max_tenant_series: Annotated[
        CountOrZero, Meta(description="Tenants with series of their own in the scheduler's metrics; the rest is other.")
    ] = 20


class GatewaySettings(_Section, frozen=True):
    """The gRPC front."""

    listen: Annotated[str, Meta(description="Public address.")] = "127.0.0.1:50051"
    ops_listen: Annotated[str, Meta(description="Operator's address; gateway i listens on port + i.")] = (
        "127.0.0.1:50052"
    )
    http_listen: Annotated[
        str, Meta(description="OpenAI-compatible HTTP, shared by all gateways as `listen` is; empty: none.")
    ] = ""
    http_read_timeout_s: Annotated[
        Seconds, Meta(description="Time that the head of an HTTP request may take, and its body.")
    ] = 30.0
    metrics_listen: Annotated[str, Meta(description="HTTP /livez, /readyz, /metrics; port + index; empty: none.")] = (
        "127.0.0.1:9460"
    )
    allow_insecure_public: Annotated[
        bool, Meta(description="Listen on a non-loopback address without authentication.")
    ] = False
    auth_file: Annotated[
        str | None,
        Meta(
            description="TOML or JSON file of tenants and hashed bearer tokens, read again when it changes; default: "
            "no authentication, every caller is the tenant default."
        ),
    ] = None
    health_without_auth: Annotated[
        bool, Meta(description="With auth_file: gRPC health answers callers without a token, as probes are.")
    ] = True
    reflection_without_auth: Annotated[
        bool, Meta(description="With auth_file: gRPC reflection answers callers without a token.")
    ] = False
    viewers_see_requests: Annotated[
        bool, Meta(description="With auth_file: viewers of the operator's port see requests' ids and tenants.")
    ] = False
    tls_cert_file: Annotated[
        str | None, Meta(description="PEM chain of gRPC and HTTP ports, read again when it changes; default: no TLS.")
    ] = None
    tls_key_file: Annotated[str | None, Meta(description="PEM private key of tls_cert_file.")] = None
    tls_client_ca_file: Annotated[
        str | None, Meta(description="PEM roots of client certificates, which are then required (mTLS).")
    ] = None
    ops_tls_client_ca_file: Annotated[
        str | None, Meta(description="The same for the operator port; default: tls_client_ca_file.")
    ] = None
    secret_poll_interval_s: Annotated[
        Seconds, Meta(description="How often auth_file and TLS files are looked at for another content.")
    ] = 2.0
    replicas: Annotated[
        tuple[str, ...],
        Meta(
            description="Gateway endpoints of schedulers; a tcp:// name that stands for several addresses is as many "
            "replicas; empty: ipc.gateway_endpoint."
        ),
    ] = ()
    replicas_file: Annotated[
        str | None, Meta(description="File of such endpoints, one a line, # for comments; followed as it changes.")
    ] = None
    replica_poll_interval_s: Annotated[
        Seconds, Meta(description="How often names in replicas are resolved again and replicas_file is looked at.")
    ] = 5.0
    max_connection_age_s: Annotated[
        SecondsOrZero,
        Meta(description="Age at which a client's connection is told to go, so that clients spread; 0: never."),
    ] = 0.0
    max_connection_age_grace_s: Annotated[
        Seconds, Meta(description="Time that open calls get on a connection that was told to go.")
    ] = 3600.0
    index: Annotated[CountOrZero, Meta(description="Number of this gateway among those on one machine.")] = 0
    max_request_bytes: Annotated[Bytes, Meta(description="Largest request message.")] = 4 << 20
    max_concurrent_streams: Annotated[Count, Meta(description="Open calls in this process.")] = 10_000
    max_request_duration_s: Annotated[Seconds, Meta(description="Bound on every request's deadline.")] = 3600.0
    max_detach_grace_s: Annotated[SecondsOrZero, Meta(description="Cap on a request's detach_grace.")] = 300.0
    default_max_tokens: Annotated[
        Count | None, Meta(description="Bound where a request gives no max_tokens; default: the context's end.")
    ] = None
    max_choices: Annotated[int, Meta(ge=1, le=256, description="Largest n.")] = 16
    max_stop_strings: Annotated[Count, Meta(description="Stop strings a request.")] = 32
    max_stop_bytes: Annotated[Count, Meta(description="Bytes of one stop string.")] = 1024
    max_logprobs: Annotated[CountOrZero, Meta(description="Alternatives a token that may be asked for.")] = 20
    max_chat_messages: Annotated[Count, Meta(description="Messages in one chat.")] = 4096
    max_priority: Annotated[int, Meta(ge=0, le=1 << 30, description="Largest priority a request may ask for.")] = 100
    template_timeout_s: Annotated[Seconds, Meta(description="Time a chat template may take.")] = 2.0
    stream_queue_tokens: Annotated[Count, Meta(description="Tokens held for a reader before it counts as slow.")] = 4096
    slow_client_timeout_s: Annotated[Seconds, Meta(description="How long a reader may stay slow.")] = 30.0
    keepalive_time_s: Annotated[Seconds, Meta(description="Interval of HTTP/2 pings on idle connections.")] = 60.0
    min_client_ping_interval_s: Annotated[Seconds, Meta(description="Fastest client pings that are tolerated.")] = 10.0
    drain_timeout_s: Annotated[SecondsOrZero, Meta(description="Time that open streams get at shutdown.")] = 30.0
    reflection: Annotated[bool, Meta(description="Serve gRPC reflection.")] = True


class SchedulerSettings(_Section, frozen=True):
    """The scheduler process and its knobs (names as in the field)."""

    replica_id: Annotated[str, Meta(description="Name of this replica.")] = "replica-0"
    metrics_listen: Annotated[str, Meta(description="HTTP /livez, /readyz, /metrics; empty: none.")] = "127.0.0.1:9470"
    max_num_seqs: Annotated[Seats | None, Meta(description="Sequences in one step; default: by the device.")] = None
    max_num_batched_tokens: Annotated[
        StepTokens | None, Meta(description="Tokens in one step; default: by the device.")
    ] = None
    block_size: Annotated[int, Meta(ge=8, le=256, description="Tokens a KV block.")] = 16
    long_prefill_token_threshold: Annotated[
        CountOrZero, Meta(description="Largest chunk of one prompt in a step; 0: no bound of its own.")
    ] = 0
    watermark: Annotated[ShareOrZero, Meta(description="Share of blocks kept free when a waiting request boards.")] = (
        0.01
    )
    max_num_queued_reqs: Annotated[Count, Meta(description="Waiting requests before others are refused.")] = 10_000
    max_num_queued_tokens: Annotated[Count, Meta(description="Waiting prompt tokens before requests are refused.")] = (
        16_000_000
    )
    enable_chunked_prefill: Annotated[bool, Meta(description="Cut prompts into chunks by what budget is left.")] = True
    enable_prefix_caching: Annotated[bool, Meta(description="Share KV blocks of equal prefixes.")] = True
    share_prefix_across_tenants: Annotated[
        bool, Meta(description="Let tenants hit each other's cached prefixes (timing then tells them).")
    ] = False
    overlap: Annotated[bool, Meta(description="Send plan N+1 while step N runs.")] = True
    batching: Annotated[Literal["continuous", "static"], Meta(description="static is the textbook's baseline.")] = (
        "continuous"
    )
    static_batch_size: Annotated[Count | None, Meta(description="Sequences of a static batch; default: all seats.")] = (
        None
    )
    static_batch_wait_ms: Annotated[
        MillisecondsOrZero, Meta(description="How long a static batch waits to fill before it starts.")
    ] = 50.0
    itl_target_ms: Annotated[
        Milliseconds | None,
        Meta(description="Prompt chunks are cut so that running streams get a token at least so often; default: off."),
    ] = None
    ttft_slo_ms: Annotated[
        Milliseconds | None,
        Meta(description="Requests whose first token is predicted to come later are refused; default: none are."),
    ] = None
    queue_timeout_ms: Annotated[
        Milliseconds | None, Meta(description="Longest wait where a request says nothing; default: no bound.")
    ] = None
    policy: Annotated[
        Literal["fcfs", "priority", "fair", "slo"],
        Meta(
            description="Order of waiting requests: by arrival, by priority with ageing, fair between tenants, or by "
            "who is nearest to missing its objective."
        ),
    ] = "fcfs"
    max_priority_wait_s: Annotated[
        SecondsOrZero, Meta(description="priority and slo: who has waited so long goes before everyone.")
    ] = 30.0
    fair_input_cost: Annotated[Count, Meta(description="fair: what a computed prompt token counts.")] = 1
    fair_output_cost: Annotated[Count, Meta(description="fair: what an output token counts.")] = 2
    tenant_max_num_seqs: Annotated[Count | None, Meta(description="Seats of one tenant; default: no limit.")] = None
    tenant_max_num_queued_reqs: Annotated[
        Count | None, Meta(description="Waiting requests of one tenant; default: no limit of its own.")
    ] = None
    tenant_token_rate: Annotated[
        Count | None, Meta(description="Prompt and output tokens a second of one tenant; default: no limit.")
    ] = None
    tenants: Annotated[
        tuple[TenantRule, ...],
        Meta(
            description="Tenants with values of their own, each as 'name: weight=2, max_num_seqs=8, "
            "max_num_queued_reqs=100, token_rate=5000'; any of the four, weight is its share under fair."
        ),
    ] = ()
    preemption: Annotated[
        Literal["auto", "recompute", "swap"],
        Meta(
            description="What becomes of a preempted sequence's KV: computed again, copied to the host (where the "
            "worker has room there), or what is cheaper."
        ),
    ] = "auto"
    max_head_bypass_ms: Annotated[
        MillisecondsOrZero, Meta(description="How long smaller requests may pass one that does not fit.")
    ] = 1000.0
    gateway_loss_grace_s: Annotated[
        SecondsOrZero, Meta(description="How long requests of a lost gateway go on for someone to attach.")
    ] = 60.0
    worker_restart_grace_s: Annotated[
        SecondsOrZero, Meta(description="How long requests queue while no worker is up, before refusal.")
    ] = 120.0
    max_ended_requests_kept: Annotated[CountOrZero, Meta(description="Ended requests kept for Explain.")] = 1000
    drain_timeout_s: Annotated[SecondsOrZero, Meta(description="Time that running requests get at shutdown.")] = 30.0
    record: Annotated[
        str | None,
        Meta(description="Folder to record every event to, for `chairlift replay`; without a token. Default: off."),
    ] = None
    record_tokens: Annotated[bool, Meta(description="Record token values, tenants and request ids as well.")] = False
    record_max_bytes: Annotated[Bytes, Meta(description="Size of all recordings; the oldest go first.")] = 1 << 30
    record_max_age_s: Annotated[Seconds, Meta(description="Age at which recordings are removed.")] = 86_400.0


class WorkerSettings(_Section, frozen=True):
    """The device process."""

    device: Annotated[Literal["cpu", "cuda"], Meta(description="Where the model runs.")] = "cpu"
    metrics_listen: Annotated[str, Meta(description="HTTP /livez, /readyz, /metrics; port + rank; empty: none.")] = (
        "127.0.0.1:9480"
    )
    attention: Annotated[
        Literal["auto", "reference", "native", "triton", "cuda"],
        Meta(
            description="Kernels that run the model. native: compiled ones for x86-64 CPUs; triton: those for GPUs; "
            "cuda: as triton, decode attention in CUDA C++; reference: torch; auto: native on a CPU, triton on a GPU, "
            "reference with a notice where they are not to be had."
        ),
    ] = "auto"
    num_threads: Annotated[
        Threads | None, Meta(description="CPU threads of the model; default: one a physical core.")
    ] = None
    thread_spin_us: Annotated[
        float,
        Meta(ge=0, le=1e6, description="How long a waiting thread of the native kernels spins before it sleeps."),
    ] = 50.0
    pin_threads: Annotated[
        bool | None,
        Meta(
            description="Keep each thread of the native kernels on a core of its own; default: where two processors "
            "or more are left for the rest."
        ),
    ] = None
    kv_cache_bytes: Annotated[Bytes | None, Meta(description="Size of the KV cache; default: by memory found.")] = None
    kv_cache_memory_share: Annotated[
        Share, Meta(description="CPU: share of the memory available at start that the KV cache may take.")
    ] = 0.25
    max_kv_cache_bytes: Annotated[Bytes, Meta(description="CPU: bound on what kv_cache_memory_share gives.")] = 2 << 30
    swap_bytes: Annotated[
        BytesOrZero | None,
        Meta(
            description="Host memory for the KV of preempted sequences; 0: none, they are computed again. Default: 4 "
            "GiB, a tenth of what is available at most, on CUDA and where scheduler.preemption is swap; else none."
        ),
    ] = None
    gpu_memory_utilization: Annotated[Share, Meta(description="CUDA: share of the device for weights and cache.")] = 0.9
    stuck_step_min_s: Annotated[
        Seconds,
        Meta(description="A step that takes longer than this, and than 10 times what it should, ends the process."),
    ] = 10.0
    stuck_stage_timeout_s: Annotated[
        Seconds,
        Meta(description="Silence of the loop outside a step, or in a stage of loading, after which /livez fails."),
    ] = 120.0
    deterministic: Annotated[
        bool | None, Meta(description="Tokens do not depend on the batch; default: on CPU yes, on CUDA no.")
    ] = None


class SupervisorSettings(_Section, frozen=True):
    """`chairlift serve`, which starts and restarts the processes of one machine."""

    gateways: Annotated[Count, Meta(description="Gateway processes on one port.")] = 1
    start_timeout_s: Annotated[Seconds, Meta(description="Time to become ready.")] = 600.0
    max_restarts: Annotated[CountOrZero, Meta(description="Restarts of one process within restart_window_s.")] = 5
    restart_window_s: Annotated[Seconds, Meta(description="See max_restarts.")] = 120.0
    hang_timeout_s: Annotated[
        Seconds, Meta(description="How long a process that was ready may give no sign of life before it is replaced.")
    ] = 20.0
    stopped_timeout_s: Annotated[
        Seconds, Meta(description="How long a process may be stopped (SIGSTOP, for instance) before it is replaced.")
    ] = 1.0
    restart_backoff_s: Annotated[SecondsOrZero, Meta(description="Pause before a restart; doubles each time.")] = 0.2
    max_restart_backoff_s: Annotated[SecondsOrZero, Meta(description="Longest pause before a restart.")] = 10.0
    stop_timeout_s: Annotated[SecondsOrZero, Meta(description="Time from SIGTERM to SIGKILL, over the drain.")] = 10.0


class Settings(_Section, frozen=True):
    """All sections."""

    model: ModelSettings = ModelSettings()
    ipc: IpcSettings = IpcSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    gateway: GatewaySettings = GatewaySettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
