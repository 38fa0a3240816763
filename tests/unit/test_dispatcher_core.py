"""The pure core: a job's life, gangs, budgets, nodes, order and placement."""

from __future__ import annotations

import pytest

from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from tests.dispatching import START, PoolUnderTest, arrived, of_kind, report


def pool(nodes: int = 1, gpus: int = 8, **config: object) -> PoolUnderTest:
    under_test = PoolUnderTest(**config)
    under_test.step(*[report(f"n{n + 1}", gpus) for n in range(nodes)])
    return under_test


def test_a_job_runs_from_submit_to_success() -> None:
    p = pool()
    done = p.step(arrived("j1"))
    assert [type(x).__name__ for x in done.decisions] == ["Moved", "Placed"]
    p.start("j1")
    assert p.state_of("j1") == "RUNNING"
    done = p.exit("j1")
    assert p.state_of("j1") == "SUCCEEDED"
    assert of_kind(done, d.Release) == [d.Release("n1", "j1", 1, 0)]
    assert p.state.nodes["n1"].owner == {}
    assert p.state.capacity.free_gpus == 8


def test_a_repeat_of_any_input_changes_nothing() -> None:
    p = pool()
    p.step(arrived("j1"), arrived("j1"))
    p.step(arrived("j1"))
    assert p.state.jobs["j1"].attempt == 1
    p.start("j1")
    before = p.state.to_json()
    p.start("j1")
    after = p.state.to_json()
    assert {k: v for k, v in before.items() if k not in ("seq", "at")} == {
        k: v for k, v in after.items() if k not in ("seq", "at")
    }
    p.exit("j1")
    done = p.step(arrived("j1"))
    assert done.decisions == ()
    assert p.state_of("j1") == "SUCCEEDED"


def test_repeats_are_counted() -> None:
    p = pool()
    p.step(arrived("j1"), arrived("j1"))
    assert p.state.repeats == 1
    p.start("j1")
    assert p.state.repeats == 0
    p.start("j1")
    assert p.state.repeats == 1
    p.exit("j1")
    p.step(i.MemberExited("j1", 1, 0, "n1", 1, "exited", 0, None, None, p.now), arrived("j1"))
    assert p.state.repeats == 2


def test_an_exit_that_comes_before_its_start_counts() -> None:
    p = pool()
    p.step(arrived("j1"))
    p.exit("j1", 0)
    assert p.state_of("j1") == "SUCCEEDED"


def test_a_gang_holds_all_of_its_gpus_or_none() -> None:
    p = pool(nodes=2, gpus=4)
    p.running("small", gpus=1)
    p.step(arrived("gang", gpus=4, nodes=2))
    assert p.state_of("gang") == "QUEUED"
    assert sum(len(n.owner) for n in p.state.nodes.values()) == 1
    p.exit("small")
    assert p.seats("gang") == [("n1", (0, 1, 2, 3)), ("n2", (0, 1, 2, 3))]


def test_a_gang_keeps_its_gpus_until_its_last_member_has_ended() -> None:
    p = pool(nodes=2, gpus=4)
    p.running("gang", gpus=4, nodes=2)
    p.step(arrived("next", gpus=4))
    p.exit("gang", 0, member=0)
    assert p.state_of("next") == "QUEUED"
    assert p.state_of("gang") == "RUNNING"
    p.exit("gang", 0, member=1)
    assert p.state_of("gang") == "SUCCEEDED"
    assert p.state_of("next") == "ASSIGNED"


def test_a_members_bad_exit_stops_the_others_first() -> None:
    p = pool(nodes=2, gpus=4)
    p.running("gang", gpus=4, nodes=2)
    done = p.exit("gang", 1, member=1)
    assert of_kind(done, d.Stop) == [d.Stop("n1", "gang", 1, 0, 10.0)]
    assert p.state_of("gang") == "STOPPING"
    p.exit("gang", None, member=0, cause="stopped", signal=15)
    assert p.state_of("gang") == "DIAGNOSING"
    p.diagnose("gang", "do_not_retry", category="CODE_ERROR")
    assert p.state_of("gang") == "FAILED"


def test_two_gangs_that_each_need_everything_run_one_after_the_other() -> None:
    p = pool(nodes=4, gpus=4)
    p.step(arrived("a", gpus=4, nodes=4), arrived("b", gpus=4, nodes=4))
    assert {p.state_of("a"), p.state_of("b")} == {"ASSIGNED", "QUEUED"}
    p.start("a")
    p.exit("a")
    assert p.state_of("b") == "ASSIGNED"


