"""BR-08: a node that loses GPUs under a job offers what is really free: never a negative number, never a GPU twice."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import POLICIES, PoolUnderTest, arrived, cluster, next_round, report
from tests.pool_invariants import check


def holding_eight(policy: str) -> PoolUnderTest:
    p = cluster(gpus=8, policy=policy)
    p.step(arrived("p0", gpus=8))
    next_round(p)
    p.start("p0")
    return p


def reported(p: PoolUnderTest, gpus: int, **given: object) -> None:
    job = p.state.jobs["p0"]
    runs = (i.RunSeen("p0", job.attempt, 0, ended=False, started=True),)
    p.step(report("n1", gpus, applied_seq=job.place[0], applied_index=job.place[1], runs=runs, **given))
    check(p.state)


@pytest.mark.parametrize("policy", POLICIES)
def test_lost_gpu_double_book_when_two_of_eight_fall_ill_under_a_job(policy: str) -> None:
    p = holding_eight(policy)
    reported(p, 8, unusable=(2, 5))
    p.step(arrived("next", gpus=6))
    next_round(p)
    assert p.state_of("next") == "QUEUED"
    assert p.state.capacity.free_gpus == 0
    p.exit("p0")
    next_round(p)
    assert p.seats("next") == [("n1", (0, 1, 3, 4, 6, 7))]


@pytest.mark.parametrize("policy", POLICIES)
def test_lost_gpu_double_book_when_a_restarted_node_counts_fewer_than_before(policy: str) -> None:
    p = holding_eight(policy)
    for session, gpus in ((2, 0), (3, 6), (4, 8)):
        reported(p, gpus, session=session)
        assert p.state.capacity.free_gpus == 0
        assert p.state_of("p0") == "RUNNING"
    reported(p, 6, session=5)
    p.exit("p0")
    assert p.state.capacity.free_gpus == 6
    p.step(arrived("all", gpus=8))
    assert p.state_of("all") == "QUEUED"
    p.step(report("n1", 8, session=5))
    next_round(p)
    assert p.state_of("all") == "ASSIGNED"
