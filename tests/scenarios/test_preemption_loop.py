"""BR-01: two tenants of equal standing; whoever is evicted comes back at once, and is not evicted again and again."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import AT_ONCE, POLICIES, START, PoolUnderTest, arrived, cluster, stopped_jobs


def ten_minutes(p: PoolUnderTest) -> None:
    """Time passes; what is told to stop stops, what is told to start starts; nothing ends by itself."""
    for _ in range(60):
        for job in list(p.state.jobs.values()):
            if job.state == "STOPPING":
                p.exit(job.id, None, cause="stopped", signal=15, after=0.0)
            elif job.state == "ASSIGNED":
                p.start(job.id)
        p.step(i.Tick(), after=10)


@pytest.mark.parametrize("policy", AT_ONCE)
def test_preemption_loop_evicts_at_most_what_the_preemptor_needs(policy: str) -> None:
    p = cluster(gpus=8, policy=policy, preemption=True, preemption_min_run_s=0.0, tenant_gpus_max=8)
    for number in range(3):
        p.running(f"best-effort-{number}", tenant="team-a", gpus=2, priority=0)
    p.step(arrived("guaranteed", tenant="team-b", gpus=3, priority=2, submitted_at=START + 1), after=1)
    ten_minutes(p)
    assert p.state_of("guaranteed") == "RUNNING"
    assert len(stopped_jobs(p)) == 1  # two were free, one eviction frees two more
    assert sum(j.state == "RUNNING" for j in p.state.jobs.values()) == 3


def test_preemption_loop_never_begins_between_equals() -> None:
    p = cluster(gpus=4, preemption=True, preemption_min_run_s=0.0)
    for number in range(2):
        p.running(f"a{number}", tenant="team-a", gpus=2)
    p.step(arrived("b", tenant="team-b", gpus=3), after=1)
    ten_minutes(p)
    assert stopped_jobs(p) == []
    assert p.state_of("b") == "QUEUED"


@pytest.mark.parametrize("policy", POLICIES)
def test_preemption_loop_of_quotas_evicts_only_what_the_owner_needs(policy: str) -> None:
    """Two tenants of the same quota; the first has borrowed everything, and whatever of it is evicted comes back at once."""
    p = cluster(gpus=8, policy=policy, tenant_quota={"team-a": 4, "team-b": 4}, reclaim_min_run_s=0.0)
    p.step(
        *[arrived(f"borrower-{n}", tenant="team-a", gpus=2, resumable=True, submitted_at=START + n) for n in range(4)]
    )
    ten_minutes(p)
    assert p.state.tenant_gpus == {"team-a": 8}
    p.step(arrived("guaranteed", tenant="team-b", gpus=3, resumable=True, submitted_at=START + 700), after=1)
    ten_minutes(p)
    assert p.state_of("guaranteed") == "RUNNING"
    assert len(stopped_jobs(p)) == 2  # three GPUs are two jobs of two
    ten_minutes(p)
    assert len(stopped_jobs(p)) == 2
    assert p.state.tenant_gpus == {"team-a": 4, "team-b": 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_preemption_loop_never_begins_where_quotas_promise_more_than_there_is(policy: str) -> None:
    """Both tenants are within their quotas, which together the pool cannot hold: nobody takes anything from the other."""
    p = cluster(gpus=4, policy=policy, tenant_quota={"team-a": 4, "team-b": 4}, reclaim_min_run_s=0.0)
    p.step(arrived("first", tenant="team-a", gpus=4, resumable=True), after=1)
    ten_minutes(p)
    p.step(arrived("second", tenant="team-b", gpus=4, resumable=True, submitted_at=START + 700), after=1)
    ten_minutes(p)
    assert p.state.tenant_gpus == {"team-a": 4}
    assert stopped_jobs(p) == []
