"""What a Prometheus answers to every query of the dashboard: whether the panels show something, without Grafana.

    python -m deploy.observability.answers http://127.0.0.1:9090

Prints a table in Markdown; exits with 1 where a query has no answer.
"""

import json
import sys
import urllib.parse
import urllib.request

import msgspec

from deploy.observability.dashboard import ROWS, Query

_RATE_INTERVAL = "1m"
_TIMEOUT_S = 30.0
_SHOWN = 4


class Answer(msgspec.Struct, frozen=True):
    """Values of one query at one moment, each with its labels."""

    panel: str
    query: Query
    values: tuple[tuple[str, float], ...]


def ask_panels(prometheus: str) -> list[Answer]:
    """Asks every query of every panel. Raises OSError where nobody answers, ValueError for a query that is refused."""
    return [
        Answer(panel.title, query, ask(prometheus, query.expression))
        for row in ROWS
        for panel in row.panels
        for query in panel.queries
    ]


def ask(prometheus: str, expression: str) -> tuple[tuple[str, float], ...]:
    """The present values of an expression, each with its labels. Raises OSError and ValueError."""
    concrete = expression.replace("$__rate_interval", _RATE_INTERVAL)
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': concrete})}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # the operator's own Prometheus
        told = json.load(answer)
    if told["status"] != "success":
        raise ValueError(f"{concrete}: {told.get('error')}")
    return tuple((_name(one["metric"]), float(one["value"][1])) for one in told["data"]["result"])


def _name(labels: dict[str, str]) -> str:
    left_out = ("__name__", "instance", "job")
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name not in left_out)


def render_table(answers: list[Answer]) -> str:
    """As Markdown, a line a query; of many series the largest ones."""
    lines = ["| panel | series | answer |", "|---|---|---|"]
    for answer in answers:
        largest = sorted(answer.values, key=lambda item: -item[1])[:_SHOWN]
        shown = "; ".join(f"{name}: {value:.4g}" if name else f"{value:.4g}" for name, value in largest)
        lines.append(f"| {answer.panel} | {answer.query.legend} | {shown or 'no answer'} |")
    return "\n".join(lines) + "\n"


def main(prometheus: str) -> int:
    """0 when every query has an answer."""
    answers = ask_panels(prometheus)
    sys.stdout.write(render_table(answers))
    return 0 if all(answer.values for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
