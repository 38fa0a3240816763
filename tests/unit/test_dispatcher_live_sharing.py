"""Sharing in a live pool: what the core keeps of neighbours, what members are told, and what reports say of the use of GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schedmate.schemas import events as e
from schedmate.schemas.ids import run_id
from schedmate.schemas.job import JobSpec
from schedmate.schemas.wire import Envelope
from schedmate.services.dispatcher import intake
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.log import Entry
from schedmate.services.dispatcher.profiles import profiles_of
from schedmate.services.dispatcher.publication import events_of, told_of, why_there
from tests.dispatching import START, PoolUnderTest, arrived, cluster, of_kind, report
from tests.pool_invariants import check

SPEC = JobSpec(name="x", command=("x",), tenant="team-a", user="ann", pool="default").model_dump_json()
TINY = (0.10, 0.02, 2_000)
LUCID: dict[str, Any] = {"policy": "lucid", "gpu_sharing": True}


def profiled(p: PoolUnderTest, job: str, **asks: Any) -> None:
    p.step(arrived(job, spec=SPEC, **asks), i.ProfileArrived(job, *TINY))
    p.start(job)
    check(p.state)


def told(p: PoolUnderTest, job: str, **config: Any) -> list[e.MemberAssigned]:
    """Return what the members of a job were told, from the entry that placed it last."""
    placed = [x for x in of_kind(p.told, d.Placed) if x.job == job][-1]
    entry = Entry("default", 5, 2, START, "me", (), {}, {}, "bus", (placed,), {"policy": "lucid", **config})
    events = [x.event for x in events_of(entry, told_of(p.state, entry), {})]
    return [x for x in events if isinstance(x, e.MemberAssigned)]


# --- what the settings allow ---


def test_a_pool_shares_nothing_unless_its_settings_say_so():
    assert PoolConfig().gpu_sharing is False
    assert PoolConfig.from_json({"gpu_sharing": True}).gpu_sharing
    p = cluster(1, 1, policy="fifo-skip")
    for job in "ab":
        p.step(arrived(job, gpu_milli=500))
    assert (p.state_of("a"), p.state_of("b")) == ("ASSIGNED", "QUEUED")
    assert p.state.jobs["a"].held_milli == 1000


def test_whoever_was_placed_while_nobody_was_packed_is_not_joined():
    p = cluster(1, 1, **{**LUCID, "gpu_sharing": False})
    profiled(p, "a")
    p.step(i.ConfigChanged(p.state.config.to_json() | {"gpu_sharing": True}))
    p.step(arrived("b"), i.ProfileArrived("b", *TINY))
    check(p.state)
    assert p.state_of("b") == "QUEUED", "its worker would let nobody onto its GPUs"
    p.step(arrived("c"), i.ProfileArrived("c", *TINY))
    p.exit("a")
    check(p.state)
    assert (p.state.jobs["b"].beside, p.state.jobs["c"].beside) == ("c", "b")


def test_a_pair_outlives_the_setting_and_nobody_new_is_packed():
    p = cluster(1, 1, **LUCID)
    for job in "ab":
        profiled(p, job)
    p.step(i.ConfigChanged(p.state.config.to_json() | {"gpu_sharing": False}))
    assert p.state.jobs["a"].beside == "b"
    p.exit("a")
    p.step(arrived("c"), i.ProfileArrived("c", *TINY))
    check(p.state)
    assert (p.state_of("b"), p.state_of("c")) == ("RUNNING", "QUEUED")


# --- neighbours ---


def test_a_job_that_failed_fast_beside_another_says_nothing_of_its_node():
    p = cluster(2, 1, gpu_sharing=True, policy="fifo-skip", strikes_max=1, diagnosis_wait_s=1.0)
    p.running("a", gpu_milli=500, retries=3)
    p.running("b", gpu_milli=500)
    p.exit("a", 1, after=0.5)
    assert p.state.jobs["a"].suspects == ()
    p.step(i.Tick(), after=2.0)
    p.step(i.Tick(), after=2.0)
    p.start("a")
    assert p.seats("a")[0][0] == "n2", "it keeps away from where it failed all the same"
    p.step(i.Tick(), after=60.0)
    p.exit("a", 0)
    assert p.state.nodes["n1"].cordoned is None
    p = cluster(1, 1, gpu_sharing=True, policy="fifo-skip")
    p.running("c", gpu_milli=500)
    p.step(arrived("d", gpu_milli=500))
    p.exit("d", None, cause="launch_failed", after=0.5)
    assert p.state.jobs["d"].suspects == ("n1",), "a program that could not be launched is no neighbour's doing"
    alone = cluster(1, 1, gpu_sharing=True, policy="fifo-skip", strikes_max=1)
    alone.running("a", gpu_milli=500)
    alone.exit("a", 1, after=0.5)
    assert alone.state.jobs["a"].suspects == ("n1",)


@pytest.mark.parametrize("settings", [{"gpu_sharing": True, "policy": "fifo-skip"}, LUCID], ids=["shares", "pair"])
def test_whoever_ran_out_of_gpu_memory_beside_another_is_tried_once_more_alone(settings: dict[str, Any]):
    milli = 500 if settings is not LUCID else 1000
    p = cluster(1, 1, **settings)
    for job in "ab":
        profiled(p, job, gpu_milli=milli, retries=0)
    p.exit("b", 1)
    p.diagnose("b", "retry_with_changes", category="GPU_OOM", proposed_change="halve the batch")
    check(p.state)
    assert (p.state_of("b"), p.state.jobs["b"].alone) == ("QUEUED", True)
    assert "alone" in p.state.jobs["b"].detail
    p.step(i.Tick(), after=5.0)
    assert p.state_of("b") == "QUEUED", "it does not go back beside the other one"
    p.exit("a")
    p.start("b")
    profiled_one_more = i.ProfileArrived("c", *TINY)
    p.step(arrived("c", gpu_milli=milli), profiled_one_more)
    check(p.state)
    assert (p.state_of("b"), p.state_of("c"), p.state.jobs["b"].held_milli) == ("RUNNING", "QUEUED", 1000)
    p.exit("b", 1)
    p.diagnose("b", "retry_with_changes", category="GPU_OOM", proposed_change="halve the batch")
    assert p.state_of("b") == "FAILED", "alone it was its own doing"


# --- what members are told ---


def test_a_share_is_told_to_the_worker_and_a_whole_gpu_in_the_version_that_every_worker_reads():
    p = cluster(1, 2, gpu_sharing=True, policy="fifo-skip")
    p.running("half", gpu_milli=500, spec=SPEC)
    p.running("whole", spec=SPEC)
    (half,), (whole,) = (
        told(p, "half", policy="fifo-skip", gpu_sharing=True),
        told(p, "whole", policy="fifo-skip", gpu_sharing=True),
    )
    assert isinstance(half, e.MemberAssignedV2)
    assert (half.gpu_milli, half.packable, half.packed_with) == (500, False, None)
    assert type(whole) is e.MemberAssigned


def test_the_second_of_a_pair_names_the_first_ones_run_and_both_may_be_joined():
    p = cluster(1, 1, **LUCID)
    for job in "ab":
        profiled(p, job)
    (first,), (second,) = told(p, "a", gpu_sharing=True), told(p, "b", gpu_sharing=True)
    assert isinstance(first, e.MemberAssignedV2)
    assert isinstance(second, e.MemberAssignedV2)
    assert (first.packable, first.packed_with) == (True, None)
    assert (second.packable, second.packed_with) == (True, run_id("a", 1))
    assert first.gpus == second.gpus
    assert type(told(p, "a")[0]) is e.MemberAssigned, "without sharing nobody may be joined"


def test_why_there_names_the_share_and_the_partner():
    seat = d.Seat("n1", 1, (3,))
    assert why_there(d.Placed("j", 1, (seat,), "h", 1, 0, 2, 2, gpu_milli=250)) == (
        "0.25 of GPU 3 of n1, best fit on what is left of a GPU"
    )
    assert why_there(d.Placed("j", 1, (seat,), "h", 1, 0, 0, 2, beside="k")) == (
        "packed with job k on n1: their profiles go together"
    )


# --- what reports say ---


def usage(**given: Any) -> e.RunUsage:
    base: dict[str, Any] = {
        "measured_s": 60.0, "gpu_utilisation": 0.1, "gpu_memory_utilisation": 0.02, "gpu_memory_bytes": 2_000 << 20,
        "gpu_held_s": 60.0, "gpu_busy_s": 6.0,
    }  # fmt: skip
    return e.RunUsage(**{**base, **given})


def reported(*measured: tuple[str, int, e.RunUsage], attempt: int = 1, state: str = "running") -> e.NodeReportedV3:
    return e.NodeReportedV3(
        node="n1", pool="default", boot_id="b", session=1, report_no=1, applied_seq=-1, applied_index=-1, address="h", port_min=20000,
        port_max=20999, gpus=(), lease_s=30.0, at=START,
        runs=tuple(
            e.RunReport(
                job_id=job, run_id=run_id(job, attempt), attempt=attempt, member=member, pool="default", seq=1, index=0, gpus=(0,),
                state=state,  # type: ignore[arg-type]
            )
            for job, member, _ in measured
        ),
        measured=tuple(e.MeasuredRun(run_id=run_id(job, attempt), member=member, usage=use) for job, member, use in measured),
    )  # fmt: skip


def test_a_profile_is_told_once_it_was_measured_for_long_enough_and_again_when_it_moves():
    p = cluster(1, 1, **LUCID)
    p.running("j")

    def brought(**given: Any) -> list[i.ProfileArrived]:
        found = list(profiles_of(p.state, reported(("j", 0, usage(**given))), 20.0))
        p.step(*found)
        return found

    assert brought(measured_s=19.9) == []
    assert brought() == [i.ProfileArrived("j", 0.1, 0.02, 2_000)]
    assert brought() == []
    assert brought(gpu_utilisation=0.14, gpu_memory_bytes=2_090 << 20) == []
    assert brought(gpu_utilisation=0.16) == [i.ProfileArrived("j", 0.16, 0.02, 2_000)]
    assert brought(gpu_utilisation=0.16, gpu_memory_bytes=(2_110 << 20) - 1) == [
        i.ProfileArrived("j", 0.16, 0.02, 2_110)
    ]
    assert brought(gpu_utilisation=0.3, gpu_memory_bytes=1 << 20) == [i.ProfileArrived("j", 0.3, 0.02, 2_110)], (
        "what it once needed it may need again"
    )


@pytest.mark.parametrize(
    "told_of",
    [
        reported(("other", 0, usage())),
        reported(("j", 1, usage())),
        reported(("j", 0, usage()), attempt=2),
        reported(("j", 0, usage()), state="ended"),
        reported(("j", 0, usage(gpu_utilisation=None))),
        reported(("j", 0, usage(gpu_memory_utilisation=None))),
        reported(("j", 0, usage(gpu_memory_bytes=None))),
        e.NodeReported(
            **{k: v for k, v in dict(reported(("j", 0, usage()))).items() if k in e.NodeReported.model_fields}
        ),
    ],
    ids=[
        "another job",
        "another member",
        "another attempt",
        "ended",
        "no use",
        "no use of memory",
        "no memory",
        "not measured",
    ],
)
def test_a_report_that_says_nothing_of_a_live_run_profiles_nobody(told_of: e.NodeReported):
    p = cluster(1, 1, **LUCID)
    p.running("j")
    assert list(profiles_of(p.state, told_of, 0.0)) == []


def test_nobody_is_profiled_where_nobody_is_packed():
    p = cluster(1, 1, policy="fifo", gpu_sharing=True)
    p.running("j")
    assert list(profiles_of(p.state, reported(("j", 0, usage())), 0.0)) == []


def test_an_exit_brings_what_was_measured_to_the_log_and_one_without_brings_nothing():
    event = e.RunExited(
        job_id="j", pool="default", run_id="r", attempt=1, member=0, node="n1", session=1, cause=e.ExitCause.EXITED, exit_code=0,
        log_bytes=0, started_at=1.0, ended_at=2.0,
    )  # fmt: skip
    plain = intake.to_input(Envelope("i", "s", 1.0, event))
    measured = intake.to_input(Envelope("i", "s", 1.0, e.RunExitedV2(**dict(event), usage=usage())))
    assert isinstance(plain, i.MemberExited)
    assert isinstance(measured, i.MemberExited)
    assert (plain.gpu_held_s, measured.gpu_held_s, measured.gpu_busy_s) == (None, 60.0, 6.0)
    before = {k: v for k, v in i.to_json(plain).items() if k not in ("gpu_held_s", "gpu_busy_s")}
    assert i.from_json(json.loads(json.dumps(before))) == plain, "an entry of before reads as one without"


def test_a_node_of_any_version_of_reports_is_one_node():
    told_of = reported()
    assert intake.to_input(Envelope("i", "s", 1.0, told_of)) == intake.to_input(
        Envelope(
            "i",
            "s",
            1.0,
            e.NodeReported(**{k: v for k, v in dict(told_of).items() if k in e.NodeReported.model_fields}),
        )
    )


def test_a_job_s_part_of_a_gpu_comes_to_the_core():
    spec = JobSpec.model_validate_json(SPEC).model_copy(update={"gpu_milli": 250})
    value = intake.to_input(
        Envelope("i", "s", 1.0, e.JobSubmitted(job_id="j", pool="default", spec=spec, submitted_at=1.0))
    )
    assert isinstance(value, i.JobArrived)
    assert value.gpu_milli == 250
    assert isinstance(report("n1"), i.NodeReported)
