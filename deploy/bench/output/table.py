"""Tables for the terminal. Pure: returns text."""

from collections.abc import Sequence

from deploy.bench.figures.summary import RunSummary
from deploy.bench.output.result import RunResult

TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "icl": "Inter-chunk latency",
    "e2el": "End-to-end latency",
    "queue": "Queue (server's account)",
}


def format_table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Columns as wide as they need to be: the first flush left, the others flush right."""
    lines = [*([list(header)] if header else []), *[list(row) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        text.append("  ".join(cells).rstrip())
    if header:
        text.insert(1, "-" * max(len(line) for line in text))
    return "\n".join(text)


def format_run(result: RunResult, summary: RunSummary) -> str:
    """What `chairlift bench serve` shows at its end."""
    parts = [format_table(total_rows(result, summary)), "", _latencies(summary)]
    if result.warnings:
        parts += ["", *(f"warning: {warning}" for warning in result.warnings)]
    return "\n".join(parts)


def total_rows(result: RunResult, summary: RunSummary) -> list[tuple[str, str]]:
    """Counts and throughput: name and value."""
    rows = [
        ("Requests completed", f"{summary.completed}"),
        ("Requests failed", f"{summary.failed}" + _reasons(summary)),
        ("Duration (s)", f"{summary.duration:.2f}"),
        ("Input tokens", f"{summary.total_input_tokens}"),
        ("Output tokens", f"{summary.total_output_tokens}"),
        ("Request throughput (req/s)", f"{summary.request_throughput:.3f}"),
        ("Output token throughput (tok/s)", f"{summary.output_throughput:.1f}"),
        ("Total token throughput (tok/s)", f"{summary.total_token_throughput:.1f}"),
        ("Peak output token throughput (tok/s)", f"{summary.max_output_tokens_per_s:.0f}"),
        ("Peak concurrent requests", f"{summary.max_concurrent_requests}"),
        ("Late sending, p99 (ms)", f"{summary.send_lag_p99_ms:.2f}"),
    ]
    if summary.request_goodput is not None:
        rows.insert(6, ("Request goodput (req/s)", f"{summary.request_goodput:.3f}"))
    if result.server is not None:
        server = result.server
        rows += [
            ("Batch size, mean / max", f"{server.running_mean:.1f} / {server.running_max}"),
            ("Waiting, max", f"{server.waiting_max}"),
            ("KV use, mean / max", f"{server.kv_used_share_mean:.1%} / {server.kv_used_share_max:.1%}"),
            ("Preemptions", f"{server.preemptions}"),
            ("Cached prompt tokens", f"{server.cached_tokens} of {server.prompt_tokens}"),
        ]
    return rows


def _reasons(summary: RunSummary) -> str:
    told = ", ".join(f"{reason} × {count}" for reason, count in summary.reasons.items())
    return f" ({told})" if told else ""


def latency_rows(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """A header, and a row for each kind of latency; no rows where nothing came to its end."""
    quantiles = list(next(iter(summary.latencies.values())).percentiles) if summary.latencies else []
    header = ["ms", "mean", *(f"p{q:g}" for q in quantiles), "p99's 95 % interval"]
    latencies = {TITLES[name]: latency for name, latency in summary.latencies.items()}
    for tenant, of_tenant in summary.tenants.items():
        latencies |= {f"{TITLES[name]}, {tenant}": of_tenant[name] for name in ("ttft", "e2el") if name in of_tenant}
    rows = []
    for title, latency in latencies.items():
        cells = [f"{value:.2f}" + ("*" if q in latency.unsupported else "") for q, value in latency.percentiles.items()]
        interval = latency.intervals[99.0]
        rows.append([title, f"{latency.mean:.2f}", *cells, f"{interval.low:.2f} … {interval.high:.2f}"])
    return header, rows


def _latencies(summary: RunSummary) -> str:
    header, rows = latency_rows(summary)
    if not rows:
        return "No request came to its end: no latencies."
    is_thin = any(one.unsupported for one in summary.latencies.values())
    return format_table(rows, header) + ("\n* fewer than 5 observations lie beyond it" if is_thin else "")
