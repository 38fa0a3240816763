"""How far advice moves a job, how a source earns its trust, and what the log says of it."""

from __future__ import annotations

import json
from math import exp, inf, nan
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.advice import NO_ADVICE_S, lasts_s, remaining_s, usable, weighed_s
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import recover
from schedmate.services.dispatcher.core.trust import REMEMBERED, Trust
from schedmate.services.dispatcher.log import Entry
from schedmate.simulator.draws import drawn_from
from tests.dispatching import START, PoolUnderTest, arrived, report


def job(p50_s: float | None, **given_):
    base = {
        "p90_s": None,
        "served_s": 0.0,
        "basis": "history",
        "state": JobState.QUEUED,
        "since": 0.0,
        "time_limit_s": None,
    }
    return SimpleNamespace(p50_s=p50_s, **(base | given_))


def pool(weight: float, **config):
    return SimpleNamespace(config=PoolConfig(**config), trust_in=lambda _: weight, at=0.0, by_quantiles=False)


@pytest.mark.parametrize(
    ("estimate", "weight", "config", "weighed"),
    [
        (None, 1.0, {}, NO_ADVICE_S),
        (60.0, 0.0, {}, NO_ADVICE_S),
        (60.0, 1.0, {}, 60.0),
        (36.0, 0.5, {}, 360.0),
        (1e12, 1.0, {}, NO_ADVICE_S * 10_000),
        (1e-9, 1.0, {}, NO_ADVICE_S / 10_000),
        (-5.0, 0.0, {"advice": "raw"}, -5.0),
        (7200.0 * 100, 1.0, {"advice_ratio_max": 2.0}, 7200.0),
    ],
)
def test_an_estimate_is_clamped_and_shrunk_toward_none(estimate, weight, config, weighed):
    assert weighed_s(job(estimate), pool(weight, **config)) == pytest.approx(weighed)


@pytest.mark.parametrize("nonsense", [nan, inf, -inf, 0.0, -3.0])
def test_what_is_no_positive_finite_number_says_nothing(nonsense: float):
    assert usable(nonsense, raw=False) is None
    assert usable(nonsense, raw=True) == (None if nonsense != nonsense else nonsense)  # noqa: PLR0124
    assert usable(5.0, raw=False) == usable(5.0, raw=True) == 5.0
    assert usable(None, raw=True) is None


def test_nothing_remains_to_be_said_where_nothing_is_believed():
    assert remaining_s(job(None), pool(1.0)) is None
    assert remaining_s(job(60.0), pool(0.0)) is None
    assert remaining_s(job(60.0, served_s=20.0), pool(1.0)) == pytest.approx(40.0)


def test_who_outlasts_what_was_said_is_expected_to_run_twice_as_long_and_twice_again():
    assert remaining_s(job(60.0, served_s=90.0), pool(1.0)) == pytest.approx(120.0 - 90.0)
    assert remaining_s(job(60.0, served_s=500.0), pool(1.0)) == pytest.approx(960.0 - 500.0)
    assert remaining_s(job(60.0, served_s=90.0), pool(1.0, advice="raw")) == 0.0


def test_how_long_a_job_lasts_is_its_upper_quantile_and_at_most_its_limit():
    assert lasts_s(job(60.0, p90_s=120.0), pool(1.0)) == pytest.approx(120.0)
    assert lasts_s(job(60.0), pool(1.0)) == pytest.approx(60.0)
    assert lasts_s(job(60.0, p90_s=120.0), pool(0.0)) == inf
    assert lasts_s(job(None), pool(1.0)) == inf
    assert lasts_s(job(None, time_limit_s=30), pool(0.0)) == 30.0
    assert lasts_s(job(60.0, time_limit_s=30), pool(1.0)) == 30.0


# --- trust ---


def runs(count: int, seed: int) -> list[float]:
    rng = drawn_from(seed)
    return [rng.lognormvariate(7, 2) for _ in range(count)]


def taught(trust: Trust, said: list[float], ran: list[float], named: str = "") -> Trust:
    """Let jobs come and end two by two."""
    for n, estimate in enumerate(said):
        trust.said(f"{named}{n}", estimate)
        if n % 2:
            for one in (n - 1, n):
                trust.ended(f"{named}{one}", ran[one], whole=True)
    return trust