def test_strict_fifo_lets_the_head_block_and_skipping_does_not() -> None:
    for policy, expected in (("fifo", "QUEUED"), ("fifo-skip", "ASSIGNED")):
        p = pool(gpus=4, policy=policy)
        p.running("first", gpus=2)
        p.step(arrived("wide", gpus=4, submitted_at=START + 1), after=1)
        p.step(arrived("narrow", gpus=1, submitted_at=START + 2), after=1)
        assert p.state_of("wide") == "QUEUED"
        assert p.state_of("narrow") == expected, policy


def test_a_job_that_never_fits_holds_nobody_back() -> None:
    p = pool(gpus=4)
    p.step(arrived("huge", gpus=16), arrived("ok", gpus=1, submitted_at=START + 1))
    assert p.state_of("huge") == "QUEUED"
    assert p.state_of("ok") == "ASSIGNED"


def test_a_job_over_the_pools_limits_is_rejected_at_once() -> None:
    p = pool(gpus_per_job_max=8, time_limit_s_max=3600, tenant_gpus={"team-b": 2})
    p.step(
        arrived("wide", gpus=8, nodes=2, time_limit_s=60),
        arrived("long", time_limit_s=7200),
        arrived("endless"),
        arrived("tenant", tenant="team-b", gpus=4, time_limit_s=60),
        arrived("fine", time_limit_s=60),
    )
    assert [p.state_of(j) for j in ("wide", "long", "endless", "tenant", "fine")] == ["REJECTED"] * 4 + ["ASSIGNED"]


def test_priority_classes_go_first_and_submit_order_decides_within_one() -> None:
    p = pool(gpus=1)
    p.running("busy")
    p.step(
        arrived("late", submitted_at=START + 9),
        arrived("early", submitted_at=START + 1),
        arrived("urgent", priority=3, submitted_at=START + 10),
    )
    order = []
    for _ in range(3):
        running = next(j for j in p.state.jobs.values() if j.members)
        if running.state.value == "ASSIGNED":
            p.start(running.id)
        p.exit(running.id)
        order.append(next(j.id for j in p.state.jobs.values() if j.members))
    assert order == ["urgent", "early", "late"]


def test_a_tenants_gpu_limit_holds_back_its_jobs_alone() -> None:
    p = pool(gpus=8, tenant_gpus={"team-a": 2})
    p.step(arrived("a1", gpus=2), arrived("a2", gpus=1), arrived("b1", tenant="team-b", gpus=4))
    assert [p.state_of(j) for j in ("a1", "a2", "b1")] == ["ASSIGNED", "QUEUED", "ASSIGNED"]
    p.start("a1")
    p.exit("a1")
    assert p.state_of("a2") == "ASSIGNED"


def test_gpu_type_and_memory_decide_where_a_job_fits() -> None:
    p = PoolUnderTest(policy="fifo-skip")
    p.step(report("old", 8, gpu_type="v100", memory_mib=16384), report("new", 8, gpu_type="h100", memory_mib=81920))
    p.step(
        arrived("typed", gpu_type="h100"),
        arrived("roomy", gpu_memory_mib=40960),
        arrived("any"),
        arrived("none", gpu_type="tpu"),
    )
    assert p.seats("typed")[0][0] == "new"
    assert p.seats("roomy")[0][0] == "new"
    assert p.seats("any")[0][0] == "new"  # best fit: fewest free
    assert p.state_of("none") == "QUEUED"


def test_best_fit_leaves_the_emptiest_node_whole() -> None:
    p = pool(nodes=3, gpus=8)
    p.running("a", gpus=6)
    p.running("b", gpus=1)
    assert p.seats("b")[0][0] == p.seats("a")[0][0]
    p.running("c", gpus=4)
    p.running("d", gpus=4)
    assert p.seats("c")[0][0] == p.seats("d")[0][0] != p.seats("a")[0][0]


