"""Quotas with borrowing and reclaim: who goes first, who gives back, how little is taken, and what is told to those that wait."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.reasons import why
from tests.dispatching import START, PoolUnderTest, arrived, cluster, of_kind, stopped_jobs
from tests.pool_invariants import check

QUOTA = {"a": 4, "b": 4}


def borrowing(**given: object) -> PoolUnderTest:
    """Return a pool of eight GPUs, all of them held by tenant a: four of its own, four borrowed in jobs of 1, 1 and 2."""
    config = {"tenant_quota": QUOTA, "reclaim_min_run_s": 0.0, **given}
    p = cluster(gpus=8, **config)
    p.running("own", tenant="a", gpus=4, resumable=True)
    p.running("one", tenant="a", gpus=1, resumable=True)
    p.running("other", tenant="a", gpus=1, resumable=True)
    p.running("two", tenant="a", gpus=2, resumable=True)
    return p


def leave(p: PoolUnderTest) -> None:
    """What was stopped ends."""
    for job in [j.id for j in p.state.jobs.values() if j.state == "STOPPING"]:
        p.exit(job, None, cause="stopped", signal=15, after=1.0)


def test_unused_quota_is_borrowed() -> None:
    p = borrowing()
    assert p.state.tenant_gpus == {"a": 8}
    assert stopped_jobs(p) == []


@pytest.mark.parametrize(
    ("gpus", "stopped"), [(1, {"one"}), (2, {"two"}), (3, {"one", "two"}), (4, {"one", "other", "two"})]
)
def test_as_few_gpus_as_the_owner_needs_are_taken_back(gpus: int, stopped: set[str]) -> None:
    """Of two jobs of the same size the one that has done less; for three GPUs two jobs, and never the tenant's own."""
    p = cluster(gpus=8, tenant_quota=QUOTA, reclaim_min_run_s=0.0)
    p.running("own", tenant="a", gpus=4, resumable=True)
    for name, size in (("other", 1), ("two", 2), ("one", 1)):
        p.running(name, tenant="a", gpus=size, resumable=True)
        p.step(i.Tick(), after=100)
    p.step(arrived("owner", tenant="b", gpus=gpus), after=1)
    assert set(stopped_jobs(p)) == stopped
    leave(p)
    assert p.state_of("owner") == "ASSIGNED"
    check(p.state)


def test_a_reclaimed_job_comes_back_when_there_is_room_and_takes_nothing_back() -> None:
    p = borrowing()
    p.step(arrived("owner", tenant="b", gpus=4), after=1)
    leave(p)
    p.start("owner")
    for _ in range(20):
        p.step(i.Tick(), after=30)
    assert len(stopped_jobs(p)) == 3
    assert p.reason_of("two") == "RECLAIMED"
    assert p.state.jobs["two"].spent == {"preempted": 1}
    p.exit("owner")
    assert {p.state_of(job) for job in ("one", "other", "two")} == {"ASSIGNED"}


def test_a_job_that_would_borrow_itself_reclaims_nothing() -> None:
    p = borrowing()
    p.step(arrived("large", tenant="b", gpus=5), after=1)
    p.step(arrived("stranger", tenant="c", gpus=1), after=1)
    assert stopped_jobs(p) == []
    assert "it would borrow: tenant b holds 0 of its quota of 4" in why(p.state, p.state.jobs["large"]).detail


def test_what_is_within_a_quota_gives_way_to_no_other_tenant() -> None:
    """Neither to its quota nor to a higher class; to a higher class of its own tenant it does."""
    config = {"policy": "fifo-skip", "preemption": True, "preemption_min_run_s": 0.0, "reclaim_min_run_s": 0.0}
    p = cluster(gpus=4, tenant_quota={"a": 4, "b": 4}, **config)
    p.running("own", tenant="a", gpus=4, resumable=True, priority=0)
    p.step(arrived("urgent", tenant="b", gpus=4, priority=3), after=1)
    assert stopped_jobs(p) == []
    p.step(arrived("mine", tenant="a", gpus=4, priority=2), after=1)
    assert stopped_jobs(p) == ["own"]


def test_nobody_is_reclaimed_before_its_minimum_run_and_the_pool_wakes_for_it() -> None:
    p = borrowing(reclaim_min_run_s=60.0)
    p.step(arrived("owner", tenant="b", gpus=2), after=20)
    assert stopped_jobs(p) == []
    told = why(p.state, p.state.jobs["owner"])
    assert told.reason == "WAITS_FOR_RECLAIM"
    assert told.waits_for == ("two",)
    assert told.expected_at == START + 60
    assert "tenant b holds 0 of its quota of 4 GPUs" in told.detail
    assert told.unblocks == "starts when two gives back what it has borrowed"
    assert p.state.next_timer() == START + 60
    p.step(i.Tick(), after=40)
    assert stopped_jobs(p) == ["two"]
    assert why(p.state, p.state.jobs["owner"]).reason == "WAITS_FOR_RECLAIM"


