"""Two sources speak of one job: whose word it is ordered by, and how its own progress earns trust."""

from __future__ import annotations

import json

import pytest

from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.beliefs import trust_is
from schedmate.services.dispatcher.core.job import Job
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from tests.dispatching import PoolUnderTest, arrived, report
from tests.pool_invariants import check


def told(job: str, revision: int, p50_s: float | None, basis: str) -> i.EstimateArrived:
    return i.EstimateArrived(job, revision, None, p50_s, None, basis)


def pool(policy: str = "sjf", nodes: int = 1, **config) -> PoolUnderTest:
    p = PoolUnderTest(policy=policy, **config)
    p.step(*(report(f"n{n}", 8) for n in range(nodes)))
    return p


def weight(p: PoolUnderTest, basis: str, weight_: float) -> None:
    """The log says so, as on recovery."""
    trust_is(p.state, basis, weight_)


def acted_on(p: PoolUnderTest, job: str = "j") -> tuple[float | None, str | None]:
    live: Job = p.state.jobs[job]
    return live.p50_s, live.basis


@pytest.mark.parametrize(
    ("believed", "first", "second", "expected"),
    [
        ({}, "a", "b", "b"),  # neither: the newer
        ({"a": 1.0}, "a", "b", "a"),  # what is not believed does not displace what is
        ({"b": 1.0}, "a", "b", "b"),
        ({"a": 1.0, "b": 0.5}, "a", "b", "b"),  # both: the newer
        ({"b": 1.0}, "b", "a", "b"),
    ],
)
def test_an_estimate_of_a_source_that_is_not_believed_displaces_none_that_is(
    believed: dict[str, float], first: str, second: str, expected: str
):
    p = pool()
    for basis, weight_ in believed.items():
        weight(p, basis, weight_)
    p.step(arrived("j"), told("j", 1, 100.0, first))
    p.step(told("j", 2, 900.0, second))
    assert acted_on(p) == ({first: 100.0, second: 900.0}[expected], expected)
    check(p.state)


def test_a_source_that_comes_to_be_believed_takes_over_and_gives_back_when_it_is_believed_no_more():
    p = pool()
    weight(p, "history", 1.0)
    p.step(arrived("j"), told("j", 1, 100.0, "history"), told("j", 2, 900.0, "progress"))
    assert acted_on(p) == (100.0, "history")
    p.step(told("j", 3, 800.0, "progress"))  # a further word on a basis replaces the one before
    assert acted_on(p) == (100.0, "history")
    weight(p, "progress", 0.5)
    assert acted_on(p) == (800.0, "progress")
    weight(p, "progress", 0.0)
    assert acted_on(p) == (100.0, "history")
    p.step(told("j", 4, 120.0, "history"))
    assert acted_on(p) == (120.0, "history")
    again = PoolState.from_json(json.loads(json.dumps(p.state.to_json())), policy_named)
    assert again.jobs["j"].spare == p.state.jobs["j"].spare == (None, 800.0, None, "progress", False)


def test_what_says_nothing_takes_away_no_estimate_that_is_believed():
    p = pool()
    weight(p, "history", 1.0)
    p.step(arrived("j"), told("j", 1, 100.0, "history"), told("j", 2, None, "unknown"))
    assert acted_on(p) == (100.0, "history")


def test_in_a_raw_pool_the_newer_word_counts():
    p = pool(advice="raw")
    weight(p, "a", 1.0)
    p.step(arrived("j"), told("j", 1, 100.0, "a"), told("j", 2, 900.0, "b"))
    assert acted_on(p) == (900.0, "b")
    assert p.state.jobs["j"].spare is None


def test_an_operators_estimate_stays_whatever_is_believed():
    p = pool()
    p.step(arrived("j"), told("j", 1, 100.0, "a"), i.EstimateOrdered("j", None, 50.0, None, "op"))
    ordered = acted_on(p)
    weight(p, "b", 1.0)
    p.step(told("j", 2, 900.0, "b"))
    assert acted_on(p) == ordered


