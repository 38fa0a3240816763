"""The AsyncAPI project's own parser takes our document (`make test-servers` installs it)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from schedmate.schemas.events import EVENTS, WRITERS

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]
VALIDATOR = ROOT / "infra" / "asyncapi"


def test_our_document_is_valid_asyncapi_with_every_channel_and_message():
    if not (VALIDATOR / "node_modules" / ".package-lock.json").exists():
        npm = shutil.which("npm")
        assert npm, "npm (Node 20) is needed to install the AsyncAPI parser"
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=VALIDATOR, check=True, timeout=110)
    document = ROOT / "schemas" / "generated" / "asyncapi.yaml"
    done = subprocess.run(
        ["node", str(VALIDATOR / "validate.mjs"), str(document)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"valid AsyncAPI 3.0.0, {len(WRITERS)} channels, {len(EVENTS)} messages" in done.stdout
    assert " error " not in done.stdout
    assert " warning " not in done.stdout
