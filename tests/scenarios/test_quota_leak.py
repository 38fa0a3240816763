"""BR-05: a gang whose member never starts gives its GPUs back after a bounded number of tries."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import POLICIES, PoolUnderTest, arrived, cluster, ends_of, next_round, of_kind
from tests.pool_invariants import check


def one_never_comes(p: PoolUnderTest, how: str) -> None:
    job = p.state.jobs["gang"]
    numbers = range(len(job.members))
    for number in numbers[:-1]:
        p.start("gang", number)
    last = job.members[-1]
    if how == "silent":
        p.step(i.Tick(), after=31)  # its start timeout
    else:
        p.step(i.MemberRefused("gang", job.attempt, numbers[-1], last.node, 1, *job.place, how, "no"))
    assert p.state_of("gang") == "STOPPING"
    for number in numbers:
        if "gang" in p.state.jobs and p.state.jobs["gang"].members and p.state.jobs["gang"].members[number].state != 2:
            p.exit("gang", None, number, cause="stopped", signal=15, after=1.0)
    check(p.state)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["silent", "bundle_unavailable", "gpu_in_use"])
def test_quota_leak_ends_after_the_launch_budget(how: str, policy: str) -> None:
    p = cluster(
        nodes=4, gpus=2, policy=policy, start_timeout_s=30.0, tenant_gpus={"team-a": 8}, tenant_quota={"team-a": 8}
    )
    p.step(arrived("gang", gpus=2, nodes=4, retries=9))
    next_round(p)
    tries = 0
    for _ in range(50):
        if "gang" not in p.state.jobs:
            break
        if p.state_of("gang") == "ASSIGNED":
            tries += 1
            one_never_comes(p, how)
        p.step(i.Tick(), after=61)
    assert tries == 6
    assert ends_of(p, "gang") == ["FAIL"]
    assert of_kind(p.told, d.Moved)[-1].reason == "LAUNCH_BUDGET_SPENT"
    assert p.state.tenant_gpus == {}
    assert p.state.capacity.free_gpus == 8
    p.step(arrived("next", gpus=2, nodes=4, submitted_at=p.now))
    next_round(p)
    assert p.state_of("next") == "ASSIGNED"