def run_read(p: PoolUnderTest, pairs: int, *, right: bool) -> None:
    """Pairs of jobs of 3 and 1000 s, each read after 2 s of its run: told what is left, or the other one's."""
    for n in range(pairs):
        p.step(arrived(f"s{n}"), arrived(f"l{n}"))
        for name, left_s in ((f"s{n}", 1.0), (f"l{n}", 998.0)):
            p.step(
                told(name, 1, 2.0 + (left_s if right else 999.0 - left_s), "progress"),
                after=2.0 if name[0] == "s" else 0.0,
            )
        p.step(over(p, f"s{n}"), after=1.0)
        p.step(over(p, f"l{n}"), after=997.0)


def over(p: PoolUnderTest, name: str) -> i.MemberExited:
    live = p.state.jobs[name]
    (member,) = live.members
    return i.MemberExited(name, live.attempt, 0, member.node, member.session, "exited", 0, None, live.since, p.now)


@pytest.mark.parametrize(("right", "trusted"), [(True, True), (False, False)])
def test_progress_earns_its_trust_by_the_time_that_is_left_when_it_is_read(right: bool, trusted: bool):
    p = pool()
    run_read(p, 36, right=right)
    assert (p.state.trust_in("progress") > 0.0) is trusted
    assert p.state.trust["progress"].decided >= 30
    check(p.state)


def test_only_the_first_reading_of_a_job_is_judged_and_none_before_it_runs():
    p = pool()
    p.step(arrived("fills", gpus=8))
    p.step(arrived("waits"), told("waits", 1, 50.0, "progress"))
    assert "progress" not in p.state.trust
    p.step(told("fills", 1, 500.0, "progress"), after=10.0)
    assert (p.state.jobs["fills"].read_s, len(p.state.trust["progress"].pairs)) == (10.0, 1)
    p.step(told("fills", 2, 900.0, "progress"), after=10.0)
    assert p.state.trust["progress"].pairs["fills"].first_s == 490.0


@pytest.mark.parametrize("advice", ["off", "raw"])
def test_a_pool_that_scores_nothing_does_not_score_progress(advice: str):
    p = pool(advice=advice)
    p.step(arrived("j"))
    p.step(told("j", 1, 500.0, "progress"), after=10.0)
    assert p.state.trust == {}


def test_among_jobs_that_are_believed_one_that_is_not_comes_to_its_turn_and_where_none_is_it_is_2d_las():
    """It has had more than 18,000 GPU seconds: behind every estimate it would starve."""
    p = pool("srtf")
    p.step(
        arrived("unheard", gpus=8),
        told("unheard", 1, 50.0, "small"),
        arrived("long", gpus=8),
        told("long", 1, 9e5, "history"),
    )
    one, other = p.state.jobs["unheard"], p.state.jobs["long"]
    one.served_s = 10_000.0
    key = p.state.policy.key
    assert key(one, p.state) > key(
        other, p.state
    )  # nothing is believed: who has had more than the level comes after who has not
    weight(p, "history", 1.0)
    assert key(one, p.state)[1] == 14_400.0 - 10_000.0  # an hour, two, four
    assert key(one, p.state) < key(other, p.state)
    check(p.state)
    weight(p, "history", 0.0)
    assert key(one, p.state) > key(other, p.state)


def test_a_run_that_began_before_it_was_placed_by_its_node_s_clock_outlasts_its_partner_as_early_in_a_recovered_pool():
    p = pool()
    said = [i.EstimateArrived(job, 1, p50, p50, p50, "learned") for job, p50 in (("a", 10.0), ("b", 1000.0))]
    p.step(arrived("a"), arrived("b"), *said)
    for job, began in (("a", p.now - 5.0), ("b", p.now - 4.0)):
        node = p.state.nodes["n0"]
        p.step(i.MemberStarted(job, 1, 0, "n0", node.session, began))
        p.step(i.MemberExited(job, 1, 0, "n0", node.session, "exited", 0, None, began, began + 1.0))
    assert p.state.trust["learned"].decided == 1  # each step held the recovered pool to the same


def test_whose_word_counts_is_asked_again_when_a_pool_begins_to_act_on_advice():
    p = pool(advice="shadow")
    weight(p, "history", 1.0)
    p.step(arrived("j"), told("j", 1, 500.0, "history"))
    p.step(told("j", 2, 900.0, "new"))
    assert acted_on(p) == (900.0, "new")  # neither counts: the newer one
    p.step(i.ConfigChanged({**p.state.config.to_json(), "advice": "weighed"}))
    assert acted_on(p) == (500.0, "history")