@pytest.mark.parametrize("moment", ["queued", "assigned", "running", "stopping", "diagnosing"])
def test_a_cancel_ends_a_job_exactly_once_at_every_moment(moment: str) -> None:
    p = pool(gpus=1)
    if moment == "queued":
        p.running("busy")
    p.step(arrived("j"))
    if moment in ("running", "stopping", "diagnosing"):
        p.start("j")
    if moment == "stopping":
        p.step(
            i.NodeReported(**{**{f: getattr(report("n1", 1), f) for f in report("n1", 1).__slots__}, "stopping": True})
        )
    if moment == "diagnosing":
        p.exit("j", 1)
        assert p.state_of("j") == "DIAGNOSING"
    p.step(i.CancelRequested("j", "ann"))
    if moment in ("assigned", "running", "stopping"):
        assert p.state_of("j") == "STOPPING"
        p.exit("j", None, cause="stopped", signal=15)
    assert p.state_of("j") == "CANCELLED"
    ends = [x for x in of_kind(p.told, d.Moved) if x.job == "j" and x.event in ("CANCEL", "FAIL", "COMPLETE", "REJECT")]
    assert len(ends) == 1


def test_a_cancel_before_its_job_is_kept_as_a_tombstone() -> None:
    p = pool()
    p.step(i.CancelRequested("j", "ann"))
    p.step(arrived("j"))
    assert p.state_of("j") == "CANCELLED"


def test_a_run_that_ended_well_before_the_cancel_reached_it_has_succeeded() -> None:
    p = pool()
    p.running("j")
    p.step(i.CancelRequested("j", "ann"))
    p.exit("j", 0, cause="exited")
    assert p.state_of("j") == "SUCCEEDED"


def test_a_cancelled_run_that_answers_the_signal_with_zero_is_cancelled() -> None:
    p = pool()
    p.running("j")
    p.step(i.CancelRequested("j", "ann"))
    p.exit("j", 0, cause="stopped")
    assert p.state_of("j") == "CANCELLED"


def test_a_preempted_run_that_exits_zero_runs_again() -> None:
    p = pool(gpus=4, preemption=True, preemption_min_run_s=10.0)
    p.running("low", gpus=4, priority=0)
    done = p.step(arrived("urgent", gpus=4, priority=3), after=20)
    assert of_kind(done, d.Stop) == [d.Stop("n1", "low", 1, 0, 10.0)]
    p.exit("low", 0, cause="stopped")
    assert p.state_of("low") == "QUEUED"
    assert p.state.jobs["low"].spent == {"preempted": 1}
    assert p.state_of("urgent") == "ASSIGNED"
    p.start("urgent")
    p.exit("urgent")
    assert p.state_of("low") == "ASSIGNED"
    assert p.state.jobs["low"].attempt == 2


def test_preemption_evicts_least_and_never_in_vain() -> None:
    p = pool(nodes=2, gpus=4, preemption=True, preemption_min_run_s=0.0)
    p.running("a", gpus=1, priority=0)
    p.running("b", gpus=3, priority=0)
    p.running("c", gpus=4, priority=2)
    p.step(arrived("too-wide", gpus=4, nodes=2, priority=3))
    p.step(arrived("fits", gpus=1, priority=2))
    stopped = {x.job for x in of_kind(p.told, d.Stop)}
    assert stopped == {"a", "b", "c"}
    p2 = pool(nodes=1, gpus=4, preemption=True, preemption_min_run_s=0.0)
    p2.running("x", gpus=1, priority=0)
    p2.running("y", gpus=3, priority=0)
    done = p2.step(arrived("one", gpus=1, priority=2))
    assert [x.job for x in of_kind(done, d.Stop)] == ["x"]  # one GPU is enough
    assert len(of_kind(done, d.Stop)) == 1


def test_a_bad_exit_is_retried_within_the_budget_and_then_fails() -> None:
    p = pool(diagnosis_wait_s=5.0, user_backoff_s=1.0)
    p.step(arrived("j", retries=2))
    for attempt in (1, 2, 3):
        assert p.state.jobs["j"].attempt == attempt
        p.start("j")
        p.exit("j", 1)
        assert p.state_of("j") == "DIAGNOSING"
        p.step(i.Tick(), after=5)
        if attempt < 3:
            assert p.state_of("j") == "QUEUED"
            p.step(i.Tick(), after=70)
    assert p.state_of("j") == "FAILED"
    assert p.told[-1].reason == "RETRY_BUDGET_SPENT" or any(
        getattr(x, "reason", "") == "RETRY_BUDGET_SPENT" for x in p.told
    )


