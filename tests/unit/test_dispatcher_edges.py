"""The edges of the core: from every event to an input, from every decision to events, and `why` over HTTP."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from schedmate.infra.bus.port import Partition
from schedmate.infra.clock import VirtualClock
from schedmate.schemas import events as e
from schedmate.schemas.codec import UndecodableError, decode, encode
from schedmate.schemas.ids import decision_id, run_id
from schedmate.schemas.job import JobSpec
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState, StopIntent
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Delivery, Envelope, Record
from schedmate.services.dispatcher import intake
from schedmate.services.dispatcher.answering import AnswerServer
from schedmate.services.dispatcher.batches import by_partition, poison_among, slices, vector
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.fold import remaining_says_something_new
from schedmate.services.dispatcher.log import Entry, Refusal
from schedmate.services.dispatcher.publication import (
    Told,
    encode_entry,
    events_of,
    refusal,
    refused_delivery,
    told_of,
    why_there,
)
from tests import event_fixtures
from tests.dispatching import START, PoolUnderTest, arrived, cluster

FIXTURES = sorted(event_fixtures.FOLDER.glob("*.json"))
READ = set(intake.TOPICS)
SPEC = JobSpec(
    name="j", command=("x",), tenant="team-a", user="ann", pool="default", gpus=2, gpu_memory_gib=40, time_limit_s=60
)
INTO: dict[type[e.Event], type[i.Input]] = {
    e.JobSubmitted: i.JobArrived, e.JobCancelRequested: i.CancelRequested, e.NodeDrainRequested: i.NodeCommanded,
    e.NodeUndrainRequested: i.NodeCommanded, e.NodeCordonRequested: i.NodeCommanded, e.NodeDeathDeclared: i.NodeCommanded,
    e.ReservationRequested: i.ReservationMade, e.ReservationWithdrawalRequested: i.ReservationWithdrawn,
    e.RunTimeEstimated: i.EstimateArrived, e.ProgressObserved: i.ProgressArrived, e.ProgressObservedV2: i.ProgressArrived, e.RunDiagnosed: i.DiagnosisArrived,
    e.RunStarted: i.MemberStarted, e.RunExited: i.MemberExited, e.RunRefused: i.MemberRefused, e.NodeReported: i.NodeReported, e.NodeReportedV2: i.NodeReported,
    e.RunExitedV2: i.MemberExited, e.NodeReportedV3: i.NodeReported, e.JobEstimateOrdered: i.EstimateOrdered, e.JobPinRequested: i.JobPinned,
}  # fmt: skip


def delivery(record: Record) -> Delivery:
    return Delivery(record, 3, 7)


def told_to_core(event: e.Event, trace: str | None = None) -> i.Input | None:
    record = encode(Envelope("id", "schedmate/test", START, event, trace))
    envelope = intake.read(delivery(record), "default")
    assert envelope is not None
    return intake.to_input(envelope)


# --- intake ---


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_every_event_there_ever_was_becomes_the_input_that_the_table_names_or_nothing(path: Any) -> None:
    envelope = decode(event_fixtures.read(path))
    value = intake.to_input(envelope)
    wanted = INTO.get(type(envelope.event))
    if wanted is None or (isinstance(envelope.event, e.ProgressObserved) and envelope.event.eta_s is None):
        assert value is None
    else:
        assert type(value) is wanted
        assert i.from_json(i.to_json(value)) == value
        assert envelope.event.TOPIC in READ


def test_the_topics_that_are_read_are_those_that_the_topology_gives_to_the_dispatcher() -> None:
    assert {event.TOPIC for event in INTO} == READ
    assert READ <= set(topology().topics)


def test_a_submitted_job_is_told_in_the_units_of_the_core() -> None:
    event = e.JobSubmitted(job_id="j", pool="default", spec=SPEC, submitted_at=START)
    value = told_to_core(event, "00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    assert isinstance(value, i.JobArrived)
    assert (value.gpus, value.gpu_memory_mib, value.time_limit_s, value.priority) == (2, 40960, 60, 1)
    assert JobSpec.model_validate_json(value.spec) == SPEC
    assert value.trace is not None


@pytest.mark.parametrize("word", [None, True, False])
def test_an_estimate_tells_the_core_whether_a_job_is_worth_probing_where_it_says_so(word: bool | None) -> None:
    event = e.RunTimeEstimated(
        job_id="j", pool="default", revision=1, basis=e.EstimateBasis.LEARNED, worth_probing=word
    )
    value = told_to_core(event)
    assert isinstance(value, i.EstimateArrived)
    assert value.worth_probing is word
    assert ("worth_probing" in event.model_dump()) is (word is not None)


def test_a_gpu_that_is_ill_held_or_used_from_outside_is_not_usable() -> None:
    states: list[dict[str, Any]] = [{}, {"healthy": False}, {"busy_external": True}, {"held": True}]
    runs = tuple(
        e.RunReport(job_id="j", run_id="r", attempt=1, member=n, pool="default", seq=0, index=0, gpus=(n,), state=state)  # type: ignore[arg-type]
        for n, state in enumerate(("starting", "running", "stopping", "ended"))
    )
    event = e.NodeReported(
        node="n1", pool="default", boot_id="b", session=1, report_no=1, applied_seq=1, applied_index=2, address="a", port_min=1,
        port_max=2, gpus=tuple(e.GpuReport(index=n, type="a100", **given) for n, given in enumerate(states)), runs=runs,
        lease_s=30.0, at=START,
    )  # fmt: skip
    value = told_to_core(event)
    assert isinstance(value, i.NodeReported)
    assert (value.rack, value.spine) == (None, None)
    placed = told_to_core(e.NodeReportedV2(**dict(event), rack="r1", spine="s1"))
    assert isinstance(placed, i.NodeReported)
    assert (placed.rack, placed.spine) == ("r1", "s1")
    assert [g.usable for g in value.gpus] == [True, False, False, False]
    assert {g.memory_mib for g in value.gpus} == {0}
    assert [(r.started, r.ended) for r in value.runs] == [(False, False), (True, False), (True, False), (False, True)]


def test_progress_without_an_expected_end_is_nothing_to_the_core() -> None:
    base = next(decode(event_fixtures.read(p)).event for p in FIXTURES if "progress-observed" in p.name)
    assert intake.to_input(Envelope("id", "s", START, base.model_copy(update={"eta_s": None}))) is None
    assert intake.to_input(Envelope("id", "s", START, base.model_copy(update={"eta_s": 5.0}))) is not None


def test_another_pools_event_is_skipped_by_its_header_without_being_decoded() -> None:
    assert intake.read(delivery(Record("schedmate.runs", b"k", b"not json", (("pool", b"other"),))), "default") is None
    with pytest.raises(UndecodableError):
        intake.read(delivery(Record("schedmate.runs", b"k", b"not json")), "default")


# --- publication ---


def entry(p: PoolUnderTest, *decisions: d.Decision, refused: dict[int, Refusal] | None = None) -> Entry:
    return Entry("default", 5, 2, START, "me", (), refused or {}, {}, "bus", decisions, {"policy": "fifo"})


def published(decision: d.Decision, before: JobState | str = "") -> list[Envelope[e.Event]]:
    told = {"j": Told("00-" + "1" * 32 + "-" + "2" * 16 + "-01", SPEC.model_dump_json())}
    return events_of(entry(cluster(), decision), told, {0: str(before)})


MOVES: list[tuple[str, JobState, type[e.JobDecision], JobState]] = [
    ("ADMIT", JobState.SUBMITTED, e.JobQueued, JobState.QUEUED),
    ("REJECT", JobState.SUBMITTED, e.JobRejected, JobState.REJECTED),
    ("START", JobState.ASSIGNED, e.JobStarted, JobState.RUNNING),
    ("STOP", JobState.RUNNING, e.JobStopping, JobState.STOPPING),
    ("END_BADLY", JobState.RUNNING, e.JobDiagnosing, JobState.DIAGNOSING),
    ("REQUEUE", JobState.DIAGNOSING, e.JobRequeued, JobState.QUEUED),
    ("COMPLETE", JobState.RUNNING, e.JobSucceeded, JobState.SUCCEEDED),
    ("FAIL", JobState.DIAGNOSING, e.JobFailed, JobState.FAILED),
    ("CANCEL", JobState.QUEUED, e.JobCancelled, JobState.CANCELLED),
]


@pytest.mark.parametrize(("event", "before", "kind", "after"), MOVES, ids=lambda x: str(getattr(x, "__name__", x)))
def test_every_move_of_a_job_is_one_event(
    event: str, before: JobState, kind: type[e.JobDecision], after: JobState
) -> None:
    moved = d.Moved("j", 1, event, Reason.RETRYING, "why", 3, START + 9, "user", "n1", "ckpt", "OOM", "halve it")
    [envelope] = published(moved, before)
    told = envelope.event
    assert isinstance(told, kind)
    assert (told.state, told.attempt, told.reason, told.detail, told.seq, told.index) == (
        after,
        1,
        "RETRYING",
        "why",
        5,
        0,
    )
    assert envelope.id == decision_id("default", 5, 0)
    assert envelope.time == START
    assert envelope.traceparent is not None
    if isinstance(told, e.JobStopping):
        assert told.intent == "fail"
    if isinstance(told, e.JobRequeued):
        assert (told.not_before, told.resume_from) == (START + 9, "ckpt")
    if isinstance(told, e.JobFailed):
        assert (told.category, told.proposed_change) == ("OOM", "halve it")
    assert decode(encode(envelope)) == envelope


def test_a_note_tells_a_stop_that_lasts_a_raised_intent_or_a_silent_node() -> None:
    [late] = published(d.Noted("j", 1, Reason.STOP_TIMEOUT), JobState.STOPPING)
    [raised] = published(d.Noted("j", 1, Reason.CANCEL_REQUESTED, "", int(StopIntent.CANCEL)), JobState.STOPPING)
    [silent] = published(d.Noted("j", 1, Reason.NODE_UNREACHABLE), JobState.RUNNING)
    assert (late.event.intent, raised.event.intent) == ("unchanged", "cancel")  # type: ignore[attr-defined]
    assert isinstance(silent.event, e.JobReachabilityChanged)
    assert silent.event.state == JobState.RUNNING


def test_a_placement_is_told_once_and_to_each_member_with_ids_of_their_own() -> None:
    seats = (d.Seat("n1", 7, (0, 1)), d.Seat("n2", 8, (2, 3)))
    placed = d.Placed("j", 2, seats, "10.0.0.1", 20001, 3, 4, 9, 60.0, "learned", "ckpt")
    envelopes = published(placed)
    assigned = envelopes[0].event
    assert isinstance(assigned, e.JobAssigned)
    assert (assigned.policy, assigned.predicted_p50_s, assigned.passed_over) == ("fifo", 60.0, 3)
    members = [x.event for x in envelopes[1:]]
    assert [(m.node, m.session, m.member, m.gpus, m.term) for m in members if isinstance(m, e.MemberAssigned)] == [
        ("n1", 7, 0, (0, 1), 2), ("n2", 8, 1, (2, 3), 2),
    ]  # fmt: skip
    assert {m.run_id for m in members} == {run_id("j", 2)}  # type: ignore[attr-defined]
    assert len({x.id for x in envelopes}) == 3
    assert [x.id for x in published(placed)] == [x.id for x in envelopes]


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (d.Placed("j", 1, (d.Seat("n1", 1, (0, 1)),), "a", 1, 0, 6, 14), "best fit: n1 had 6 free GPUs, the fewest that are enough for 2, and keeps 4; 14 GPUs were free in the pool"),
        (d.Placed("j", 1, (d.Seat("n1", 1, (0,)), d.Seat("n2", 1, (0,))), "a", 1, 2, 6, 14), "gang of 2 x 1 placed whole by best fit on n1, n2; 14 GPUs were free in the pool; 2 kinds of earlier jobs"),
        (d.Placed("j", 1, tuple(d.Seat(f"n{n}", 1, (0,)) for n in range(9)), "a", 1, 0, 1, 9), "n6, n7 …;"),
    ],
    ids=["one", "gang", "wide"],
)  # fmt: skip
def test_a_placement_says_why_there(decision: d.Placed, words: str) -> None:
    assert words in why_there(decision)


def test_orders_to_a_node_and_marks_of_a_node() -> None:
    [stop] = published(d.Stop("n1", "j", 1, 0, 10.0))
    [release] = published(d.Release("n1", "unknown", 1, 0))
    assert isinstance(stop.event, e.MemberStopOrdered)
    assert stop.traceparent is not None
    assert isinstance(release.event, e.MemberReleased)
    assert release.traceparent is None
    marks = {"cordoned": e.NodeCordoned, "drained": e.NodeDrained, "uncordoned": e.NodeUncordoned, "lost": e.NodeLost,
             "unreachable": e.NodeUnreachable, "joined": e.NodeJoined, "reserved": e.NodeReserved,
             "unreserved": e.NodeUnreserved}  # fmt: skip
    for mark, kind in marks.items():
        [envelope] = published(d.NodeMarked("n1", mark, "why"))
        assert isinstance(envelope.event, kind)
        assert envelope.event.why == "why"


def test_a_job_that_ended_in_this_entry_still_has_its_trace() -> None:
    p = cluster(gpus=1)
    p.step(arrived("j", trace="00-" + "1" * 32 + "-" + "2" * 16 + "-01", spec=SPEC.model_dump_json()))
    p.start("j")
    done = p.exit("j")
    made = Entry("default", p.state.seq, 1, p.now, "me", done.inputs, {}, {}, "bus", done.decisions)
    assert told_of(p.state, made)["j"].trace is not None
    records = encode_entry(made, p.state, {0}, "")
    assert all(record.header("traceparent") is not None for record in records)


def test_a_refused_record_is_kept_whole_and_dead_lettered_from_the_log() -> None:
    record = Record("schedmate.runs", b"k\xff", b"\x00\xfe{}", (("ce_id", b"\xe9"),))
    kept = refusal("no such member", delivery(record))
    assert refused_delivery(kept) == delivery(record)
    assert refused_delivery(refusal("of a timer", None)) is None
    p = cluster()
    records = encode_entry(entry(p, refused={0: kept, 1: refusal("of a timer", None)}), p.state, set(), "")
    [letter] = [decode(x).event for x in records]
    assert isinstance(letter, e.DeadLettered)
    assert (letter.original_value, letter.original_offset, letter.error) == (record.value, 7, "no such member")


# --- batches ---


def test_a_batch_is_cut_by_bytes_and_a_large_record_stands_alone() -> None:
    def of(size: int) -> Delivery:
        return delivery(Record("t", b"k", b"x" * size))

    pieces = slices([of(4), of(4), of(4), of(50), of(1)], 10)
    assert [[len(x.record.value) for x in piece] for piece in pieces] == [[4, 4], [4], [50], [1]]
    assert slices([], 10) == []


def test_offsets_are_lists_by_topic_and_back() -> None:
    offsets = {Partition("b", 0): 4, Partition("a", 1): 3, Partition("a", 0): 2}
    assert vector(offsets) == {"a": [2, 3], "b": [4]}
    assert by_partition(vector(offsets)) == offsets


def test_what_breaks_the_core_is_found_however_much_of_it_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedmate.services.dispatcher.core import step as stepping  # noqa: PLC0415

    decide = stepping.decide

    def breaks(state: Any) -> Any:
        if sum(job.tenant == "evil" for job in state.jobs.values()) > 0:
            raise ZeroDivisionError
        return decide(state)

    monkeypatch.setattr(stepping, "decide", breaks)
    evil = [arrived(f"evil{n}", tenant="evil") for n in range(3)]
    batch = [evil[0], arrived("a"), evil[1], arrived("b"), evil[2]]
    assert poison_among(cluster().state, batch, START) == evil
    assert poison_among(cluster().state, [arrived("a")], START) == []


# --- why over HTTP ---


async def test_why_is_answered_for_the_jobs_of_the_pools_led_here() -> None:
    p = cluster(gpus=1)
    p.running("a")
    p.step(arrived("j"))
    leaders: dict[str, Any] = {"starting": SimpleNamespace(state=None), "default": SimpleNamespace(state=p.state)}
    server = AnswerServer(leaders, VirtualClock())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app()), base_url="http://leader") as client:
        found = await client.get("/v1/why/j")
        assert found.status_code == 200
        told = e.JobReasoned.model_validate(found.json())
        assert told.reason == Reason.INSUFFICIENT_GPUS
        assert told.unblocks is not None
        assert told.unblocks.text == "would fit when job a ends"
        p.step(i.ReservationMade("late", ("n1",), 0, START + 500, START + 600, "op", "disks"))
        p.step(i.ReservationMade("early", ("n1",), 0, START, START + 100, "op", ""))
        listed = (await client.get("/v1/reservations/default")).json()
        assert [(one["reservation_id"], one["nodes"], one["begun"]) for one in listed] == [
            ("early", ["n1"], True), ("late", ["n1"], False),
        ]  # fmt: skip
        for unled in ("starting", "elsewhere"):
            assert (await client.get(f"/v1/reservations/{unled}")).status_code == 404
        missing = await client.get("/v1/why/nobody")
        assert (missing.status_code, missing.json()) == (404, {"detail": "no pool led here has this job"})


@pytest.mark.parametrize(
    ("interval", "remaining_s", "news"),
    [(None, 2000.0, True), ((1900.0, 2100.0), 2000.0, True), ((200.0, 5000.0), 2000.0, False), (None, 1001.0, False)],
)
def test_a_remaining_time_that_moved_less_than_it_is_uncertain_by_is_no_news(
    interval: tuple[float, float] | None, remaining_s: float, news: bool
) -> None:
    progress = e.ProgressObserved(
        job_id="j", pool="default", run_id="r", attempt=1, member=0, log_offset=9, eta_s=remaining_s
    )
    if interval is not None:
        newer = e.ProgressObservedV2.of(progress)
        progress = newer.model_copy(update={"eta_low_s": interval[0], "eta_high_s": interval[1]})
    value = told_to_core(progress)
    assert isinstance(value, i.ProgressArrived)
    state = SimpleNamespace(jobs={"j": SimpleNamespace(attempt=1, expected_end=1000.0)})
    assert remaining_says_something_new(cast("Any", state), value, 0.0) is news


def test_what_a_job_is_for_and_what_its_nodes_share_reach_the_core() -> None:
    def told(**given: Any) -> i.JobArrived:
        spec = JobSpec(name="j", command=("x",), tenant="t", user="u", pool="default", **given)
        value = told_to_core(e.JobSubmitted(job_id="j", pool="default", spec=spec, submitted_at=START))
        assert isinstance(value, i.JobArrived)
        return value

    assert (told().inference, told().within) == (False, None)
    serving = told(kind="inference", nodes=2, within="spine")
    assert (serving.inference, serving.within) == (True, "spine")
