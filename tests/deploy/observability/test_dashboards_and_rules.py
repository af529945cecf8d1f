"""What operators look at names metrics, labels and bucket bounds that exist; the committed dashboard is the list's."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.runtime.metric_table import METRICS, MetricKind, MetricSpec
from deploy.observability.dashboard import render_dashboard
from deploy.observability.operator_rules import render_rules

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "observability"
RULES = FOLDER / "prometheus" / "rules.yaml"
_NAME = re.compile(r"\b(?:chairlift|gen_ai)[a-zA-Z0-9_:]*")
_SELECTOR = re.compile(r"((?:chairlift|gen_ai)[a-zA-Z0-9_:]*)\{([^}]*)\}")
_MATCHER = re.compile(r'([a-zA-Z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_TEXT = re.compile(r'"[^"]*"')
_BY = re.compile(r"by \(([^)]*)\)")
_OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def _queries() -> Iterator[tuple[str, str]]:
    """(where, expression) of all panels and rules."""
    for panel in json.loads(render_dashboard())["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
    yield from ((rule.get("record") or rule["alert"], rule["expr"]) for rule in _rules())


def _series() -> dict[str, MetricSpec | None]:
    """Every name that a query may use, with its metric; recorded ones have none."""
    specs = [spec for process in METRICS.values() for spec in process]
    found: dict[str, MetricSpec | None] = {rule["record"]: None for rule in _rules() if "record" in rule}
    for spec in specs:
        if spec.kind is MetricKind.HISTOGRAM:
            found |= {spec.exposed_name + suffix: spec for suffix in _OF_HISTOGRAMS}
        else:
            found[spec.exposed_name] = spec
    return found


SERIES = _series()


@pytest.mark.parametrize(("where", "expression"), list(_queries()))
def test_a_query_names_what_exists(where: str, expression: str) -> None:
    names = _NAME.findall(_TEXT.sub('""', expression))
    assert names or expression.startswith("up{"), f"{where}: no metric in {expression}"
    unknown = [name for name in names if name not in SERIES]
    assert not unknown, f"{where}: no such metric"
    labels = {"le"} | {label.replace(".", "_") for name in names if (spec := SERIES[name]) for label in spec.labels}
    for group in _BY.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels, where
    for name, matchers in _SELECTOR.findall(expression):
        spec = SERIES[name]
        assert spec is not None, f"{where}: a recorded series has no labels here"
        for label, value in _MATCHER.findall(matchers):
            if label == "le":
                assert float(value) in spec.boundaries, f"{where}: no bucket ends at {value}"
            else:
                assert label in {each.replace(".", "_") for each in spec.labels}, where


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in _rules() if "alert" in rule]
    assert len(alerts) >= 6
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]
        assert len(alert["annotations"]["runbook"]) > 40
    assert {"ChairliftErrorsFast", "ChairliftFirstTokenFast", "ChairliftTokenPaceFast"} <= {a["alert"] for a in alerts}


def test_the_committed_dashboard_is_the_lists() -> None:
    assert (FOLDER / "grafana" / "dashboards" / "chairlift.json").read_text() == render_dashboard()


def test_the_prometheus_operator_gets_the_same_rules() -> None:
    committed = FOLDER.parent / "kubernetes" / "components" / "monitoring" / "prometheusrule.yaml"
    assert committed.read_text() == render_rules()


def test_panels_have_places_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(render_dashboard())["panels"]:
        grid = panel["gridPos"]
        own = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert not own & cells, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        cells |= own


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_takes_rules_and_configuration() -> None:
    for command in (
        ["check", "rules", str(RULES)],
        ["check", "config", str(FOLDER / "prometheus" / "prometheus.yaml")],
    ):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """Cases in ``alerts.yaml``. Without annotations: they would have to be repeated there word for word."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(Path(__file__).parent / "alerts.yaml", tmp_path)
    command = ["promtool", "test", "rules", str(tmp_path / "alerts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