def test_an_out_of_memory_is_not_retried_blindly() -> None:
    p = pool()
    p.running("j", retries=5)
    p.exit("j", 1)
    p.diagnose("j", "retry_with_changes", category="GPU_OOM", proposed_change="halve the batch size")
    assert p.state_of("j") == "FAILED"
    failed = of_kind(p.told, d.Moved)[-1]
    assert (failed.reason, failed.category, failed.proposed_change) == (
        "NEEDS_CHANGES",
        "GPU_OOM",
        "halve the batch size",
    )


def test_a_hardware_fault_cordons_the_node_and_retries_elsewhere_without_the_users_budget() -> None:
    p = pool(nodes=2)
    p.running("j", retries=0)
    assert p.seats("j")[0][0] == "n1"
    p.exit("j", 1)
    p.diagnose(
        "j",
        "retry_elsewhere_cordon",
        category="GPU_LOST",
        culpable="infra_hardware",
        culprit_node="n1",
        node_evidence=True,
    )
    assert p.state.nodes["n1"].cordoned is not None
    assert p.seats("j")[0][0] == "n2"
    assert p.state.jobs["j"].spent == {"infrastructure": 1}


def test_a_jobs_own_output_alone_never_cordons_a_node() -> None:
    p = pool(nodes=2)
    p.running("j")
    p.exit("j", 1)
    p.diagnose("j", "retry_elsewhere_cordon", culprit_node="n1", node_evidence=False)
    assert p.state.nodes["n1"].cordoned is None
    assert p.seats("j")[0][0] == "n2"


def test_a_diagnosis_of_an_older_attempt_never_changes_the_job() -> None:
    p = pool(nodes=2)
    p.running("j", retries=3)
    p.exit("j", 1)
    p.diagnose("j", "retry_from_checkpoint", attempt=1)
    p.step(i.Tick(), after=60)
    p.start("j")
    p.diagnose("j", "do_not_retry", attempt=1)
    p.exit("j", 1)
    assert p.state_of("j") == "DIAGNOSING"


def test_of_two_diagnoses_the_first_folded_wins() -> None:
    p = pool()
    p.running("j")
    p.exit("j", 1)
    p.step(
        *[
            i.DiagnosisArrived("j", 1, c, "user_code", a, None, False, None, None, False, 0.9)
            for c, a in (("FIRST", "do_not_retry"), ("SECOND", "retry_from_checkpoint"))
        ]
    )
    assert p.state_of("j") == "FAILED"


def test_complete_work_with_a_failed_teardown_has_succeeded() -> None:
    p = pool()
    p.running("j")
    p.exit("j", 134)
    p.diagnose("j", "do_not_retry", category="TEARDOWN_ERROR", work_was_complete=True)
    assert p.state_of("j") == "SUCCEEDED"


def test_a_diagnosis_that_overtakes_the_exit_is_kept_for_it() -> None:
    p = pool()
    p.running("j")
    p.diagnose("j", "do_not_retry", category="CODE_ERROR")
    assert p.state_of("j") == "RUNNING"
    p.exit("j", 1)
    assert p.state_of("j") == "FAILED"


def test_a_lost_node_requeues_its_jobs_elsewhere() -> None:
    p = pool(nodes=2)
    p.running("j")
    done = p.step(i.NodeSilent("n1", 1))
    assert d.NodeMarked("n1", "lost") in done.decisions
    assert p.seats("j")[0][0] == "n2"
    assert p.state.jobs["j"].attempt == 2


def test_a_silence_of_an_earlier_session_is_nobodys_business() -> None:
    p = pool(nodes=1)
    p.step(report("n1", session=2))
    p.running("j")
    p.step(i.NodeSilent("n1", 1))
    assert p.state_of("j") == "RUNNING"


def test_where_leases_never_expire_a_silent_node_keeps_its_runs() -> None:
    p = pool(nodes=2, lease_expires=False)
    p.running("j")
    p.step(i.NodeSilent("n1", 1))
    assert (p.state_of("j"), p.reason_of("j")) == ("RUNNING", "NODE_UNREACHABLE")
    p.step(arrived("next"))
    assert p.seats("next")[0][0] == "n2"
    job = p.state.jobs["j"]
    p.step(report("n1", applied_seq=99, runs=(i.RunSeen("j", job.attempt, 0, ended=False, started=True),)))
    assert (p.state_of("j"), p.reason_of("j")) == ("RUNNING", "ALL_MEMBERS_STARTED")
    p.step(i.NodeSilent("n1", 1))
    p.step(i.NodeCommanded("n1", "dead", "op", "burnt"))
    assert p.state.jobs["j"].attempt == 2


