"""The Kubernetes base and the Compose file, checked offline: valid, closed by default, and naming only settings that exist."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from schedmate.infra.settings import ServiceSettings, load

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "k8s"
COMPOSE = ROOT / "infra" / "compose"
KUBERNETES = "1.37"
SERVICES = {
    "ingest": 8471,
    "code-analyzer": 8472,
    "history-estimator": 8473,
    "log-monitor": 8474,
    "dispatcher": 8475,
    "worker": 8476,
}

Document = dict[str, Any]


@functools.cache
def documents(path: Path) -> list[Document]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests() -> list[Path]:
    return sorted(path for path in BASE.rglob("*.yaml") if path.name != "kustomization.yaml")


def every(kind: str | None = None) -> list[Document]:
    found = [document for path in manifests() for document in documents(path)]
    return [document for document in found if kind is None or document["kind"] == kind]


def workload(service: str) -> Document:
    kinds = [document for kind in ("Deployment", "DaemonSet", "Job") for document in every(kind)]
    (found,) = [document for document in kinds if document["metadata"]["name"] == service]
    return found


def container(service: str) -> Document:
    (found,) = workload(service)["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("path", manifests(), ids=lambda path: path.name)
def test_every_object_fits_the_strict_schema_of_its_kind(path: Path):
    assert documents(path)
    for document in documents(path):
        # A kind without a schema raises too: SchemaNotFoundError, where the command line only warns.
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"spec": {"replicas": "two"}}, kubernetes_validate.ValidationError),
        ({"spec": {"replica": 2}}, kubernetes_validate.ValidationError),
        ({"kind": "Deploiment"}, kubernetes_validate.SchemaNotFoundError),
    ],
)
def test_the_check_refuses_a_wrong_type_an_unknown_field_and_an_unknown_kind(change: Document, error: type[Exception]):
    document = copy.deepcopy(workload("dispatcher"))
    for key, value in change.items():
        document[key] = {**document[key], **value} if isinstance(value, dict) else value
    with pytest.raises(error):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_kustomization_lists_every_manifest_but_the_example_secrets():
    (kustomization,) = documents(BASE / "kustomization.yaml")
    files = {path.relative_to(BASE).as_posix() for path in manifests()}
    assert set(kustomization["resources"]) == files - {"secrets.example.yaml"}
    assert {image["name"] for image in kustomization["images"]} == {f"schedmate/{service}" for service in SERVICES}


def test_each_service_is_a_deployment_and_the_worker_a_daemon_set_rolled_out_by_hand():
    assert {each["metadata"]["name"] for each in every("Deployment")} == set(SERVICES) - {"worker"}
    (daemon_set,) = every("DaemonSet")
    assert daemon_set["metadata"]["name"] == "worker"
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert workload("dispatcher")["spec"]["replicas"] == 2


@pytest.mark.parametrize(("service", "port"), SERVICES.items())
def test_each_service_is_probed_on_its_health_port_and_has_resources(service: str, port: int):
    each = container(service)
    assert {"name": "health", "containerPort": port} in each["ports"]
    probes = {name: each[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"path": "/healthz", "port": "health"},
        "liveness": {"path": "/healthz", "port": "health"},
        "readiness": {"path": "/readyz", "port": "health"},
    }
    assert {"cpu", "memory"} <= set(each["resources"]["requests"])
    assert "memory" in each["resources"]["limits"]
    annotations = workload(service)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)


@pytest.mark.parametrize("service", [*SERVICES, "setup"])
def test_each_pod_is_unprivileged_and_has_no_token(service: str):
    pod = workload(service)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == service
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert container(service)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_no_service_account_hands_out_a_token():
    accounts = every("ServiceAccount")
    assert {each["metadata"]["name"] for each in accounts} == {*SERVICES, "setup"}
    assert all(each["automountServiceAccountToken"] is False for each in accounts)


def test_each_deployment_has_a_disruption_budget_that_selects_its_pods():
    budgets = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"] for each in every("PodDisruptionBudget")
    }
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in every("Deployment")}
    assert budgets == labels


def test_each_selector_selects_the_pods_of_its_own_workload():
    for each in every("Deployment") + every("DaemonSet"):
        assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
    for each in every("Service"):
        assert each["spec"]["selector"] == workload(each["metadata"]["name"])["spec"]["template"]["metadata"]["labels"]


def test_everything_is_denied_that_no_policy_allows():
    policies = {each["metadata"]["name"]: each["spec"] for each in every("NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, policy in policies.items():
        for rule in policy.get("ingress", []) + policy.get("egress", []):
            assert rule, f"{name} has a rule that allows everything"
            assert rule.get("from") or rule.get("to"), f"{name} allows everybody"


def test_the_worker_never_reaches_the_store_nor_the_model():
    for each in every("NetworkPolicy"):
        ports = {port["port"] for rule in each["spec"].get("egress", []) for port in rule.get("ports", [])}
        if ports & {27017, 11434}:
            assert "worker" not in selected(each["spec"]["podSelector"])


def test_each_port_named_in_a_policy_is_one_of_the_pods_that_it_selects():
    for each in every("NetworkPolicy"):
        spec = each["spec"]
        targets = [(rule, selected(spec["podSelector"])) for rule in spec.get("ingress", [])]
        targets += [
            (rule, selected(peer["podSelector"]))
            for rule in spec.get("egress", [])
            for peer in rule["to"]
            if "namespaceSelector" not in peer
        ]
        for rule, services in targets:
            for port in rule.get("ports", []):
                for service in services if isinstance(port["port"], str) else ():
                    names = {listed["name"] for listed in container(service)["ports"]}
                    assert port["port"] in names, f"{each['metadata']['name']}: {service} has no port {port['port']}"


def selected(selector: Document) -> set[str]:
    """The services whose pods a label selector of ours selects."""
    if not selector:
        return set(SERVICES)
    if "matchLabels" in selector:
        return {selector["matchLabels"]["app.kubernetes.io/name"]}
    (expression,) = selector["matchExpressions"]
    assert expression["operator"] == "In"
    return set(expression["values"])


def test_no_secret_stands_in_the_base_and_the_examples_hold_placeholders():
    (kustomization,) = documents(BASE / "kustomization.yaml")
    assert not [
        document
        for name in kustomization["resources"]
        for document in documents(BASE / name)
        if document["kind"] == "Secret"
    ]
    examples = {each["metadata"]["name"]: each["stringData"] for each in documents(BASE / "secrets.example.yaml")}
    for name, values in examples.items():
        for key, value in values.items():
            assert "CHANGE-ME" in value or key.endswith("_USERNAME"), f"{name}: {key}"
    wanted = {
        source["secretRef"]["name"]
        for service in [*SERVICES, "setup"]
        for source in container(service)["envFrom"]
        if "secretRef" in source
    }
    assert set(examples) == wanted


# -- settings: what is named here has to exist there


STANDARD = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"}
FROM_THE_POD = {"spec.nodeName": "gpu-node-1", "status.podIP": "10.0.0.7"}


def settings_class(service: str) -> type[ServiceSettings]:
    if service == "setup":
        return ServiceSettings
    module = importlib.import_module(f"schedmate.services.{service.replace('-', '_')}.settings")
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    ]
    return found


def kubernetes_environment(service: str) -> dict[str, str]:
    """All that a pod of the service is given, with the example's secrets."""
    (shared,) = every("ConfigMap")
    secrets = {secret["metadata"]["name"]: secret["stringData"] for secret in documents(BASE / "secrets.example.yaml")}
    given: dict[str, str] = {}
    for source in container(service)["envFrom"]:
        if "secretRef" in source:
            given |= secrets[source["secretRef"]["name"]]
        else:
            assert source["configMapRef"]["name"] == shared["metadata"]["name"]
            given |= shared["data"]
    for variable in container(service).get("env", []):
        value = variable.get("value") or FROM_THE_POD[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        given[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: given[match.group(1)], value)
    # POD_*: only there to be put into the value of another.
    return {name: value for name, value in given.items() if not name.startswith("POD_")}


def compose_environment(service: str) -> dict[str, str]:
    """All that a container of the service is given, with the defaults of what the user may choose."""
    (compose,) = documents(COMPOSE / "compose.yaml")
    given = compose["services"][service]["environment"]
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in given.items()}