def test_who_tells_the_truth_is_soon_believed_and_no_more_when_it_guesses():
    ran = runs(100, 1)
    trust = taught(Trust(), ran, ran)
    assert trust.weight == 1.0
    taught(trust, runs(1000, 2), runs(1000, 3), "later")
    assert trust.weight == 0.0
    assert not trust.believed


@pytest.mark.parametrize("seed", range(10))
def test_who_guesses_is_never_believed(seed: int):
    trust = Trust()
    for part in range(10):
        taught(trust, runs(2000, 100 * seed + part), runs(2000, 5000 + 100 * seed + part), f"{part}-")
        assert trust.weight == 0.0


WRONG = {
    "the contrary": lambda run: 1e9 / run,
    "not a number": lambda run: run * nan,
    "infinite": lambda run: run * inf,
    "negative": lambda run: -run,
    "nothing": lambda run: run * 0.0,
}


@pytest.mark.parametrize("how", WRONG)
def test_who_says_the_contrary_or_nonsense_is_not_believed_and_no_longer_where_it_was(how: str):
    said, ran = WRONG[how], runs(400, 4)
    assert taught(Trust(), [said(r) for r in ran], ran).weight == 0.0
    trust = taught(Trust(), ran, ran)
    assert trust.weight >= 0.75
    few = ran[: 2 * int(REMEMBERED)]
    assert taught(trust, [said(r) for r in few], few, "later").weight == 0.0


def test_who_says_the_same_of_all_is_not_believed():
    assert taught(Trust(), [3600.0] * 1000, runs(1000, 4)).weight == 0.0


def test_noise_lowers_the_weight():
    weights = []
    for sigma in (0.0, 1.0, 3.0, 6.0, 30.0):
        rng = drawn_from(7, str(sigma))
        ran = runs(6000, 5)
        weights.append(taught(Trust(), [r * exp(rng.gauss(0.0, sigma)) for r in ran], ran).weight)
    assert weights == sorted(weights, reverse=True)
    assert weights[0] >= 0.75
    assert weights[0] > weights[2] > weights[4]


def test_a_job_that_still_runs_counts_against_who_called_it_short():
    trust = Trust()
    trust.said("short", 10_000.0)
    trust.said("long", 10.0)
    trust.ended("short", 50.0, whole=True)
    assert trust.outlasts("long") == 100.0
    trust.outlasted("long")
    assert (trust.decided, trust.skill) == (1, -1.0)
    trust.ended("long", 500.0, whole=True)
    assert trust.decided == 1


def test_runs_that_lie_near_each_other_and_jobs_that_ended_before_their_time_decide_nothing():
    trust = Trust()
    for n, (first, second) in enumerate([(10.0, 19.0), (19.0, 10.0)]):
        trust.said(f"a{n}", 1.0)
        trust.said(f"b{n}", 2.0)
        trust.ended(f"a{n}", first, whole=True)
        trust.ended(f"b{n}", second, whole=True)
    trust.said("cancelled", 1.0)
    trust.said("left", 2.0)
    trust.ended("cancelled", 1e6, whole=False)
    assert trust.decided == 0
    trust.said("next", 200.0)  # the one that is left has a new partner
    trust.ended("left", 10.0, whole=True)
    trust.ended("next", 5000.0, whole=False)  # cancelled, but it had run for long enough
    assert (trust.decided, trust.skill, trust.pairs) == (1, 1.0, {})


@given(st.lists(st.tuples(st.sampled_from("ecrx"), st.integers(0, 8), st.integers(1, 1000)), max_size=40))
def test_trust_survives_a_snapshot_at_any_time(events):
    trust, live = Trust(), 0
    for what, which, much in events:
        name = str(which % (live + 1))
        if what == "e":
            trust.said(str(live), float(much))
            live += 1
        elif what == "r" and trust.outlasts(name) is not None:
            trust.outlasted(name)
        else:
            trust.ended(name, float(much), whole=what == "x")
        back = Trust.from_json(json.loads(json.dumps(trust.to_json())))
        assert back == trust
        assert back.to_json() == trust.to_json()


def test_what_an_older_core_knew_of_a_source_is_nothing():
    old = {"agreement": 3.0, "jobs": 4.0, "recent": [[1.0, 2.0]], "weight": 0.5, "seen": 9}
    assert Trust.from_json(old) == Trust()


