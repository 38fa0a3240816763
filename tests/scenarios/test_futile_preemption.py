"""BR-02: a job that can never fit evicts nobody, and holds back nobody behind it."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.reasons import why
from tests.dispatching import AT_ONCE, POLICIES, START, arrived, cluster, stopped_jobs


@pytest.mark.parametrize("policy", AT_ONCE)
def test_head_of_line_and_futile_preemption(policy: str) -> None:
    p = cluster(gpus=3, policy=policy, preemption=True, preemption_min_run_s=0.0)
    p.running("victim", tenant="b", gpus=1, priority=0)
    p.step(arrived("a1", tenant="a", gpus=4, priority=2, submitted_at=START + 1), after=1)
    assert stopped_jobs(p) == []
    p.step(arrived("a2", tenant="a", gpus=3, priority=2, submitted_at=START + 2), after=1)
    assert stopped_jobs(p) == ["victim"]
    p.exit("victim", None, cause="stopped", signal=15)
    p.start("a2")
    for _ in range(20):
        p.step(i.Tick(), after=30)
    assert p.state_of("a2") == "RUNNING"
    assert stopped_jobs(p) == ["victim"]
    told = why(p.state, p.state.jobs["a1"])
    assert told.reason == "NEVER_FITS"
    assert "needs 4 GPUs on one node" in told.detail
    assert "only when larger or more nodes join" in told.unblocks


@pytest.mark.parametrize("policy", POLICIES)
def test_futile_preemption_of_who_has_borrowed(policy: str) -> None:
    """The set-up to the letter: queue a has a quota of 3 GPUs, queue b none and borrows."""
    p = cluster(gpus=3, policy=policy, tenant_quota={"a": 3}, reclaim_min_run_s=0.0)
    p.step(arrived("victim", tenant="b", gpus=1, resumable=True))
    for _ in range(3):
        p.step(i.Tick(), after=30)
    p.start("victim")
    p.step(arrived("a1", tenant="a", gpus=4, submitted_at=START + 100), after=1)
    for _ in range(3):
        p.step(i.Tick(), after=30)
    assert stopped_jobs(p) == []
    p.step(arrived("a2", tenant="a", gpus=3, submitted_at=START + 200), after=1)
    for _ in range(3):
        p.step(i.Tick(), after=15)
        if p.state_of("victim") == "STOPPING":
            p.exit("victim", None, cause="stopped", signal=15, after=1.0)
    assert stopped_jobs(p) == ["victim"]
    p.step(i.Tick(), after=60)
    p.start("a2")
    for _ in range(20):
        p.step(i.Tick(), after=30)
    assert p.state_of("a2") == "RUNNING"
    assert stopped_jobs(p) == ["victim"]
    assert p.state_of("a1") == "QUEUED"
    assert why(p.state, p.state.jobs["a1"]).reason == "NEVER_FITS"
