"""BR-20: a node that lies, or takes what it never starts, stops nobody else, and gets nothing more."""

from __future__ import annotations

from dataclasses import replace

from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import START, PoolUnderTest, arrived, report
from tests.pool_invariants import check


def test_poison_node_whose_reports_make_no_sense_is_refused_alone() -> None:
    p = PoolUnderTest()
    good = [report(f"n{number}", 1) for number in range(5)]
    twice = replace(report("bad", 2), gpus=(i.Gpu(0, "a100", 1, usable=True), i.Gpu(0, "a100", 1, usable=True)))
    lies = [report("bad", session=0), report("bad", port_min=0), report("bad", port_min=9, port_max=8), twice]
    done = p.step(*lies, *good)
    assert len(done.refused) == 4
    assert list(p.state.nodes) == [f"n{number}" for number in range(5)]
    p.step(*[arrived(f"j{number}") for number in range(5)])
    assert {p.state_of(f"j{number}") for number in range(5)} == {"ASSIGNED"}
    check(p.state)


def test_poison_node_that_takes_jobs_and_never_starts_one_is_cordoned_after_a_few() -> None:
    p = PoolUnderTest(policy="fifo-skip", start_timeout_s=30.0)
    p.step(report("bad", 1))
    p.step(*[report(f"n{number}", 2) for number in range(5)])  # best fit likes the bad one: it has the fewest free
    jobs = [f"j{number}" for number in range(30)]
    p.step(*[arrived(job, submitted_at=START + n) for n, job in enumerate(jobs)])
    for _ in range(80):
        for job in list(p.state.jobs.values()):
            if not job.members or job.members[0].node == "bad":
                continue
            if job.state == "ASSIGNED":
                p.start(job.id)
        p.step(i.Tick(), after=11)
        for job in list(p.state.jobs.values()):
            if job.state == "STOPPING" and job.members[0].node == "bad":
                p.exit(job.id, None, cause="stopped", after=0.0)  # the lease or the stop: it is dead at last
            elif job.state == "RUNNING" and p.now - (job.started_at or 0) > 50:
                p.exit(job.id, 0, after=0.0)
        check(p.state)
    assert {p.state_of(job) for job in jobs} == {"SUCCEEDED"}
    assert p.state.nodes["bad"].cordoned is not None
    assert all(p.state.nodes[f"n{number}"].cordoned is None for number in range(5))


def test_poison_node_that_falls_silent_is_lost_and_its_job_runs_elsewhere() -> None:
    p = PoolUnderTest()
    p.step(report("bad", 1), report("good", 2))
    p.running("j")
    assert p.seats("j")[0][0] == "bad"
    p.step(i.NodeSilent("bad", 1))
    assert p.seats("j")[0][0] == "good"


def test_poison_node_broken_jobs_that_fail_everywhere_cordon_none() -> None:
    """Three jobs of one user, each with a directory that can be made nowhere: no node is to blame."""
    p = PoolUnderTest(policy="fifo-skip")
    p.step(report("a", 1), report("b", 1))
    p.step(*[arrived(f"j{number}", submitted_at=START + number) for number in range(6)])
    for _ in range(200):
        for job in list(p.state.jobs.values()):
            if job.members:
                node = job.members[0].node
                p.step(i.MemberRefused(job.id, job.attempt, 0, node, 1, *job.place, "setup_failed", "no"))
        p.step(i.Tick(), after=30)
    assert {p.state_of(f"j{number}") for number in range(6)} == {"FAILED"}
    assert all(node.cordoned is None for node in p.state.nodes.values())