# --- the pool ---


def ended(p: PoolUnderTest, name: str, ran_s: float):
    live = p.state.jobs[name]
    member = live.members[0]
    start = p.now - ran_s
    return i.MemberExited(name, live.attempt, 0, member.node, member.session, "exited", 0, None, start, p.now)


def believed_pool(**config) -> tuple[PoolUnderTest, list[dict[str, float]]]:
    """A pool in which `history` has told the truth of 64 jobs, two by two; and what each step said of its weight."""
    p = PoolUnderTest(policy="sjf", **config)
    p.step(report("n1", 8))
    moved = []
    for n in range(0, 64, 2):
        lengths = (10.0, 500.0) if n % 4 else (700.0, 10.0)
        names = (f"t{n}", f"t{n + 1}")
        for name, length in zip(names, lengths, strict=True):
            p.step(arrived(name), i.EstimateArrived(name, 1, None, length, None, "history"))
        for name, length in sorted(zip(names, lengths, strict=True), key=lambda one: one[1]):
            moved.append(p.step(ended(p, name, length), after=length).trust)
    return p, [m for m in moved if m]


def test_the_log_says_when_a_weight_changes_and_to_what():
    p, moved = believed_pool()
    assert moved[0].keys() == {"history"}
    assert 0.0 < moved[0]["history"] <= p.state.trust_in("history") == moved[-1]["history"]
    assert sum(1 for entry in p.log if entry.get("trust")) == len(moved)


def test_a_recovered_pool_believes_what_the_log_says():
    p, _ = believed_pool()
    state = PoolState.from_json(json.loads(json.dumps(p.state.to_json())), policy_named)
    recover(state, [i.Tick()], set(), [], p.now, {"history": 0.5})
    assert state.trust_in("history") == 0.5
    assert state.trust_moved == {"history": 0.5}


def test_the_weight_stands_in_the_entry_only_when_it_changes():
    with_, without = (
        Entry("p", 0, 1, START, "me", (), {}, {}, "bus", (), trust=trust) for trust in ({"history": 0.5}, {})
    )
    assert with_.to_body()["trust"] == {"history": 0.5}
    assert "trust" not in without.to_body()
    assert Entry.from_body(with_.to_body()) == with_
    assert Entry.from_body(without.to_body()) == without


def test_a_believed_source_orders_and_an_unbelieved_one_does_not():
    p, _ = believed_pool()
    p.step(arrived("fills", gpus=8, submitted_at=p.now))
    for basis, first in (("history", "b"), ("prior", "a")):
        for name, length in (("a", 9000.0), ("b", 20.0)):
            told = i.EstimateArrived(f"{basis}-{name}", 1, None, length, None, basis)
            p.step(arrived(f"{basis}-{name}", gpus=8, submitted_at=p.now), told)
        mine = [job_id for job_id, _ in p.state.queue.in_order() if job_id.startswith(basis)]
        assert mine[0] == f"{basis}-{first}"


def test_what_is_said_of_a_job_that_runs_earns_nothing():
    p = PoolUnderTest(policy="sjf")
    p.step(report("n1", 8))
    for n in range(70):
        p.step(arrived(f"late{n}"), after=1.0)
        p.step(i.EstimateArrived(f"late{n}", 1, None, 10.0 if n % 2 else 500.0, None, "history"))
        p.step(ended(p, f"late{n}", 10.0 if n % 2 else 500.0), after=600.0)
    assert p.state.trust_in("history") == 0.0


def test_a_job_that_runs_on_takes_the_trust_from_who_called_it_short():
    p, _ = believed_pool()
    believed = p.state.trust_in("history")
    assert believed > 0.0
    for n in range(34):  # 34 pairs: said to be long it is short, said to be short it runs on
        for name, told in ((f"s{n}", 5000.0), (f"l{n}", 5.0)):
            p.step(report(f"m{n}", 2), arrived(name), i.EstimateArrived(name, 1, None, told, None, "history"))
        p.step(ended(p, f"s{n}", 10.0), after=10.0)
    p.step(arrived("last"), after=60.0)
    p.step(ended(p, "last", 1.0), after=1.0)
    assert p.state.trust_in("history") == 0.0
    assert sum(1 for live in p.state.jobs if live.startswith("l")) == 34
