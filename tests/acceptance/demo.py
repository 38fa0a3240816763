"""`schedmate demo` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parent.parent.parent


def run_demo(directory: Path, *, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the demo with --json in `directory` and return what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from schedmate.cli import main; main()",
            "demo",
            "--json",
            "--directory",
            str(directory),
        ],
        cwd=CHECKOUT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-4000:]}\n{done.stdout[-2000:]}"
    account = json.loads(done.stdout)
    account["took_s"] = time.monotonic() - began
    account["stderr"] = done.stderr
    return account