def test_a_report_that_lacks_an_applied_run_means_it_is_lost() -> None:
    p = pool(nodes=2)
    p.running("j")
    place = p.state.jobs["j"].place
    p.step(report("n1", applied_seq=place[0], applied_index=place[1]))
    assert p.state.jobs["j"].attempt == 2


def test_a_report_older_than_the_assignment_loses_nothing() -> None:
    p = pool(nodes=2)
    p.step(arrived("j"))
    p.step(report("n1"))
    assert p.state.jobs["j"].attempt == 1


def test_a_run_that_nobody_wants_gets_a_stop_and_an_ended_one_is_released() -> None:
    p = pool()
    stray = i.RunSeen("ghost", 1, 0, ended=False, started=True)
    dead = i.RunSeen("spent", 1, 0, ended=True, started=True, cause="exited", exit_code=0)
    done = p.step(report("n1", runs=(stray, dead)))
    assert d.Stop("n1", "ghost", 1, 0, 10.0) in done.decisions
    assert d.Release("n1", "spent", 1, 0) in done.decisions


def test_a_refusal_counts_only_for_the_current_assignment() -> None:
    p = pool(nodes=2)
    p.step(arrived("j"))
    seq, index = p.state.jobs["j"].place
    p.step(i.MemberRefused("j", 1, 0, "n1", 1, seq - 1, index, "stale_session", ""))
    assert p.state_of("j") == "ASSIGNED"
    p.step(i.MemberRefused("j", 1, 0, "n1", 1, seq, index, "gpu_in_use", "GPU 0"))
    assert p.state_of("j") == "QUEUED"
    assert p.state.jobs["j"].spent == {"launch": 1}
    p.step(i.Tick(), after=2)
    assert p.seats("j")[0][0] == "n2"


def test_a_launch_that_is_always_refused_backs_off_lets_others_pass_and_ends() -> None:
    p = pool(gpus=1)
    p.step(arrived("doomed"), arrived("good", submitted_at=START + 1))
    launches = 0
    for _ in range(40):
        job = p.state.jobs.get("doomed")
        if job is None:
            break
        if job.members:
            launches += 1
            p.step(i.MemberRefused("doomed", job.attempt, 0, "n1", 1, *job.place, "bundle_unavailable", ""))
        if p.state_of("good") == "ASSIGNED":
            p.start("good")
            p.exit("good")
        p.step(i.Tick(), after=30)
    assert p.state_of("doomed") == "FAILED"
    assert p.state_of("good") == "SUCCEEDED"
    assert launches == 6


def test_a_start_that_never_comes_is_bounded() -> None:
    p = pool(nodes=2, start_timeout_s=30.0)
    p.step(arrived("j"))
    assert p.state.next_timer() == START + 30
    p.step(i.Tick(), after=31)
    assert (p.state_of("j"), p.reason_of("j")) == ("STOPPING", "START_TIMEOUT")
    p.exit("j", None, cause="stopped")
    p.step(i.Tick(), after=2)
    assert p.seats("j")[0][0] == "n2"


def test_a_stop_that_outlasts_its_bound_holds_the_gpus_back_until_the_proof_of_death() -> None:
    p = pool(gpus=1, stop_timeout_s=60.0)
    p.running("j")
    p.step(i.CancelRequested("j", "ann"))
    done = p.step(i.Tick(), after=61)
    assert (p.state_of("j"), p.reason_of("j")) == ("STOPPING", "STOP_TIMEOUT")
    assert len(of_kind(done, d.Stop)) == 1
    p.step(arrived("next"))
    assert p.state_of("next") == "QUEUED"
    p.exit("j", None, cause="stopped", signal=9)
    assert p.state_of("j") == "CANCELLED"
    assert p.state_of("next") == "ASSIGNED"


def test_a_job_that_reaches_its_time_limit_fails() -> None:
    p = pool()
    p.running("j", time_limit_s=100)
    p.step(i.Tick(), after=101)
    assert (p.state_of("j"), p.reason_of("j")) == ("STOPPING", "TIME_LIMIT")
    p.exit("j", None, cause="stopped", signal=15)
    assert p.state_of("j") == "FAILED"