@pytest.mark.parametrize(("priority", "gives_way"), [(1, False), (2, True)])
def test_a_borrower_that_cannot_resume_gives_way_to_a_higher_class_only(priority: int, gives_way: bool) -> None:
    p = cluster(gpus=4, tenant_quota={"b": 4}, reclaim_min_run_s=0.0)
    p.running("borrower", tenant="a", gpus=4, priority=1)
    p.step(arrived("owner", tenant="b", gpus=4, priority=priority), after=1)
    assert stopped_jobs(p) == (["borrower"] if gives_way else [])
    if not gives_way:
        assert "stopping those who have borrowed would not help" in why(p.state, p.state.jobs["owner"]).detail


@pytest.mark.parametrize(
    ("borrowers", "resumable", "starts"),
    [
        ("any", False, True), ("any", True, True), ("resumable", False, False), ("resumable", True, True),
        ("none", False, False), ("none", True, False),
    ],
)  # fmt: skip
def test_who_may_borrow_is_a_setting(borrowers: str, resumable: bool, starts: bool) -> None:
    p = cluster(gpus=8, tenant_quota={"a": 2, "b": 6}, borrowers=borrowers)
    p.running("own", tenant="a", gpus=1)
    p.step(arrived("more", tenant="a", gpus=2, resumable=resumable))
    assert p.state_of("more") == ("ASSIGNED" if starts else "QUEUED")
    if not starts:
        told = why(p.state, p.state.jobs["more"])
        assert told.reason == "TENANT_QUOTA"
        assert "the quota of tenant a is 2 GPUs, of which it holds 1; the job needs 2" in told.detail
        assert told.unblocks == "would be within the quota when job own ends"
        p.exit("own")
        assert p.state_of("more") == "ASSIGNED"


def test_a_job_larger_than_a_quota_that_may_not_be_passed_is_told_so() -> None:
    p = cluster(gpus=8, tenant_quota={"a": 2}, borrowers="none")
    p.step(arrived("large", tenant="a", gpus=4), arrived("stranger", tenant="z"))
    told = why(p.state, p.state.jobs["large"])
    assert (told.reason, told.unblocks) == ("TENANT_QUOTA", "starts only when the quota is raised")
    assert why(p.state, p.state.jobs["stranger"]).reason == "TENANT_QUOTA"


def test_the_hard_limit_stands_beside_the_quota() -> None:
    p = cluster(gpus=8, tenant_quota={"a": 2}, tenant_gpus={"a": 3})
    p.running("own", tenant="a", gpus=2)
    p.step(arrived("within", tenant="a", gpus=1), arrived("over", tenant="a", gpus=1, submitted_at=START + 1))
    assert p.state_of("within") == "ASSIGNED"
    assert why(p.state, p.state.jobs["over"]).reason == "TENANT_GPU_LIMIT"


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf", "easy", "srtf"])
def test_who_is_within_its_quota_goes_before_those_who_borrow_whenever_it_came(policy: str) -> None:
    p = cluster(gpus=4, policy=policy, tenant_quota={"b": 4}, borrowers="any")
    p.running("running", tenant="b", gpus=4)
    p.step(arrived("borrower", tenant="a", gpus=4), arrived("owner", tenant="b", gpus=4, submitted_at=START + 50))
    p.exit("running")
    assert p.state_of("owner") == "ASSIGNED"
    assert p.state_of("borrower") == "QUEUED"


def test_a_quota_is_used_up_within_one_pass() -> None:
    """Two jobs of the owner fit its quota, the third would borrow and goes behind an earlier borrower."""
    p = cluster(gpus=6, tenant_quota={"b": 4}, policy="fifo")
    p.running("all", tenant="b", gpus=6)
    p.step(
        arrived("early", tenant="a", gpus=2),
        *[arrived(f"b{n}", tenant="b", gpus=2, submitted_at=START + 1 + n) for n in range(3)],
    )
    p.exit("all")
    assert [p.state_of(job) for job in ("b0", "b1", "early", "b2")] == ["ASSIGNED", "ASSIGNED", "ASSIGNED", "QUEUED"]


