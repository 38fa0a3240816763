"""BR-42: a node on which everything fails within a second always looks free; it is found out, and nobody's job pays for it."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import START, PoolUnderTest, arrived, of_kind, report
from tests.pool_invariants import check


def fifty_jobs(how: str, **config: object) -> PoolUnderTest:
    """Fifty jobs, of which each fails at once on n1 and runs for a minute elsewhere."""
    p = PoolUnderTest(policy="fifo-skip", diagnosis_wait_s=1.0, **config)
    p.step(report("n1", 4))
    p.step(report("n2", 8), report("n3", 8))
    p.step(*[arrived(f"j{n}", submitted_at=START + n) for n in range(50)])
    for _ in range(300):
        if not p.state.jobs:
            break
        for job in list(p.state.jobs.values()):
            live = p.state.jobs.get(job.id)
            if live is None or not live.members:
                continue
            if live.members[0].node == "n1":
                fails(p, job.id, how)
            elif live.state == "ASSIGNED":
                p.start(job.id)
            elif live.started_at is not None and p.now - live.started_at > 60:
                p.exit(job.id, 0, after=0.0)
        p.step(i.Tick(), after=5)
    check(p.state)
    return p


def fails(p: PoolUnderTest, job_id: str, how: str) -> None:
    job = p.state.jobs[job_id]
    if how == "setup_failed":
        p.step(i.MemberRefused(job_id, job.attempt, 0, "n1", 1, *job.place, how, "read-only file system"))
    elif how == "launch_failed":
        p.exit(job_id, None, cause=how, after=0.1)
    else:
        p.start(job_id)
        p.exit(job_id, 1, after=0.9)


@pytest.mark.parametrize("how", ["exit 1", "launch_failed", "setup_failed"])
def test_black_hole_node_is_cordoned_and_every_job_runs_elsewhere(how: str) -> None:
    p = fifty_jobs(how)
    assert {p.state_of(f"j{n}") for n in range(50)} == {"SUCCEEDED"}
    assert p.state.nodes["n1"].cordoned is not None
    assert [p.state.nodes[n].cordoned for n in ("n2", "n3")] == [None, None]
    there = [x.job for x in of_kind(p.told, d.Placed) if x.seats[0].node == "n1"]
    assert len(there) == len(set(there)), "a job went back to where it had failed"
    cordoned_at = next(n for n, x in enumerate(p.told) if isinstance(x, d.NodeMarked) and x.mark == "cordoned")
    assert all(x.seats[0].node != "n1" for x in of_kind(p.told[cordoned_at:], d.Placed))
    done_before = [x for x in of_kind(p.told[:cordoned_at], d.Moved) if x.event == "COMPLETE"]
    assert len(done_before) < 16 + 3, "the first three that did well elsewhere were enough"


def test_black_hole_node_does_not_come_back_by_itself_nor_with_the_others() -> None:
    p = fifty_jobs("exit 1")
    p.step(report("n1", 4, session=2, boot_id="again"), i.NodeSilent("n1", 1))
    for name in ("n2", "n3"):
        p.step(i.NodeCommanded(name, "drain", "op", ""))
        p.step(i.NodeCommanded(name, "undrain", "op", ""))
    p.step(*[arrived(f"more{n}") for n in range(20)])
    assert all(
        node != "n1" for n in range(20) for node, _ in (p.seats(f"more{n}") if p.state.jobs[f"more{n}"].members else ())
    )
    p.step(i.NodeCommanded("n1", "undrain", "op", "mended"))
    assert p.state.nodes["n1"].cordoned is None
    assert any(n.owner for n in p.state.nodes.values() if n.name == "n1")


def test_black_hole_node_is_found_while_the_jobs_that_left_it_still_run() -> None:
    """Nobody waits for the end of week-long jobs to learn that they do well elsewhere."""
    p = PoolUnderTest(policy="fifo-skip", diagnosis_wait_s=1.0)
    p.step(report("n1", 1))
    p.step(report("n2", 8))
    for n in range(6):
        p.step(arrived(f"j{n}", submitted_at=p.now))
        if p.seats(f"j{n}")[0][0] == "n1":
            p.start(f"j{n}")
            p.exit(f"j{n}", 1, after=1)
            p.step(i.Tick(), after=2)
            p.step(i.Tick(), after=2)
            p.start(f"j{n}")
        p.step(i.Tick(), after=30)
    assert p.state.nodes["n1"].cordoned is not None