def test_lost_gpus_are_never_booked_twice() -> None:
    p = pool(gpus=8)
    p.running("p0", gpus=8)
    job = p.state.jobs["p0"]
    runs = (i.RunSeen("p0", 1, 0, ended=False, started=True),)
    p.step(report("n1", 8, unusable=(2, 5), applied_seq=job.place[0], applied_index=job.place[1], runs=runs))
    p.step(arrived("next", gpus=6))
    assert p.state_of("next") == "QUEUED"
    assert p.state.capacity.free_gpus == 0
    p.exit("p0")
    assert p.seats("next") == [("n1", (0, 1, 3, 4, 6, 7))]


def test_a_black_hole_node_is_cordoned_after_several_jobs_fail_fast_there_and_not_elsewhere() -> None:
    p = pool(nodes=2, gpus=4, diagnosis_wait_s=1.0)
    p.step(*[arrived(f"j{n}", submitted_at=START + n, retries=3) for n in range(20)])
    for _ in range(400):
        if not p.state.jobs:
            break
        for job in list(p.state.jobs.values()):
            if job.id in p.state.jobs and job.members:
                bad = job.members[0].node == "n1"
                if job.state.value == "ASSIGNED":
                    p.start(job.id)
                p.exit(job.id, 1 if bad else 0, after=0.5 if bad else 30.0)
        p.step(i.Tick(), after=2)
    assert p.state.nodes["n1"].cordoned is not None
    assert {p.state_of(f"j{n}") for n in range(20)} == {"SUCCEEDED"}


def test_broken_jobs_never_cordon_a_good_node() -> None:
    p = pool(nodes=2, gpus=4)
    for n in range(6):
        p.running(f"j{n}", retries=0)
        p.exit(f"j{n}", 1, after=0.5)
        p.diagnose(f"j{n}", "do_not_retry")
    assert p.state.nodes["n1"].cordoned is None


def test_a_draining_node_gets_nothing_new_and_comes_back() -> None:
    p = pool(nodes=1)
    p.running("j")
    p.step(i.NodeCommanded("n1", "drain", "op", ""))
    p.step(arrived("next"))
    assert (p.state_of("j"), p.state_of("next")) == ("RUNNING", "QUEUED")
    p.step(i.NodeCommanded("n1", "undrain", "op", ""))
    assert p.state_of("next") == "ASSIGNED"


def test_inputs_that_make_no_sense_are_refused_and_change_nothing() -> None:
    p = pool()
    p.running("j")
    before = {k: v for k, v in p.state.to_json().items() if k not in ("seq", "at")}
    done = p.step(
        i.MemberExited("j", 1, 7, "n1", 1, "exited", 0, None, None, p.now),
        i.MemberExited("j", 1, 0, "n9", 1, "exited", 0, None, None, p.now),
        i.NodeCommanded("nowhere", "drain", "op", ""),
        i.NodeCommanded("n1", "explode", "op", ""),
        arrived("odd", gpus=0),
        i.ConfigChanged({"policy": "nonsense"}),
        i.ConfigChanged({"no_such": 1}),
        report("n2", session=0),
    )
    assert len(done.refused) == 8
    after = {k: v for k, v in p.state.to_json().items() if k not in ("seq", "at")}
    assert after == before


def test_a_change_of_settings_is_an_input() -> None:
    p = pool(gpus=8, tenant_gpus={"team-a": 1})
    p.step(arrived("a"), arrived("b"))
    assert p.state_of("b") == "QUEUED"
    p.step(i.ConfigChanged({"policy": "fifo-skip"}))
    assert p.state_of("b") == "ASSIGNED"
    assert p.state.policy.name == "fifo-skip"


def test_held_events_are_bounded() -> None:
    p = pool(early_max=3)
    p.step(*[i.EstimateArrived(f"j{n}", 1, 1.0, 2.0, 3.0, "learned") for n in range(10)])
    assert p.state.early_count == 3
    p.step(*[i.CancelRequested(f"c{n}", "x") for n in range(10)])
    assert len(p.state.cancels) == 3
    p.step(arrived("j9"))
    assert p.state.jobs["j9"].p50_s == 2.0
    assert p.state.early_count == 2


def test_time_never_goes_back() -> None:
    p = pool()
    p.step(i.Tick(), after=100)
    at = p.state.at
    p.step(i.Tick(), after=-500)
    assert p.state.at == at