def test_rounds_give_every_tenant_its_quota_first_and_lend_the_rest() -> None:
    p = cluster(gpus=8, policy="tiresias", tenant_quota=QUOTA, reclaim_min_run_s=0.0, start_timeout_s=1e6)
    for number in range(4):
        p.step(arrived(f"a{number}", tenant="a", gpus=2, resumable=True, submitted_at=START + number))
    p.step(i.Tick(), after=60)
    assert p.state.tenant_gpus == {"a": 8}
    p.step(arrived("b", tenant="b", gpus=4, submitted_at=START + 50), after=60)
    p.step(i.Tick(), after=60)
    assert set(stopped_jobs(p)) == {"a2", "a3"}
    leave(p)
    assert p.state_of("b") == "ASSIGNED"
    for _ in range(20):
        p.step(i.Tick(), after=60)
    assert len(stopped_jobs(p)) == 2


def test_a_gang_of_a_higher_class_takes_the_nodes_that_cost_least() -> None:
    """Whole nodes of the lowest class first; a node of two small jobs is dearer than one with a free half."""
    p = cluster(nodes=3, gpus=4, policy="fifo-skip", preemption=True, preemption_min_run_s=0.0)
    p.running("full", gpus=4, priority=0)
    p.running("half", gpus=2, priority=0)
    p.running("normal", gpus=4, priority=1)
    p.step(arrived("gang", gpus=4, nodes=2, priority=2), after=5)
    assert set(stopped_jobs(p)) == {"half", "full"}
    assert {x.reason for x in of_kind(p.told, d.Moved) if x.event == "STOP"} == {"PREEMPTED"}


@pytest.mark.parametrize(
    "refused",
    [{"tenant_quota": {"a": -1}}, {"tenant_quota": ["a"]}, {"borrowers": "all"}, {"reclaim_min_run_s": "soon"}],
)
def test_settings_of_quotas_that_make_no_sense_are_refused(refused: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        PoolConfig.from_json(refused)


def test_a_stop_further_down_the_queue_that_lets_an_earlier_job_have_its_room_is_seen_in_the_same_step() -> None:
    """What is within another tenant's quota is not stopped for a job, until the tenant's own job has it stopped: then the job's turn comes at once."""
    p = cluster(gpus=2, preemption=True, preemption_min_run_s=0.0, tenant_quota={"a": 8, "b": 4}, policy="fifo-skip")
    p.running("borrowed", tenant="c", gpus=1, priority=1)
    p.running("within", tenant="a", gpus=1, priority=0)
    p.step(arrived("first", tenant="b", gpus=2, priority=2), after=1)
    assert stopped_jobs(p) == []
    p.step(arrived("later", tenant="a", gpus=1, priority=2, submitted_at=START + 1), after=1)
    assert set(stopped_jobs(p)) == {"within", "borrowed"}
    check(p.state)
    leave(p)
    assert (p.state_of("first"), p.state_of("later")) == ("ASSIGNED", "QUEUED")


@pytest.mark.parametrize("policy", ["srtf", "fifo"])
def test_a_borrower_does_not_stop_those_of_its_own_tenant_that_would_come_back_before_it(policy: str) -> None:
    """It would take turns with them for ever: once they have left they are within the quota, and it is not."""
    p = cluster(gpus=8, policy=policy, preemption=True, preemption_min_run_s=0.0, advice="raw", tenant_quota={"a": 4})
    for job, gpus in (("own", 3), ("borrowed", 3)):
        p.step(
            arrived(job, tenant="a", gpus=gpus, priority=0, resumable=True),
            i.EstimateArrived(job, 1, None, 3000.0, None, "learned"),
        )
        p.start(job)
    p.step(
        arrived("first", tenant="a", gpus=6, priority=2, resumable=True),
        i.EstimateArrived("first", 1, None, 10.0, None, "learned"),
        after=60,
    )
    for _ in range(3):
        p.step(i.Tick(), after=60)
    assert [p.state_of(job) for job in ("own", "borrowed", "first")] == ["RUNNING", "RUNNING", "QUEUED"]


@pytest.mark.parametrize("policy", ["srtf", "fifo"])
def test_whoever_would_be_within_the_quota_too_stops_those_of_its_own_tenant(policy: str) -> None:
    p = cluster(gpus=4, policy=policy, preemption=True, preemption_min_run_s=0.0, advice="raw", tenant_quota={"a": 4})
    p.step(
        arrived("own", tenant="a", gpus=3, priority=0, resumable=True),
        i.EstimateArrived("own", 1, None, 3000.0, None, "learned"),
    )
    p.start("own")
    p.step(
        arrived("first", tenant="a", gpus=4, priority=2, resumable=True),
        i.EstimateArrived("first", 1, None, 10.0, None, "learned"),
        after=60,
    )
    assert p.state_of("own") == "STOPPING"
