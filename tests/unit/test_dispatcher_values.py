"""The core's plain values: settings, inputs and decisions as JSON and back; and the leader's count of silence."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import Budget, PoolConfig
from schedmate.services.dispatcher.core.fold import fold, remaining_says_something_new
from schedmate.services.dispatcher.core.inputs import FoldError
from schedmate.services.dispatcher.core.reports import says_something_new
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import CorePoisonedError, step
from schedmate.services.dispatcher.liveness import NodeLiveness
from tests.dispatching import START, arrived, cluster, report

RUN = i.RunSeen(
    "j", 2, 1, ended=True, started=False, cause="exited", exit_code=3, signal=None, started_at=1.5, ended_at=2.5
)

INPUTS: tuple[i.Input, ...] = (
    i.MemberStarted("j", 1, 0, "n1", 7, 1.25),
    i.MemberExited("j", 1, 0, "n1", 7, "exited", None, 9, None, 2.0),
    i.MemberRefused("j", 1, 0, "n1", 7, 3, 4, "gpu_in_use", "GPU 0"),
    report("n1", 2, runs=(RUN,), stopping=True),
    i.NodeSilent("n1", 7),
    i.NodeCommanded("n1", "cordon", "op", "why"),
    i.ReservationMade("r", ("n1", "n2"), 0, 100.0, 200.5, "op", "new disks"),
    i.ReservationWithdrawn("r", "op", "not today"),
    i.CancelRequested("j", "ann"),
    arrived("j", gpu_type="h100", time_limit_s=60, trace="00-1-2-01", spec='{"näme": "训练"}'),
    i.ProfileArrived("j1", 0.5, 0.25, 3000),
    i.EstimateArrived("j", 2, None, 1.0, 2.0, "learned"),
    i.EstimateArrived("j", 2, None, 1.0, 2.0, "learned", worth_probing=False),
    i.EstimateArrived("j", 2, None, 1.0, 2.0, "exact_prior", None, 0.25, 3000, "tiny"),
    i.EstimateOrdered("j", None, 60.0, 90.0, "op", "known"),
    i.JobPinned("j", "first", "op", "a demo"),
    i.ProgressArrived("j", 1, 12.5),
    i.DiagnosisArrived("j", 1, "X", None, "do_not_retry", "n1", True, "ckpt", "halve it", False, 0.75),
    i.ConfigChanged(PoolConfig(tenant_gpus={"a": 1}).to_json()),
    i.Tick(),
)
DECISIONS: tuple[d.Decision, ...] = (
    d.Moved("j", 1, "REQUEUE", "RETRYING", "x", 0, 5.5, "user", "n1", "ckpt"),
    d.Moved("j", 1, "FAIL", "NEEDS_CHANGES", category="OOM", proposed_change="less"),
    d.Noted("j", 1, "STOP_TIMEOUT", "late", 4),
    d.Placed("j", 2, (d.Seat("n1", 7, (0, 1)), d.Seat("n2", 8, (2, 3))), "10.0.0.1", 20000, 3, 4, 8, 1.0, "learned", "ckpt"),
    d.Stop("n1", "j", 1, 0, 10.0),
    d.Release("n1", "j", 1, 0),
    d.NodeMarked("n1", "lost", "why"),
)  # fmt: skip


def test_every_kind_of_input_and_decision_is_in_the_tables() -> None:
    assert {type(x) for x in INPUTS} == set(i.INPUTS.values())
    assert {type(x) for x in DECISIONS} == set(d.DECISIONS.values())


@pytest.mark.parametrize("value", INPUTS, ids=lambda x: x.KIND)
def test_an_input_survives_json(value: i.Input) -> None:
    assert i.from_json(json.loads(json.dumps(i.to_json(value)))) == value


@pytest.mark.parametrize("value", DECISIONS, ids=lambda x: x.KIND)
def test_a_decision_survives_json(value: d.Decision) -> None:
    assert d.from_json(json.loads(json.dumps(d.to_json(value)))) == value


def test_what_stands_at_its_default_is_left_out_of_a_decision() -> None:
    assert d.to_json(d.NodeMarked("n1", "lost")) == {"kind": "node", "node": "n1", "mark": "lost"}


# --- settings ---


def test_settings_survive_json() -> None:
    config = PoolConfig(tenant_gpus={"a": 3}, gpus_per_job_max=8, launch=Budget(1, 2.0, 3.0), lease_expires=False)
    assert PoolConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    "given",
    [
        {"no_such": 1},
        {"policy": 7},
        {"start_timeout_s": "soon"},
        {"start_timeout_s": -1.0},
        {"start_timeout_s": float("inf")},
        {"start_timeout_s": None},
        {"lease_expires": 1},
        {"gpus_per_job_max": 2.5},
        {"gpus_per_job_max": True},
        {"tenant_gpus": ["a"]},
        {"tenant_gpus": {"a": "many"}},
        {"launch": 5},
        {"launch": {"cap": 5}},
        {"launch": {"cap": 5, "base_s": -1.0, "cap_s": 1.0}},
        {"launch": {"cap": 1.5, "base_s": 1.0, "cap_s": 1.0}},
        {"decisions_max": -1},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        PoolConfig.from_json(given)


def test_whole_numbers_will_do_for_seconds_and_none_for_a_limit() -> None:
    config = PoolConfig.from_json(
        {"start_timeout_s": 30, "gpus_per_job_max": None, "launch": {"cap": 1, "base_s": 1, "cap_s": 9}}
    )
    assert config.start_timeout_s == 30
    assert config.launch.backoff_s(3) == 4.0


def test_back_off_doubles_from_its_base_to_its_cap_after_the_free_times() -> None:
    budget = Budget(cap=20, base_s=1.0, cap_s=300.0, free=1)
    assert [budget.backoff_s(n) for n in (1, 2, 3, 4, 10, 11, 5000)] == [0.0, 1.0, 2.0, 4.0, 256.0, 300.0, 300.0]


def test_the_limit_of_a_tenant_is_its_own_or_the_pools() -> None:
    config = PoolConfig(tenant_gpus={"a": 0}, tenant_gpus_max=4)
    assert (config.tenant_limit("a"), config.tenant_limit("b")) == (0, 4)


# --- refusals and poison ---


def test_an_input_of_no_kind_is_refused() -> None:
    with pytest.raises(FoldError, match="no such input"):
        fold(cluster().state, i.Input())


def test_a_core_that_breaks_says_on_which_input_or_that_it_was_while_deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedmate.services.dispatcher.core import fold as folding  # noqa: PLC0415

    def breaks(state: PoolState, value: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(folding._HANDLERS, i.Tick, breaks)
    with pytest.raises(CorePoisonedError, match="on input 1") as caught:
        step(cluster().state, [i.Tick(), report("n2")], START)
    assert caught.value.index == 1
    monkeypatch.undo()
    state = cluster().state
    state.releases.append(("n1",))  # type: ignore[arg-type]
    with pytest.raises(CorePoisonedError, match="while deciding") as caught:
        step(state, [i.Tick()], START)
    assert caught.value.index is None


# --- chatter and edges ---


def test_a_report_says_something_new_only_when_folding_it_would_change_something() -> None:
    p = cluster(gpus=2)
    p.running("j", gpus=1)
    place = p.state.jobs["j"].place
    runs = (i.RunSeen("j", 1, 0, ended=False, started=True),)
    same = {"applied_seq": place[0], "applied_index": place[1], "runs": runs}
    assert not says_something_new(p.state, report("n1", 2, **same))
    news: dict[str, dict[str, Any]] = {
        "another session": {**same, "session": 2},
        "a reboot": {**same, "boot_id": "other"},
        "another address": {**same, "address": "10.0.0.9"},
        "going away": {**same, "stopping": True},
        "an ill GPU": {**same, "unusable": (1,)},
        "a run that is missing": {**same, "runs": ()},
        "a run that has ended": {
            **same,
            "runs": (i.RunSeen("j", 1, 0, ended=True, started=True, cause="exited", exit_code=0),),
        },
        "a run that nobody wants": {**same, "runs": (*runs, i.RunSeen("ghost", 1, 0, ended=False, started=True))},
        "a run of another attempt": {**same, "runs": (i.RunSeen("j", 2, 0, ended=False, started=True), *runs)},
        "another lease": {**same, "lease_s": 60.0},
    }
    for what, given in news.items():
        assert says_something_new(p.state, report("n1", 2, **given)), what
    assert says_something_new(p.state, report("n9", 2))
    assert not says_something_new(p.state, report("n1", 2, session=0))
    p.step(i.NodeSilent("n1", 1))
    assert says_something_new(p.state, report("n1", 2, **same))


def test_a_start_that_only_a_report_tells_is_news() -> None:
    p = cluster(gpus=1)
    p.step(arrived("j"))
    place = p.state.jobs["j"].place
    starting = report(
        "n1", 1, applied_seq=place[0], applied_index=place[1], runs=(i.RunSeen("j", 1, 0, ended=False, started=False),)
    )
    assert not says_something_new(p.state, starting)
    running = report(
        "n1", 1, applied_seq=place[0], applied_index=place[1], runs=(i.RunSeen("j", 1, 0, ended=False, started=True),)
    )
    assert says_something_new(p.state, running)
    p.step(running)
    assert p.state_of("j") == "RUNNING"


def test_remaining_time_is_news_when_the_expected_end_moves() -> None:
    p = cluster(gpus=1)
    p.running("j")
    assert remaining_says_something_new(p.state, i.ProgressArrived("j", 1, 1000.0), p.now)  # the first
    p.step(i.ProgressArrived("j", 1, 1000.0))
    assert not remaining_says_something_new(p.state, i.ProgressArrived("j", 1, 950.0), p.now + 60)  # on course
    assert remaining_says_something_new(p.state, i.ProgressArrived("j", 1, 1500.0), p.now + 60)
    assert not remaining_says_something_new(p.state, i.ProgressArrived("j", 2, 1500.0), p.now)
    assert not remaining_says_something_new(p.state, i.ProgressArrived("x", 1, 1500.0), p.now)


def test_an_exit_that_an_earlier_session_tells_is_not_let_go() -> None:
    """The report tells it again; were the run released before that, it would count as lost."""
    p = cluster(gpus=1)
    p.step(report("n1", 1, session=5))
    p.step(arrived("j"))
    done = p.step(i.MemberExited("j", 1, 0, "n1", 4, "exited", 0, None, None, p.now))
    assert done.decisions == ()
    done = p.step(
        report("n1", 1, session=5, runs=(i.RunSeen("j", 1, 0, ended=True, started=True, cause="exited", exit_code=0),))
    )
    assert d.Release("n1", "j", 1, 0) in done.decisions
    assert p.state_of("j") == "SUCCEEDED"


def test_a_restarted_worker_is_told_again_what_it_was_to_stop() -> None:
    p = cluster(gpus=1)
    p.running("j")
    p.step(i.CancelRequested("j", "ann"))
    runs = (i.RunSeen("j", 1, 0, ended=False, started=True),)
    assert p.step(report("n1", 1, applied_seq=99, runs=runs)).decisions == ()
    done = p.step(report("n1", 1, applied_seq=99, session=2, runs=runs))
    assert done.decisions == (d.Stop("n1", "j", 1, 0, 10.0),)


def test_a_declared_death_is_told_as_such() -> None:
    p = cluster(gpus=1)
    p.running("j")
    p.step(i.NodeCommanded("n1", "dead", "op", ""))
    [moved] = [x for x in p.told if isinstance(x, d.Moved) and x.event == "STOP"]
    assert (moved.reason, moved.detail) == ("NODE_DECLARED_DEAD", "op declared n1 dead")


def test_a_program_that_could_not_be_launched_is_not_the_users_failure_where_no_diagnosis_comes() -> None:
    p = cluster(nodes=2, gpus=1)
    p.running("j", retries=0)
    p.exit("j", None, cause="launch_failed")
    p.step(i.Tick(), after=10)
    assert p.state.jobs["j"].spent == {"launch": 1}


def test_leases_that_may_expire_again_reach_the_nodes_that_are_silent_already() -> None:
    p = cluster(nodes=2, gpus=1, lease_expires=False)
    p.running("j")
    p.step(i.NodeSilent("n1", 1))
    p.step(i.ConfigChanged(PoolConfig().to_json()))
    assert p.seats("j") == [("n2", (0,))]


def test_ports_go_round_and_are_not_given_twice_while_there_are_others() -> None:
    p = cluster(gpus=0)
    p.step(report("n1", 4, port_min=100, port_max=102))
    p.step(*[arrived(f"j{n}") for n in range(4)])
    assert sorted(p.state.jobs[f"j{n}"].master_port for n in range(3)) == [100, 101, 102]
    assert p.state.jobs["j3"].master_port in range(100, 103)  # more gangs than ports
    assert {f.name for f in fields(d.Placed)} >= {"master_port", "master_addr"}


# --- silence ---


def test_a_node_is_silent_after_its_lease_and_the_margin_and_told_once() -> None:
    liveness = NodeLiveness(margin_s=2.0, step_max_s=10.0)
    liveness.reported("n1", 3, lease_s=10.0)
    found = [liveness.at_end(float(now)) for now in range(20)]
    assert [n for n, lost in enumerate(found) if lost] == [14]  # the second in which it was read counts for nothing
    assert found[14] == [("n1", 3)]


def test_the_margin_grows_with_the_lease() -> None:
    liveness = NodeLiveness(margin_s=0.0, step_max_s=1e9)
    liveness.reported("n1", 1, lease_s=1000.0)
    for now in (0.0, 1.0, 1020.0):
        assert liveness.at_end(now) == []
    assert liveness.at_end(1022.0) == [("n1", 1)]


def test_a_leader_that_slept_has_not_watched() -> None:
    liveness = NodeLiveness(margin_s=0.0, step_max_s=2.0)
    liveness.reported("n1", 1, lease_s=10.0)
    liveness.at_end(0.0)
    assert liveness.at_end(10_000.0) == []


def test_a_report_of_an_earlier_session_says_nothing_about_now() -> None:
    liveness = NodeLiveness(margin_s=0.0, step_max_s=100.0)
    liveness.reported("n1", 5, lease_s=10.0)
    for now in (0.0, 1.0, 10.0):
        assert liveness.at_end(now) == []
    liveness.reported("n1", 4, lease_s=10.0)  # a late repeat
    assert liveness.at_end(12.0) == [("n1", 5)]
    liveness.expect("n1", 9, lease_s=10.0)  # known already: not watched anew
    assert liveness.at_end(50.0) == []
