"""The main job, as a user runs it: `schedmate demo` in a process of its own, on the embedded default."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.demo import run_demo
from tests.journal_checker import check_directories

CHECKOUT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(200)
@pytest.mark.slow
def test_the_demo_runs_a_dozen_real_jobs_to_their_expected_ends(tmp_path: Path) -> None:
    account = run_demo(tmp_path / "state")
    jobs = {job["name"]: job for job in account["jobs"]}
    assert account["unexpected"] == []
    assert account["took_s"] < 90
    assert len(account["jobs"]) >= 12

    gang, fault = jobs["gang-average"], jobs["driver-fault"]
    assert (gang["nodes"], gang["gpus"], gang["state"]) == (2, 4, "SUCCEEDED")
    assert {p["node"] for p in gang["placements"]} == {"n1", "n2"}
    assert gang["ended_at"] < fault["submitted_at"]

    assert (fault["state"], fault["attempt"]) == ("SUCCEEDED", 2)
    assert fault["diagnosis"]["category"] == "GPU_LOST"
    assert fault["diagnosis"]["node_evidence"]
    cordoned = [node["node"] for node in account["nodes"] if node["state"] == "cordoned"]
    assert cordoned == [fault["diagnosis"]["culprit_node"]]
    assert fault["placements"][0]["node"] not in cordoned

    memory = jobs["out-of-memory"]
    assert (memory["state"], memory["reason"], memory["attempt"]) == ("FAILED", "NEEDS_CHANGES", 1)
    assert memory["diagnosis"]["category"] == "GPU_OOM"
    assert memory["proposed_change"]

    assert jobs["endless"]["state"] == "CANCELLED"
    assert (jobs["time-limited"]["state"], jobs["time-limited"]["reason"]) == ("FAILED", "TIME_LIMIT")

    first, again = [job for job in account["jobs"] if job["name"] == "regression"]
    assert again["foretold"]["basis"] == "exact_prior"
    assert first["job_id"] in again["foretold"]["similar"]
    assert again["foretold"]["p50_s"] == pytest.approx(first["run_s"], rel=0.5)

    for job in account["jobs"]:
        assert job["trace_id"]
        assert job["why_there"]
        assert job["wait_s"] >= 0
        assert job["run_s"] is not None
    assert len({job["trace_id"] for job in account["jobs"]}) == len(account["jobs"])

    verdict = check_directories([tmp_path / "state" / "n1", tmp_path / "state" / "n2"])
    assert not verdict.violations, verdict.violations
    assert "Traceback" not in account["stderr"]
