"""BR-10: a job whose launch is refused each time backs off, lets the others pass, says why, and comes to an end."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.reasons import why
from tests.dispatching import POLICIES, START, arrived, cluster, ends_of, next_round, of_kind


@pytest.mark.parametrize("policy", POLICIES)
def test_doomed_job_starvation(policy: str) -> None:
    p = cluster(gpus=1, policy=policy)
    p.step(arrived("doomed"), arrived("good", submitted_at=START + 1))
    next_round(p)
    cycles = 0
    while p.state_of("good") != "ASSIGNED":
        cycles += 1
        assert cycles <= 2, "the good job waits for the doomed one"
        doomed = p.state.jobs["doomed"]
        p.step(i.MemberRefused("doomed", doomed.attempt, 0, "n1", 1, *doomed.place, "bundle_unavailable", "sha256 x"))
        next_round(p)
    told = why(p.state, p.state.jobs["doomed"])
    assert told.reason == "BACKING_OFF"
    assert "bundle_unavailable: sha256 x" in told.detail
    p.start("good")
    p.exit("good")
    waits: list[float] = []
    for _ in range(60):
        doomed = p.state.jobs.get("doomed")
        if doomed is None:
            break
        if doomed.members:
            p.step(
                i.MemberRefused("doomed", doomed.attempt, 0, "n1", 1, *doomed.place, "bundle_unavailable", "sha256 x")
            )
            waits.extend(x.not_before - p.now for x in of_kind(p.told, d.Moved)[-1:] if x.event == "REQUEUE")
        p.step(i.Tick(), after=20)
        next_round(p)
    assert ends_of(p, "doomed") == ["FAIL"]
    assert waits == sorted(waits)  # each wait longer than the one before
    moves = [x.event for x in of_kind(p.told, d.Moved) if x.job == "doomed"]
    assert "START" not in moves  # nothing ever said that it ran
    assert len([x for x in of_kind(p.told, d.Placed) if x.job == "doomed"]) == 6
