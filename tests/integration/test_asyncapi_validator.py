"""The AsyncAPI project's own parser takes a sound document and refuses an unsound one."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.servers

VALIDATOR = Path(__file__).resolve().parents[2] / "infra" / "asyncapi"

DOCUMENT: dict[str, Any] = {
    "asyncapi": "3.0.0",
    "info": {"title": "two events", "version": "1"},
    "channels": {
        "jobs": {
            "address": "schedmate.jobs",
            "messages": {"submitted": {"payload": {"type": "object", "properties": {"gpus": {"type": "integer"}}}}},
        }
    },
    "operations": {"submit": {"action": "send", "channel": {"$ref": "#/channels/jobs"}}},
}


@pytest.fixture(scope="module")
def validator() -> Path:
    if not (VALIDATOR / "node_modules" / ".package-lock.json").exists():
        npm = shutil.which("npm")
        assert npm, "npm (Node 20) is needed to install the AsyncAPI parser"
        subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund"], cwd=VALIDATOR, check=True, timeout=110, capture_output=True
        )
    return VALIDATOR / "validate.mjs"


def validate(validator: Path, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", str(validator), str(file)], capture_output=True, text=True, timeout=60, check=False)


def test_a_sound_document_is_valid(validator: Path, tmp_path: Path):
    file = tmp_path / "asyncapi.json"
    file.write_text(json.dumps(DOCUMENT))
    done = validate(validator, file)
    assert done.returncode == 0, done.stdout
    assert "valid AsyncAPI 3.0.0, 1 channels, 1 messages" in done.stdout


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["operations", "submit", "action"], "shout", '"action" property must be equal to one of the allowed values'),
        (["operations", "submit", "channel"], {"$ref": "#/channels/absent"}, "'#/channels/absent' does not exist"),
        (["channels", "jobs", "messages", "submitted", "payload", "type"], "objekt", "payload"),
        (
            ["channels", "jobs", "messages", "submitted", "payload"],
            {"$ref": "https://example.com/x.json"},
            "stand on its own",
        ),
        (["asyncapi"], "2.6.0", "error"),
    ],
)
def test_an_unsound_document_is_refused_with_the_reason(
    validator: Path, tmp_path: Path, path: list[str], value: object, complaint: str
):
    document = copy.deepcopy(DOCUMENT)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "asyncapi.json"
    file.write_text(json.dumps(document))
    done = validate(validator, file)
    assert done.returncode == 1, done.stdout
    assert complaint in done.stdout
