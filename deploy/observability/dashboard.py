"""Writes the Grafana dashboard from a list of panels, so that a person reads and reviews the list.

    python -m deploy.observability.dashboard > deploy/observability/grafana/dashboards/chairlift.json

A test holds the committed file to this, and every query to the table of metrics.
"""

import json
import sys
from typing import Any

import msgspec

_WIDTH, _PANEL_WIDTH, _PANEL_HEIGHT = 24, 8, 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Query(msgspec.Struct, frozen=True):
    """One series, or one for each value of a label."""

    expression: str
    legend: str


class Panel(msgspec.Struct, frozen=True):
    """A graph over time."""

    title: str
    unit: str
    """As Grafana names it."""
    queries: tuple[Query, ...]
    description: str = ""
    is_stacked: bool = False
    maximum: float | None = None


class Row(msgspec.Struct, frozen=True):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(
            f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))",
            f"p{q * 100:.0f}{legend}",
        )
        for q in (0.5, 0.95, 0.99)
    )


def _rate(metric: str, by: str = "", legend: str = "") -> Query:
    aggregate = f"sum by ({by})" if by else "sum"
    return Query(f"{aggregate} (rate({metric}[$__rate_interval]))", legend or f"{{{{{by}}}}}")


ROWS = (
    Row(
        "What callers get",
        (
            Panel(
                "Requests by status",
                "reqps",
                (_rate("chairlift_gateway_requests_total", "code"),),
                "Generate and Resume calls that ended, by gRPC status.",
                is_stacked=True,
            ),
            Panel("Time to first token", "s", _quantiles("gen_ai_server_time_to_first_token_seconds")),
            Panel("Time per output token", "s", _quantiles("gen_ai_server_time_per_output_token_seconds")),
            Panel("Request duration", "s", _quantiles("gen_ai_server_request_duration_seconds")),
            Panel("Turned away, by reason", "reqps", (_rate("chairlift_gateway_refusals_total", "reason"),)),
            Panel("Open streams", "short", (Query("sum (chairlift_gateway_streams)", "streams"),)),
        ),
    ),
    Row(
        "The batch",
        (
            Panel(
                "Output tokens",
                "short",
                (_rate("chairlift_scheduler_tokens_output_total", legend="tokens/s"),),
                "Tokens a second of all replicas.",
            ),
            Panel(
                "Sequences",
                "short",
                (
                    Query("sum (chairlift_scheduler_running)", "running"),
                    Query("sum (chairlift_scheduler_waiting)", "waiting"),
                    Query("sum (chairlift_scheduler_preempted)", "of these preempted"),
                    Query("sum (chairlift_scheduler_seats_limit)", "seats"),
                ),
            ),
            Panel(
                "What requests wait for",
                "s",
                (_rate("chairlift_scheduler_wait_seconds_total", "reason"),),
                "Seconds waited a second, by reason, of requests that have ended.",
                is_stacked=True,
            ),
            Panel(
                "KV cache",
                "percentunit",
                (
                    Query("chairlift_scheduler_kv_usage", "in use"),
                    Query("chairlift_scheduler_kv_cached_share", "cached"),
                ),
                is_stacked=True,
                maximum=1,
            ),
            Panel(
                "Prefix hits",
                "percentunit",
                (Query("chairlift:prefix_hits:ratio_rate5m", "of prompt tokens"),),
                maximum=1,
            ),
            Panel(
                "Preemptions and discarded rows",
                "short",
                (
                    _rate("chairlift_scheduler_preemptions_total", legend="preemptions/s"),
                    _rate("chairlift_scheduler_discarded_rows_total", legend="discarded rows/s"),
                ),
            ),
        ),
    ),
    Row(
        "The step",
        (
            Panel("Step time by part", "s", _quantiles("chairlift_worker_step_duration_seconds", "part")),
            Panel("Tokens in a step", "short", _quantiles("chairlift_worker_plan_size")),
            Panel(
                "Token budget in use",
                "percentunit",
                (Query("chairlift_scheduler_token_budget_usage", "of the step in flight"),),
                maximum=1,
            ),
            Panel(
                "Scheduler's time a step",
                "s",
                (Query("chairlift:scheduler_seconds_per_step:rate5m", "busy"),),
            ),
            Panel(
                "Error of the predicted first token",
                "percentunit",
                (Query("chairlift_scheduler_ttft_prediction_error", "mean relative error"),),
            ),
            Panel(
                "Steps",
                "short",
                (
                    _rate("chairlift_worker_steps_total", legend="done/s"),
                    _rate("chairlift_worker_steps_failed_total", legend="failed/s"),
                    _rate("chairlift_worker_plans_refused_total", legend="plans refused/s"),
                ),
            ),
        ),
    ),
    Row(
        "Tenants and faults",
        (
            Panel("Service by tenant", "short", (_rate("chairlift_scheduler_tenant_service_total", "tenant"),)),
            Panel(
                "Workers lost",
                "short",
                (Query("sum (increase(chairlift_scheduler_worker_losses_total[5m]))", "in 5 minutes"),),
            ),
            Panel(
                "Objectives: share missed in an hour",
                "percentunit",
                (
                    Query("chairlift:request_errors:ratio_rate1h", "errors"),
                    Query("chairlift:ttft_slow:ratio_rate1h", "first token late"),
                    Query("chairlift:itl_slow:ratio_rate1h", "tokens slow"),
                ),
            ),
            Panel("Spans lost", "short", (_rate("chairlift_telemetry_spans_dropped_total", "reason"),)),
        ),
    ),
)


def render_dashboard() -> str:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append(
            {"type": "row", "title": row.title, "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y}, "panels": []}
        )
        y += 1
        for index, panel in enumerate(row.panels):
            line, column = divmod(index, _WIDTH // _PANEL_WIDTH)
            panels.append(_panel(panel, column * _PANEL_WIDTH, y + line * _PANEL_HEIGHT))
        y += -(-len(row.panels) // (_WIDTH // _PANEL_WIDTH)) * _PANEL_HEIGHT
    for number, placed in enumerate(panels, start=1):
        placed["id"] = number
    dashboard = {
        "uid": "chairlift",
        "title": "Chairlift",
        "tags": ["chairlift"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _panel(panel: Panel, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "custom": {
            "drawStyle": "line",
            "fillOpacity": 15 if panel.is_stacked else 0,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        },
    }
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"h": _PANEL_HEIGHT, "w": _PANEL_WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(render_dashboard())
