"""The manifests: valid by Kubernetes' own schemas, and in step with settings, ports and metrics of the processes."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from chairlift.runtime.metric_table import METRICS
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
BASE = FOLDER / "base"
_OF_OTHERS = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
"""Kinds that come with an operator."""

Object = dict[str, Any]


def _documents(path: Path) -> Iterator[Object]:
    yield from (document for document in yaml.safe_load_all(path.read_text()) if document)


def _kustomizations() -> list[Path]:
    return sorted(FOLDER.rglob("kustomization.yaml"))


def _manifests() -> list[Path]:
    return sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")


def _find(kind: str, name: str) -> Object:
    return next(
        document
        for path in BASE.glob("*.yaml")
        for document in _documents(path)
        if (document["kind"], document.get("metadata", {}).get("name")) == (kind, name)
    )


def _settings() -> dict[str, str]:
    (kustomization,) = _documents(BASE / "kustomization.yaml")
    return dict(literal.split("=", 1) for literal in kustomization["configMapGenerator"][0]["literals"])


def _pods() -> dict[str, Object]:
    """Pod templates by component."""
    found = (_find("Deployment", "chairlift-gateway"), _find("StatefulSet", "chairlift-replica"))
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"] for one in found}


def _containers() -> dict[str, Object]:
    return {one["name"]: one for pod in _pods().values() for one in pod["spec"]["containers"]}


def _patches() -> set[Path]:
    """Files that hold parts of objects: kustomize puts them together."""
    found = ((path, kustomization) for path in _kustomizations() for kustomization in _documents(path))
    return {path.parent / name for path, kustomization in found for name in _patch_files(kustomization)}


def _patch_files(kustomization: Object) -> list[str]:
    return [patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch]


@pytest.mark.parametrize("path", sorted(set(_manifests()) - _patches()), ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_manifest_fits_its_schema(path: Path) -> None:
    for document in _documents(path):
        if document["apiVersion"] not in _OF_OTHERS:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("path", sorted(_patches()), ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_patch_changes_containers_that_exist(path: Path) -> None:
    for patch in _documents(path):
        whole = _find(patch["kind"], patch["metadata"]["name"])["spec"]["template"]["spec"]
        pod = patch["spec"]["template"]["spec"]
        assert {one["name"] for one in pod["containers"]} <= {one["name"] for one in whole["containers"]}
        volumes = {one["name"] for one in (*whole["volumes"], *pod.get("volumes", ()))}
        for container in pod["containers"]:
            assert {one["name"] for one in container.get("volumeMounts", ())} <= volumes
            environ = {one["name"]: one["value"] for one in container["env"] if "__" in one["name"]}
            load_settings(environ=environ)


@pytest.mark.parametrize("path", _kustomizations(), ids=lambda path: str(path.parent.relative_to(FOLDER)))
def test_a_kustomization_names_files_that_exist(path: Path) -> None:
    (kustomization,) = _documents(path)
    named = [*kustomization.get("resources", ()), *kustomization.get("components", ())]
    named += _patch_files(kustomization)
    for name in named:
        assert (path.parent / name).exists(), name


@pytest.mark.parametrize("name", ["gateway", "scheduler", "worker"])
def test_what_a_container_is_told_are_settings(name: str) -> None:
    environ = _settings() | {
        one["name"]: one.get("value", "text") for one in _containers()[name]["env"] if "__" in one["name"]
    }
    settings = load_settings(environ=environ)
    ports = {port["name"]: port["containerPort"] for port in _containers()[name]["ports"]}
    metrics = "worker-metrics" if name == "worker" else "metrics"
    assert getattr(settings, name).metrics_listen == f"0.0.0.0:{ports[metrics]}"
    for probe in ("startupProbe", "readinessProbe"):
        assert _containers()[name][probe]["httpGet"]["port"] == metrics


def test_nobody_is_killed_in_the_middle_of_a_request() -> None:
    settings: Settings = load_settings(environ=_settings())
    longest = settings.gateway.max_request_duration_s
    for pod in _pods().values():
        for container in pod["spec"]["containers"]:
            command = container["lifecycle"]["preStop"]["exec"]["command"]
            pause = float(command[1]) if command[0] == "sleep" else 0.0
            assert pod["spec"]["terminationGracePeriodSeconds"] > longest + pause
    assert settings.gateway.drain_timeout_s > longest
    assert settings.scheduler.drain_timeout_s > longest
    worker = _containers()["worker"]["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "healthcheck.py 9470 /livez" in worker, "the worker outlives the scheduler's drain"


def test_containers_have_no_more_rights_than_they_need() -> None:
    for pod in _pods().values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})
            assert "memory" in container["resources"]["limits"]


def test_the_first_start_makes_no_keys_where_nothing_can_be_written() -> None:
    """Each pod failed in its init container: that wrote keys, unless told not to, and the root is read-only."""
    for pod in _pods().values():
        for container in pod["spec"]["initContainers"]:
            mounted = {one["mountPath"] for one in container["volumeMounts"]}
            environ = {one["name"]: one["value"] for one in container.get("env", ())}
            assert "/keys" in mounted or environ.get("CHAIRLIFT_MAKE_KEYS") == "false", container["name"]
            assert {"/models", "/tmp"} <= mounted


def test_gateways_reach_replicas_and_nobody_else_does() -> None:
    environ = {one["name"]: one.get("value") for one in _containers()["gateway"]["env"]}
    service = _find("Service", "chairlift-replica")
    port = service["spec"]["ports"][0]["port"]
    assert environ["CHAIRLIFT_GATEWAY__REPLICAS"] == f"tcp://{service['metadata']['name']}:{port}"
    assert service["spec"]["clusterIP"] == "None"
    policy = _find("NetworkPolicy", "chairlift-replica")["spec"]
    link = next(rule for rule in policy["ingress"] if {"port": "gateways"} in rule["ports"])
    (peer,) = link["from"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/component": "gateway"}
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_autoscaling_follows_metrics_that_exist() -> None:
    exposed = {spec.exposed_name for process in METRICS.values() for spec in process}
    scalers = list(_documents(FOLDER / "overlays" / "autoscaling" / "autoscalers.yaml"))
    metrics = [metric for scaler in scalers for metric in scaler["spec"]["metrics"]]
    assert {one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"} <= exposed
    (scaled,) = _documents(FOLDER / "overlays" / "keda" / "scaledobject.yaml")
    for trigger in scaled["spec"]["triggers"]:
        names = re.findall(r"chairlift_\w+", trigger["metadata"]["query"])
        assert names
        assert set(names) <= exposed


def test_scaling_down_is_slow_however_it_is_decided() -> None:
    """KEDA's cooldownPeriod is for the way to zero only; its HPA ended a full replica every 15 s."""
    scalers = list(_documents(FOLDER / "overlays" / "autoscaling" / "autoscalers.yaml"))
    (scaled,) = _documents(FOLDER / "overlays" / "keda" / "scaledobject.yaml")
    by_hpa = next(one["spec"]["behavior"] for one in scalers if one["metadata"]["name"] == "chairlift-replica")
    assert scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == by_hpa
    assert by_hpa["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
    assert all(one["metadata"]["ignoreNullValues"] == "false" for one in scaled["spec"]["triggers"])


@pytest.mark.parametrize("overlay", ["autoscaling", "keda", "production"])
def test_who_asks_a_prometheus_has_the_pods_scraped(overlay: str) -> None:
    (kustomization,) = _documents(FOLDER / "overlays" / overlay / "kustomization.yaml")
    assert "../../components/monitoring" in kustomization["components"]


_KUSTOMIZE = shutil.which("kustomize") or shutil.which("kubectl")


@pytest.mark.skipif(_KUSTOMIZE is None, reason="neither kustomize nor kubectl is installed")
@pytest.mark.parametrize("overlay", ["cpu", "gpu", "autoscaling", "keda", "production"])
def test_an_overlay_builds(overlay: str) -> None:
    assert _KUSTOMIZE is not None
    command = [
        _KUSTOMIZE,
        "kustomize" if _KUSTOMIZE.endswith("kubectl") else "build",
        str(FOLDER / "overlays" / overlay),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    documents = list(yaml.safe_load_all(done.stdout))
    for document in documents:
        if document["apiVersion"] not in _OF_OTHERS:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    scaled = {
        (target["kind"], target["name"])
        for document in documents
        if (target := document.get("spec", {}).get("scaleTargetRef"))
    }
    for document in documents:
        if (document["kind"], document["metadata"]["name"]) in scaled:
            assert "replicas" not in document["spec"], "the next apply would end what the autoscaler has started"
