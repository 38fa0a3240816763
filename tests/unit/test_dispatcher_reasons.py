"""Why a job waits: every reason is reached, and what would unblock it is said in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedmate.schemas.reasons import Reason
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.reasons import Why, expected_end, why
from schedmate.services.dispatcher.reasoning import ReasonTeller, answer
from tests.dispatching import START, PoolUnderTest, arrived, cluster, report

AT_1405 = START - START % 86_400 + (24 + 14) * 3600 + 5 * 60  # the next day


def told(p: PoolUnderTest, job: str = "j", **given: object) -> Why:
    return why(p.state, p.state.jobs[job], **given)  # type: ignore[arg-type]


def estimated(p: PoolUnderTest, job: str, seconds: float) -> None:
    p.step(i.EstimateArrived(job, 1, seconds, seconds, seconds, "learned"))


def test_a_job_without_room_is_told_what_it_needs_where_most_is_free_and_what_it_waits_for() -> None:
    p = cluster(nodes=2, gpus=8)
    p.running("J", gpus=8)
    p.running("small", gpus=2)
    p.step(i.ProgressArrived("J", 1, AT_1405 - p.now))
    p.step(arrived("j", gpus=8, submitted_at=START + 1))
    found = told(p)
    assert found.reason == Reason.INSUFFICIENT_GPUS
    assert found.detail == "needs 8 GPUs on one node; the largest free is 6 on n2"
    assert found.unblocks == "would fit when job J ends"
    assert found.waits_for == ("J",)
    assert found.expected_at == AT_1405
    event = answer(p.state, "j", p.now)
    assert event is not None
    assert event.unblocks is not None
    assert event.unblocks.text.startswith("would fit when job J ends, expected ")
    assert "14:05" in event.unblocks.text
    assert event.queue_position == 0


def test_enough_but_not_together_is_fragmented() -> None:
    p = cluster(nodes=2, gpus=4)
    p.running("a", gpus=1)
    p.running("b", gpus=4)
    p.exit("b")
    p.running("c", gpus=1, gpu_type="a100")
    p.step(report("n2", 3), report("n3", 3))
    p.step(arrived("j", gpus=4, submitted_at=START + 1))
    found = told(p)
    assert found.reason == Reason.FRAGMENTED
    assert found.detail == "needs 4 GPUs on one node; 8 are free in all, the largest free is 3 on n2"
    assert set(found.waits_for) == {"a", "c"}
    assert found.expected_at is None  # nobody knows when they end


def test_a_gang_is_told_the_least_set_of_jobs_that_it_waits_for() -> None:
    p = cluster(nodes=3, gpus=4)
    for name in ("a", "b", "c"):
        p.running(name, gpus=4)
    for name, seconds in (("c", 50.0), ("a", 100.0), ("b", 900.0)):
        p.step(i.ProgressArrived(name, 1, seconds))
    p.step(arrived("j", gpus=4, nodes=2, submitted_at=START + 1))
    found = told(p)
    assert found.detail == "needs 4 GPUs on each of 2 nodes; the largest free is 0 on n1"
    assert found.waits_for == ("c", "a")
    assert found.unblocks == "would fit when jobs c, a end"
    assert found.expected_at == p.now + 100


def test_many_jobs_waited_for_are_counted() -> None:
    p = cluster(gpus=8)
    for n in range(8):
        p.running(f"r{n}")
    p.step(arrived("j", gpus=6, submitted_at=START + 1))
    assert told(p).unblocks == "would fit when jobs r0, r1, r2 and 3 more end"


def test_a_job_whose_end_only_would_not_help_is_not_waited_for() -> None:
    p = cluster(nodes=2, gpus=4)
    p.running("quick", gpus=1)
    p.running("long", gpus=3)
    p.running("other", gpus=4)
    for name, seconds in (("quick", 10.0), ("long", 500.0), ("other", 50.0)):
        p.step(i.ProgressArrived(name, 1, seconds))
    p.step(arrived("j", gpus=4, submitted_at=START + 1))
    assert told(p).waits_for == ("other",)


def test_without_a_counterfactual_the_running_jobs_are_not_looked_at() -> None:
    p = cluster(gpus=1)
    p.running("a")
    p.step(arrived("j"))
    found = told(p, with_counterfactual=False, ahead=3)
    assert (found.unblocks, found.waits_for) == ("", ())
    assert found.detail.endswith("; 3 earlier jobs wait too")
    assert told(p, ahead=1).detail.endswith("; 1 earlier job waits too")


def test_a_job_that_avoids_a_node_is_not_told_of_the_room_there() -> None:
    p = cluster(nodes=2, gpus=4, policy="fifo-skip")
    p.running("a", gpus=4)
    p.running("j", gpus=4)
    p.exit("j", None, cause="lost")
    found = told(p)
    assert (
        found.detail == "needs 4 GPUs on one node; the largest free is 0 on n1; it keeps away from n2, where it failed"
    )
    assert found.waits_for == ("a",)


def test_behind_earlier_jobs() -> None:
    p = cluster(gpus=4)
    p.running("a", gpus=2)
    p.step(arrived("wide", gpus=4, submitted_at=START + 1), arrived("j", gpus=1, submitted_at=START + 2))
    assert told(p).reason == Reason.BEHIND_EARLIER_JOBS
    assert told(p).detail == "it would fit; earlier jobs go first"
    assert told(p, ahead=1).detail == "it would fit; 1 earlier job goes first"
    assert told(p, ahead=2).detail == "it would fit; 2 earlier jobs go first"
    assert told(p, ahead=0).detail == "it would fit; it is the next to be placed"


def test_a_tenants_limit_names_the_jobs_that_would_make_room() -> None:
    p = cluster(gpus=8, tenant_gpus={"team-a": 3})
    p.running("a", gpus=1)
    p.running("b", gpus=2)
    p.step(i.ProgressArrived("b", 1, 60.0))
    p.step(arrived("j", gpus=2))
    found = told(p)
    assert found.reason == Reason.TENANT_GPU_LIMIT
    assert found.detail == "tenant team-a holds 3 of its 3 GPUs; the job needs 2"
    assert found.unblocks == "would be within the limit when job b ends"
    assert found.expected_at == p.now + 60


def test_a_limit_that_was_lowered_below_a_waiting_job_is_told_as_such() -> None:
    p = cluster(gpus=4)
    p.running("a", gpus=4)
    p.step(arrived("j", gpus=4))
    p.step(i.ConfigChanged(PoolConfig(tenant_gpus_max=2).to_json()))
    p.exit("a")
    assert p.state_of("j") == "QUEUED"
    assert told(p).reason == Reason.EXCEEDS_POOL_LIMITS
    assert told(p).unblocks == "starts only when the limit is raised"


def test_backing_off_says_until_when() -> None:
    p = cluster(gpus=1)
    p.running("j", retries=2)
    p.exit("j", 1)
    p.diagnose("j", "retry_from_checkpoint", category="NCCL_TIMEOUT")
    found = told(p)
    assert found.reason == Reason.BACKING_OFF
    assert "NCCL_TIMEOUT" in found.detail
    assert found.expected_at == p.now + 1


def test_nothing_lives_nothing_suits_nothing_is_large_enough_or_it_is_held() -> None:
    p = PoolUnderTest(policy="fifo-skip")
    p.step(arrived("j", gpus=2))
    assert told(p).reason == Reason.NO_LIVE_NODE
    p.step(report("n1", 0))
    assert told(p).detail == "needs 2 GPUs on one node; the pool has no usable GPU"
    p.step(report("n1", 1), arrived("tpu", gpu_type="tpu"), arrived("roomy", gpu_memory_mib=81920))
    found = told(p, "tpu")
    assert found.reason == Reason.NO_SUCH_GPU_TYPE
    assert found.detail == "needs 1 GPU of type tpu on one node; the pool has a100 (40 GiB)"
    assert told(p, "roomy").detail == "needs 1 GPU with 80 GiB on one node; the pool has a100 (40 GiB)"
    found = told(p)
    assert found.reason == Reason.NEVER_FITS
    assert found.detail.endswith("even empty, 0 of 1 nodes could hold a member, the largest has 1 GPUs (n1)")
    p.step(i.NodeCommanded("n1", "drain", "op", ""))
    p.step(arrived("one", gpus=1))
    assert told(p, "one").reason == Reason.HELD_BY_CORDON


@pytest.mark.parametrize(
    ("how", "standing"),
    [("drain", "draining"), ("cordon", "cordoned"), ("silent", "silent"), ("stopping", "going away")],
)
def test_a_job_that_only_held_nodes_could_hold_is_told_which_and_why(how: str, standing: str) -> None:
    p = cluster(gpus=2, lease_expires=False)
    match how:
        case "silent":
            p.step(i.NodeSilent("n1", 1))
        case "stopping":
            p.step(report("n1", 2, stopping=True))
        case _:
            p.step(i.NodeCommanded("n1", how, "op", ""))
    p.step(arrived("j", gpus=2))
    found = told(p)
    assert found.reason == Reason.HELD_BY_CORDON
    assert found.detail == f"needs 2 GPUs on one node; n1 ({standing}) would do"
    assert found.unblocks == "starts when n1 takes jobs again"


def test_a_mixed_node_does_not_count_as_large_as_all_its_kinds_together() -> None:
    p = PoolUnderTest()
    mixed = tuple(i.Gpu(n, "a100" if n < 2 else "v100", 16384, usable=True) for n in range(4))
    p.step(replace(report("n1"), gpus=mixed))
    p.step(arrived("j", gpus=3))
    assert told(p).reason == Reason.NEVER_FITS
    assert "the largest has 2 GPUs (n1)" in told(p).detail


def test_gpus_in_quarantine_are_the_reason_where_they_are_missing() -> None:
    p = cluster(gpus=1, stop_timeout_s=5.0)
    p.running("a")
    p.step(arrived("j"), i.CancelRequested("a", "ann"))
    assert told(p).reason == Reason.INSUFFICIENT_GPUS
    assert told(p).expected_at == p.now + 10  # the grace of its stop
    p.step(i.Tick(), after=6)
    assert told(p).reason == Reason.GPUS_QUARANTINED
    assert told(p).expected_at is None


def test_a_job_on_its_way_is_told_its_own_reason() -> None:
    p = cluster(gpus=1)
    p.step(arrived("j"))
    assert told(p).reason == Reason.STARTING
    p.start("j")
    assert told(p).reason == Reason.ALL_MEMBERS_STARTED
    p.exit("j", 1)
    assert told(p) == Why(Reason.AWAITING_DIAGNOSIS, "exit code 1 on n1")


def test_an_expected_end_is_never_in_the_past() -> None:
    p = cluster(gpus=2)
    p.step(arrived("j"), arrived("k"))
    estimated(p, "j", 30.0)
    job = p.state.jobs["j"]
    assert expected_end(p.state, job) == START + 30  # from its assignment, as it has not started
    assert expected_end(p.state, p.state.jobs["k"]) is None
    p.start("j")
    assert expected_end(p.state, job) == START + 30
    p.step(i.Tick(), after=500)
    assert expected_end(p.state, job) == p.now


# --- telling ---


def test_reasons_are_told_when_they_change_and_at_most_so_often() -> None:
    p = cluster(gpus=1)
    p.running("a")
    p.step(arrived("j"), arrived("k", submitted_at=START + 1))
    teller = ReasonTeller("default", every_s=1.0, jobs_max=100)
    assert teller.due(p.state, p.now, 0.0) == []  # nothing has changed yet
    teller.changed()
    first = teller.due(p.state, p.now, 0.0)
    assert [(x.event.job_id, x.event.queue_position) for x in first] == [("j", 0), ("k", 1)]  # type: ignore[attr-defined]
    teller.changed()
    assert teller.due(p.state, p.now, 0.5) == []  # too soon
    assert teller.due(p.state, p.now, 1.1) == []  # the same as before
    p.step(i.NodeCommanded("n1", "drain", "op", ""))
    teller.changed()
    again = teller.due(p.state, p.now, 2.2)
    assert {x.event.reason for x in again} == {Reason.HELD_BY_CORDON}  # type: ignore[attr-defined]
    assert len({x.id for x in (*first, *again)}) == 4


def test_jobs_far_back_are_left_to_why_and_those_in_back_off_are_told() -> None:
    p = cluster(gpus=1)
    p.running("b", retries=2)
    p.step(*[arrived(f"j{n}", submitted_at=START + n) for n in range(5)])
    p.exit("b", 1)
    p.diagnose("b", "retry_from_checkpoint")
    teller = ReasonTeller("default", every_s=1.0, jobs_max=2)
    teller.changed()
    found = {x.event.job_id: x.event.reason for x in teller.due(p.state, p.now, 0.0)}  # type: ignore[attr-defined]
    assert found == {"j1": Reason.INSUFFICIENT_GPUS, "j2": Reason.INSUFFICIENT_GPUS, "b": Reason.BACKING_OFF}
    event = answer(p.state, "j4", p.now)
    assert event is not None
    assert event.queue_position == 3
    assert answer(p.state, "nobody", p.now) is None
