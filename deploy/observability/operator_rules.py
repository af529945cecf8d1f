"""Writes the rules of `prometheus/rules.yaml` as the Prometheus operator takes them.

    python -m deploy.observability.operator_rules > deploy/kubernetes/components/monitoring/prometheusrule.yaml

A test holds the committed file to this.
"""

import sys
from pathlib import Path

import yaml

RULES = Path(__file__).resolve().parent / "prometheus" / "rules.yaml"
_HEAD = "# Written by deploy/observability/operator_rules.py from deploy/observability/prometheus/rules.yaml.\n"


def render_rules() -> str:
    """A PrometheusRule."""
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "chairlift"},
        "spec": yaml.safe_load(RULES.read_text()),
    }
    body: str = yaml.safe_dump(manifest, sort_keys=False, width=1000)
    return _HEAD + body


if __name__ == "__main__":
    sys.stdout.write(render_rules())
