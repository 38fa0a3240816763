"""Advice that is scored without acting, turned off, and taken out of use by itself where its intervals are broken."""

from __future__ import annotations

import json

import pytest

from schedmate.cli import app as command_line
from schedmate.cli.pool_advice_commands import scores
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.inputs import ConfigChanged
from schedmate.services.dispatcher.core.step import step
from schedmate.services.dispatcher.core.trust import COVERAGE_JUDGED_MIN, Trust
from schedmate.simulator.advice import Told
from schedmate.simulator.cluster import uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.generate import philly_like

JOBS = tuple(philly_like(600, 3))
CLUSTER = uniform(3, 8)


class Interval(Told):
    """True run times, with an interval around them that is right or broken."""

    def __init__(self, *, right: bool) -> None:
        super().__init__("told", [job.duration_s for job in JOBS])
        self.right = right

    def quantiles(self, number: int) -> tuple[float, float, str]:
        run_s = JOBS[number].duration_s
        return (run_s * 0.9, run_s * 1.1, "told") if self.right else (run_s * 1.1, run_s * 1.2, "told")


def simulate(advice: str, source=None, policy: str = "sjf"):
    states = {}
    simulation = Simulation(
        JOBS, CLUSTER, policy, source, config=PoolConfig(advice=advice),
        recorder=lambda state, _: states.update({state.pool: state}),
    )  # fmt: skip
    outcome = simulation.run()
    return [outcome.start_s[n] for n in range(len(JOBS))], states["default"]


def test_in_the_shadow_every_job_starts_as_without_advice_and_the_source_is_scored():
    without, _ = simulate("weighed")
    shadow, state = simulate("shadow", Interval(right=True))
    acting, _ = simulate("weighed", Interval(right=True))
    assert shadow == without
    assert acting != without
    (score,) = scores(state)
    assert (score["basis"], score["believed"], score["coverage"]) == ("told", True, 1.0)
    assert score["weight"] > 0.3
    assert score["skill"] > 0.9
    off, state = simulate("off", Interval(right=True))
    assert off == without
    assert scores(state) == []


def test_a_source_whose_intervals_are_broken_is_not_believed_though_its_order_is_right():
    _, state = simulate("weighed", Interval(right=False))
    (score,) = scores(state)
    assert (score["weight"], score["believed"], score["coverage"]) == (0.0, False, 0.0)


def test_advice_is_turned_on_and_off_while_the_pool_lives():
    _, state = simulate("shadow", Interval(right=True))
    assert state.trust_in("told") == 0.0
    for advice, weight in (
        ("weighed", state.trust["told"].weight),
        ("off", 0.0),
        ("weighed", state.trust["told"].weight),
    ):
        done = step(state, [ConfigChanged({**state.config.to_json(), "advice": advice})], state.at + 1)
        assert not done.refused
        assert state.trust_in("told") == weight


@pytest.mark.parametrize("advice", ["", "on", "sometimes"])
def test_a_mode_that_nobody_knows_is_refused(advice: str):
    with pytest.raises(TypeError, match="advice is one of"):
        PoolConfig.from_json({"advice": advice})


def test_coverage_is_of_whole_runs_and_of_what_was_said_before_the_start():
    trust = Trust()
    for n in range(COVERAGE_JUDGED_MIN):
        trust.said(f"a{n}", 10.0, 5.0, 20.0)
        trust.said(f"b{n}", 10.0, 5.0, 20.0)
        trust.ended(f"a{n}", 10.0, whole=True)
        trust.ended(f"b{n}", 1000.0, whole=False)
    assert (trust.judged, trust.covered, trust.misses) == (COVERAGE_JUDGED_MIN, 1.0, False)
    trust.said("x", 10.0)
    trust.ended("x", 10.0, whole=True)
    assert trust.judged == COVERAGE_JUDGED_MIN
    trust.said("y", 10.0, 5.0, 20.0)
    again = Trust.from_json(json.loads(json.dumps(trust.to_json())))
    assert again.intervals == {"y": (5.0, 20.0)}
    old = {name: value for name, value in trust.to_json().items() if name not in {"judged", "covered", "intervals"}}
    assert Trust.from_json(old).judged == 0
    for n in range(200):
        trust.said(f"c{n}", 10.0, 5.0, 20.0)
        trust.ended(f"c{n}", 100.0, whole=True)
    assert trust.misses


def test_a_sweep_outside_its_intervals_breaks_no_source_and_a_thousand_such_runs_do():
    trust = Trust()

    def ran(jobs: int, run_s: float) -> bool:
        for n in range(jobs):
            trust.said(f"j{n}", 10.0, 5.0, 20.0)
            trust.ended(f"j{n}", run_s, whole=True)
        return trust.misses

    assert not ran(400, 10.0)
    assert not ran(150, 100.0)
    assert not ran(200, 10.0)
    assert ran(1000, 100.0)
    assert not ran(1000, 10.0)


def test_the_command_tells_the_mode_and_changes_it(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("SCHEDMATE_STATE_DIR", str(tmp_path))

    def told(*words: str):
        monkeypatch.setattr("sys.argv", ["schedmate", "pool", "advice", *words])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        out = capsys.readouterr()
        return end.value.code or 0, out.out, out.err

    assert json.loads(told("default", "--json")[1]) == {"pool": "default", "advice": "on", "sources": []}
    assert json.loads(told("default", "shadow", "--json")[1])["advice"] == "shadow"
    assert "advice is off" in told("default", "off")[1]
    assert "advice is on" in told("default", "on")[1]
    assert told("default", "maybe")[0] == 2
