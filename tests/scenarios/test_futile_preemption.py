"""BR-02: a job that can never fit evicts nobody, and holds back nobody behind it."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.reasons import why
from tests.dispatching import START, arrived, cluster, stopped_jobs


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip"])
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
