"""Compose's own loader takes the Compose file, and kustomize builds the Kubernetes base; neither needs an engine or a cluster."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_LOADER = "github.com/compose-spec/compose-go/v2/cmd@v2.9.0"
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"


def run_module(module: str, *arguments: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`go run` builds the program the first time, some ten seconds, and keeps it in Go's own cache."""
    go = shutil.which("go")
    assert go, "Go is needed to build the loader"
    command = [go, "run", module, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=550, check=False)


def test_the_loader_of_compose_takes_the_file():
    done = run_module(COMPOSE_LOADER, "compose.yaml", folder=ROOT / "infra" / "compose")
    assert done.returncode == 0, done.stderr
    loaded = yaml.safe_load(done.stdout)
    for service in loaded["services"].values():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert Path(mount["source"]).is_file()


def test_the_loader_of_compose_refuses_a_field_that_it_does_not_know(tmp_path: Path):
    text = (ROOT / "infra" / "compose" / "compose.yaml").read_text()
    bad = tmp_path / "compose.yaml"
    bad.write_text(text.replace("retries:", "retrys:", 1))
    done = run_module(COMPOSE_LOADER, bad)
    assert done.returncode != 0
    assert "retrys" in done.stderr


def test_kustomize_builds_the_base_in_one_namespace_with_the_versions_pinned():
    done = run_module(KUSTOMIZE, "build", "k8s")
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    for document in built:
        kubernetes_validate.validate(document, "1.37", strict=True)
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "schedmate"
        if document["kind"] in ("Deployment", "DaemonSet"):
            (container,) = document["spec"]["template"]["spec"]["containers"]
            assert container["image"].endswith(":0.1.0")
