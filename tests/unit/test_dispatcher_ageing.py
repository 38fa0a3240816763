"""Ageing: a wait counts as priority classes, for the order alone, and only so far."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.ageing import classes_gained
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies, policy_named
from tests.dispatching import START, PoolUnderTest, arrived, cluster, stopped_jobs
from tests.pool_invariants import check

AT_ONCE = sorted(name for name in policies() if policy_named(name).rounds_s is None)


def busy(**config: object) -> PoolUnderTest:
    p = cluster(gpus=4, **config)
    p.running("busy", gpus=4, priority=3)
    return p


@pytest.mark.parametrize("policy", AT_ONCE)
@pytest.mark.parametrize(("ageing_s", "first"), [(0.0, "high"), (100.0, "old")])
def test_a_job_that_has_waited_goes_before_a_higher_class_where_the_pool_says_so(
    policy: str, ageing_s: float, first: str
) -> None:
    p = busy(policy=policy, ageing_s=ageing_s)
    p.step(arrived("old", gpus=4, priority=0), after=1)
    p.step(arrived("high", gpus=4, priority=2, submitted_at=START + 210), after=210)
    p.exit("busy", after=1.0)
    assert p.state_of(first) == "ASSIGNED"


def test_nobody_rises_by_more_than_the_setting_or_above_the_highest_class() -> None:
    config = PoolConfig(ageing_s=10.0, ageing_classes_max=2)
    p = busy(ageing_s=10.0, ageing_classes_max=2)
    p.step(*[arrived(f"p{n}", gpus=4, priority=n) for n in range(4)], after=1)
    assert [classes_gained(p.state.jobs[f"p{n}"], config, p.now + 9.9) for n in range(4)] == [0, 0, 0, 0]
    assert [classes_gained(p.state.jobs[f"p{n}"], config, p.now + 10) for n in range(4)] == [1, 1, 1, 0]
    assert [classes_gained(p.state.jobs[f"p{n}"], config, p.now + 1e9) for n in range(4)] == [2, 2, 1, 0]


def test_the_pool_wakes_when_somebody_rises_and_the_head_no_longer_blocks() -> None:
    p = cluster(gpus=4, policy="fifo", ageing_s=100.0)
    p.running("running", gpus=3)
    p.running("one", gpus=1)
    p.step(arrived("small", gpus=1, priority=0))
    p.step(arrived("large", gpus=4, priority=1, submitted_at=START + 50), after=50)
    p.exit("one", after=10.0)
    assert p.state_of("small") == "QUEUED"
    assert p.state.next_timer() == START + 100
    p.step(i.Tick(), after=40)
    assert p.state_of("small") == "ASSIGNED"
    check(p.state)


def test_a_wait_stops_nobody_and_spares_nobody() -> None:
    """Risen to the highest class a job still preempts as what it is, and gives way as what it is."""
    p = cluster(gpus=4, preemption=True, preemption_min_run_s=0.0, ageing_s=10.0)
    p.running("normal", gpus=4, priority=1)
    p.step(arrived("low", gpus=4, priority=0), after=1)
    p.step(i.Tick(), after=1000)
    assert stopped_jobs(p) == []
    p.exit("normal")
    p.start("low")
    p.step(arrived("next", gpus=4, priority=1, submitted_at=START + 2000), after=1)
    assert stopped_jobs(p) == ["low"]


def test_the_wait_counts_anew_after_every_attempt() -> None:
    p = busy(ageing_s=100.0)
    p.step(arrived("old", gpus=4, priority=0), after=1)
    p.step(i.Tick(), after=250)
    p.exit("busy", after=1.0)
    p.start("old")
    p.exit("old", None, cause="lost")
    assert classes_gained(p.state.jobs["old"], p.state.config, p.now) == 0


def test_in_rounds_who_has_waited_is_given_gpus_first() -> None:
    p = cluster(gpus=4, policy="tiresias", ageing_s=100.0, start_timeout_s=1e6)
    p.step(arrived("running", gpus=4, priority=1), after=40)
    assert p.state_of("running") == "ASSIGNED"
    p.step(arrived("old", gpus=4, priority=0), after=1)
    p.step(i.Tick(), after=240)
    p.step(arrived("new", gpus=4, priority=1, submitted_at=p.now), after=1)
    p.exit("running", after=1.0)
    p.step(i.Tick(), after=60)
    assert p.state_of("old") == "ASSIGNED"
    assert p.state_of("new") == "QUEUED"
    check(p.state)