@pytest.mark.parametrize("service", [*SERVICES, "setup"])
@pytest.mark.parametrize("environment", [kubernetes_environment, compose_environment])
def test_each_variable_given_to_a_service_is_a_setting_of_its_own_with_a_value_that_it_takes(
    service: str, environment: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
):
    given = environment(service)
    cls = settings_class(service)
    assert {"SCHEDMATE_BUS", "SCHEDMATE_STORE"} <= set(given)
    assert set(given) <= {f"SCHEDMATE_{name.upper()}" for name in cls.model_fields} | STANDARD
    for name in [name for name in os.environ if name.startswith("SCHEDMATE_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load(cls)
    assert settings.bus.startswith("kafka://")
    if service in SERVICES:
        assert settings.health_port == SERVICES[service]
        assert settings.health_host == "0.0.0.0"


# -- Compose


def test_compose_runs_every_service_from_its_own_image_file():
    (compose,) = documents(COMPOSE / "compose.yaml")
    for service in SERVICES:
        build = compose["services"][service]["build"]
        path = (COMPOSE / build["context"] / build["dockerfile"]).resolve()
        assert path == ROOT / "services" / service.replace("-", "_") / "Dockerfile"
        assert path.is_file()


def test_compose_pins_every_image_and_publishes_on_the_loopback_only():
    (compose,) = documents(COMPOSE / "compose.yaml")
    assert {"kafka", "mongo", "ollama", "collector", "jaeger", "prometheus"} <= set(compose["services"])
    for name, service in compose["services"].items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name} is not pinned to a version"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port} beyond the loopback"


def test_compose_waits_for_health_only_where_a_health_check_is():
    (compose,) = documents(COMPOSE / "compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        wanted = service.get("depends_on", {})
        for dependency in wanted:
            assert dependency in services
            if isinstance(wanted, dict) and wanted[dependency]["condition"] == "service_healthy":
                assert "healthcheck" in services[dependency], f"{name} waits for {dependency}"


def test_prometheus_scrapes_every_service_on_its_health_port():
    (prometheus,) = documents(COMPOSE / "prometheus.yaml")
    (job,) = [each for each in prometheus["scrape_configs"] if each["job_name"] == "schedmate"]
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:{port}" for name, port in SERVICES.items()}


# -- image files


@pytest.mark.parametrize(("service", "port"), SERVICES.items())
def test_each_image_file_is_staged_unprivileged_and_runs_its_service(service: str, port: int):
    module = service.replace("-", "_")
    text = (ROOT / "services" / module / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert len(stages) == 2
    assert all(re.search(r":\d+\.\d+\.\d+-", stage) for stage in stages)
    assert re.search(r"^USER 10001:10001$", text, flags=re.MULTILINE)
    assert text.index("USER 10001") < text.index("ENTRYPOINT")
    assert f'ENTRYPOINT ["python", "-m", "schedmate.services.{module}"]' in text
    assert re.search(rf"^EXPOSE .*\b{port}$", text, flags=re.MULTILINE)
    assert f"http://127.0.0.1:{port}/healthz" in text
    assert "--require-hashes" in text


def test_the_image_files_differ_in_nothing_but_service_and_ports():
    bodies = set()
    for service in SERVICES:
        text = (ROOT / "services" / service.replace("-", "_") / "Dockerfile").read_text()
        text = text.replace(service.replace("-", "_"), "SERVICE").replace(service, "SERVICE")
        bodies.add(re.sub(r"\b847\d\b( 847\d)?", "PORT", text))
    assert len(bodies) == 1
