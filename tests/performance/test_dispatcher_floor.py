"""The dispatcher's speed against floors that leave room for a busy machine (ranges.toml says where they come from)."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANGES = tomllib.loads(Path(__file__).with_name("ranges.toml").read_text())

pytestmark = pytest.mark.timeout(240)


def figures(name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_core_decides_half_of_its_aim_at_least_and_does_not_slow_down_with_the_queue() -> None:
    found = figures("core", "--decisions", "10000")
    floors = RANGES["core"]
    assert found["decisions_per_s_1000_pending"] >= floors["decisions_per_s_min"], found
    assert found["ratio_10000_to_100"] >= floors["ratio_10000_to_100_min"], found


def test_a_whole_dispatcher_in_memory_carries_hundreds_of_jobs_a_second() -> None:
    found = figures("throughput", "--jobs", "400")
    assert found["jobs_per_s"] >= RANGES["throughput"]["jobs_per_s_min"], found
