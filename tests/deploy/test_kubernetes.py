"""The Kubernetes manifests: valid for the API, consistent with each other, and with limits that match the daemon's."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ingestd.config.document import Document, load
from ingestd.config.http import Address

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("local", "spark-on-k8s")
# The oldest and the newest version of Kubernetes whose schemas the manifests are validated against.
VERSIONS = ("1.28", "1.37")
# The daemon ends at most this long after shutdown.timeout: 10 s for the abort of transactions, 10 s to stop Spark.
_END_SECONDS = 20.0
Manifest = dict[str, Any]

pytestmark = pytest.mark.skipif(
    shutil.which("kustomize") is None,
    reason="needs kustomize: go install sigs.k8s.io/kustomize/kustomize/v5@v5.4.3",
)
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@cache
def _built(overlay: str) -> list[Manifest]:
    built = subprocess.run(
        ["kustomize", "build", K8S / "overlays" / overlay], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(built.stdout))


def _one(overlay: str, kind: str) -> Manifest:
    [found] = [manifest for manifest in _built(overlay) if manifest["kind"] == kind]
    return found


def _pod(overlay: str) -> Manifest:
    pod: Manifest = _one(overlay, "Deployment")["spec"]["template"]
    return pod


def _executor() -> Manifest:
    pod: Manifest = yaml.safe_load(_one("spark-on-k8s", "ConfigMap")["data"]["executor.yaml"])
    return pod


def _configuration(overlay: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Document:
    """Load the configuration of the ConfigMap as the daemon in the pod does."""
    [container] = _pod(overlay)["spec"]["containers"]
    for variable in container.get("env", ()):
        monkeypatch.setenv(variable["name"], "10.1.2.3")
    file = directory / "ingestd.yaml"
    file.write_text(_one(overlay, "ConfigMap")["data"]["ingestd.yaml"], encoding="utf-8")
    return load([file])


@pytest.mark.parametrize("version", VERSIONS)
@each_overlay
def test_manifests_when_validated_strictly_then_fit_the_schemas_of_the_api(overlay: str, version: str) -> None:
    manifests = [manifest for manifest in _built(overlay) if manifest["kind"] != "ServiceMonitor"]
    assert len(manifests) >= 7
    for manifest in [*manifests, _executor()]:
        kubernetes_validate.validate(manifest, version, strict=True)


@each_overlay
def test_selectors_then_match_the_labels_of_the_pod_and_of_the_service(overlay: str) -> None:
    labels = _pod(overlay)["metadata"]["labels"].items()
    service, monitor = _one(overlay, "Service"), _one(overlay, "ServiceMonitor")
    deployment, budget = _one(overlay, "Deployment"), _one(overlay, "PodDisruptionBudget")
    for selector in (
        service["spec"]["selector"],
        deployment["spec"]["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["path"] == "/metrics"


@each_overlay
def test_pod_then_is_restricted_and_its_mounts_exist(overlay: str) -> None:
    pods = [_pod(overlay), _executor()] if overlay == "spark-on-k8s" else [_pod(overlay)]
    for pod in (pod["spec"] for pod in pods):
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        # Spark and Python write their temporary files there.
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


@each_overlay
def test_configuration_then_is_valid_and_fits_the_pod(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = _configuration(overlay, tmp_path, monkeypatch)
    spec = _pod(overlay)["spec"]
    [container] = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert document.http.listen == Address("0.0.0.0", ports["http"])
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe", "startupProbe")} == {
        "http"
    }
    assert spec["terminationGracePeriodSeconds"] >= document.shutdown.timeout + _END_SECONDS
    # The names of generated ConfigMaps contain a hash of their content.
    assert spec["volumes"][0]["configMap"]["name"] == _one(overlay, "ConfigMap")["metadata"]["name"]


@each_overlay
def test_policies_then_what_reads_records_reaches_kafka_and_the_registry_and_only_drivers_the_metastore(
    overlay: str,
) -> None:
    components = ("daemon", "executor") if overlay == "spark-on-k8s" else ("daemon",)
    for component in components:
        allowed = set[int]()
        for policy in (document["spec"] for document in _built(overlay) if document["kind"] == "NetworkPolicy"):
            wanted = policy["podSelector"]["matchLabels"].get("app.kubernetes.io/component", component)
            if wanted == component and "Egress" in policy["policyTypes"]:
                allowed |= {port["port"] for rule in policy["egress"] for port in rule.get("ports", ())}
        assert {9092, 8081} <= allowed
        assert (9083 in allowed) == (component == "daemon")


@pytest.mark.parametrize("extra", ["kerberos", "hdfs", "s3"])
def test_image_then_installs_what_reaches_each_storage(extra: str) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    [extras] = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert extra in extras.split(",")
    assert '".[${EXTRAS}]"' in text


def test_driver_when_executors_are_pods_then_they_reach_it_and_it_may_manage_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = "spark-on-k8s"
    conf = _configuration(overlay, tmp_path, monkeypatch).spark.properties
    [container] = _pod(overlay)["spec"]["containers"]
    ports = {str(port["containerPort"]) for port in container["ports"]}
    assert {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]} < ports
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "10.1.2.3"
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.namespace"] == _one(overlay, "Namespace")["metadata"]["name"]
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == _executor()["spec"]["containers"][0]["name"]
    assert _pod(overlay)["spec"]["automountServiceAccountToken"]
    binding, account = _one(overlay, "RoleBinding"), _one(overlay, "ServiceAccount")["metadata"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    [pods] = [rule for rule in _one(overlay, "Role")["rules"] if "pods" in rule["resources"]]
    assert {"create", "get", "list", "watch", "delete"} <= set(pods["verbs"])
