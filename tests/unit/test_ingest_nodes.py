"""Nodes, pools, operators' calls, dead letters."""

from __future__ import annotations

import json
import random  # noqa: TID251 - seeded shuffles
from pathlib import Path
from typing import Any

import httpx
import pytest

from schedmate.infra.deadletters import dead_letter
from schedmate.schemas import events as e
from schedmate.schemas import ids
from schedmate.schemas.codec import encode
from schedmate.schemas.states import JobState
from schedmate.schemas.wire import HEADER_TOKEN, Delivery, Envelope, Record
from schedmate.services.ingest import presentation
from schedmate.services.ingest.access import Scope
from schedmate.services.ingest.leader import Leaders
from schedmate.services.ingest.node_projection import fold_node
from schedmate.services.ingest.projection import View
from tests.ingesting import JOB, START, decided, enveloped, ingesting, reported, request, submitted

FAR = 9_000_000_000.0  # a time to come
JOB_ID = "11111111-1111-5111-8111-111111111111"


def node_decided(kind: type[e.NodeDecision], seq: int, why: str = "") -> Envelope[e.Event]:
    return enveloped(kind(pool="default", seq=seq, index=0, decided_at=START + seq, node="n1", why=why))


def run(job: str = JOB_ID, state: str = "running") -> e.RunReport:
    return e.RunReport.model_validate(
        {"job_id": job, "run_id": ids.run_id(job, 1), "attempt": 1, "member": 0, "pool": "default", "seq": 1, "index": 0,
         "gpus": (0, 1), "state": state}
    )  # fmt: skip


def folded(*envelopes: Envelope[e.Event]) -> View:
    view: View | None = None
    for envelope in envelopes:
        view = fold_node(view, "n1", envelope)
    assert view is not None
    return view


def shown(*envelopes: Envelope[e.Event], now: float = START) -> Any:
    return presentation.node_view(folded(*envelopes), now, {JOB_ID: True})


def test_a_gpu_that_two_runs_share_shows_both_the_first_one_first_and_is_busy_once() -> None:
    other = "22222222-2222-5222-8222-222222222222"
    second = run(other).model_copy(update={"seq": 2, "gpus": (0,)})
    view = folded(reported(runs=(second, run())))
    both = presentation.node_view(view, START, {JOB_ID: True, other: True})
    assert [(gpu.job_id, gpu.jobs) for gpu in both.gpus[:2]] == [(JOB_ID, [JOB_ID, other]), (JOB_ID, [JOB_ID])]
    assert (both.gpus_busy, both.runs) == (2, 2)
    theirs = presentation.node_view(view, START, {other: True})
    assert [(gpu.job_id, gpu.jobs, gpu.busy) for gpu in theirs.gpus[:2]] == [(None, [other], True), (None, [], True)]


@pytest.mark.parametrize(
    ("events", "now", "state"),
    [
        ([reported()], START, "up"),
        ([reported()], START + 31, "silent"),
        ([reported(stopping=True)], START, "stopping"),
        ([node_decided(e.NodeDrained, 1)], START, "drained"),
        ([reported(), node_decided(e.NodeCordoned, 1)], START, "cordoned"),
        ([reported(), node_decided(e.NodeCordoned, 1), node_decided(e.NodeUncordoned, 2)], START, "up"),
        ([reported(), node_decided(e.NodeCordoned, 1), node_decided(e.NodeJoined, 2)], START, "cordoned"),
        ([reported(), node_decided(e.NodeReserved, 1)], START, "reserved"),
        ([reported(), node_decided(e.NodeReserved, 1), node_decided(e.NodeUnreserved, 2)], START, "up"),
        ([reported(), node_decided(e.NodeReserved, 1), node_decided(e.NodeCordoned, 2)], START, "cordoned"),
        ([reported(), node_decided(e.NodeLost, 1)], START + 1, "lost"),
        ([reported(), node_decided(e.NodeUnreachable, 1)], START + 1, "silent"),
        ([reported(), node_decided(e.NodeLost, 1), reported(report_no=2, at=START + 2)], START + 2, "up"),
        ([node_decided(e.NodeJoined, 1)], START, "unknown"),
    ],
)
def test_a_nodes_state_follows_its_reports_and_what_was_decided(
    events: list[Envelope[e.Event]], now: float, state: str
) -> None:
    assert shown(*events, now=now).state == state


def test_the_newest_report_wins_whatever_comes_late(seed: int) -> None:
    rolls = random.Random(seed)
    reports = [reported(session=s, report_no=n, at=START + 10 * s + n) for s in (1, 2) for n in (1, 2, 3)]
    expected = folded(reports[-1])
    for _ in range(50):
        shuffled = [*reports, *rolls.choices(reports, k=3)]
        rolls.shuffle(shuffled)
        assert folded(*shuffled) == expected


def test_gpus_are_busy_with_the_runs_that_have_not_ended() -> None:
    view = shown(reported(runs=[run()]))
    assert [gpu.busy for gpu in view.gpus] == [True, True, False, False]
    assert [gpu.job_id for gpu in view.gpus] == [JOB_ID, JOB_ID, None, None]
    assert (view.gpus_busy, view.gpus_total, view.runs) == (2, 4, 1)
    assert shown(reported(runs=[run(state="ended")])).gpus_busy == 0


def test_orders_that_a_worker_has_not_confirmed_are_told() -> None:
    released = e.MemberReleased(
        pool="default", seq=7, index=0, term=1, node="n1", job_id=JOB_ID, run_id="r", attempt=1, member=0
    )
    assert shown(reported(applied_seq=6, applied_index=0), enveloped(released)).orders_behind
    assert not shown(reported(applied_seq=7, applied_index=0), enveloped(released)).orders_behind


def test_faults_are_kept_by_time_once_and_boundedly() -> None:
    faults = [
        enveloped(
            e.NodeFaultObserved(
                node="n1", pool="default", session=1, origin="kernel", xid=79, text=f"Xid {n}", at=START + n
            )
        )
        for n in range(50)
    ]
    view = shown(reported(), *faults, *faults)
    assert len(view.faults) == 20
    assert view.faults[-1].text == "Xid 49"


async def test_which_job_runs_on_a_gpu_is_told_of_ones_own_tenant_only(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        red = await under_test.token("red", Scope.READ, Scope.SUBMIT)
        blue = await under_test.token("blue", Scope.READ)
        job = (await under_test.http.post("/v1/jobs", json=JOB, headers=red)).json()["job_id"]
        await under_test.fold(reported(runs=[run(job)]))
        for headers, seen in ((red, job), (blue, None)):
            [node] = (await under_test.http.get("/v1/nodes", headers=headers)).json()["nodes"]
            assert node["gpus"][0]["busy"]
            assert node["gpus"][0]["job_id"] == seen


@pytest.mark.parametrize(
    ("command", "event"),
    [
        ("drain", e.NodeDrainRequested),
        ("undrain", e.NodeUndrainRequested),
        ("cordon", e.NodeCordonRequested),
        ("declare-dead", e.NodeDeathDeclared),
    ],
)
async def test_an_operators_call_goes_to_the_nodes_pool_and_into_the_audit(
    tmp_path: Path, command: str, event: type[e.Event]
) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(reported(pool="west"))
        answer = await under_test.http.post(f"/v1/nodes/n1/{command}", json={"why": "smoke"})
        assert answer.status_code == 202, answer.text
        [asked] = under_test.published("schedmate.commands")
        assert type(asked.event) is event
        assert asked.event.model_dump() == {"node": "n1", "pool": "west", "requested_by": "local", "why": "smoke"}
        assert asked.event.key == "n1"
        assert asked.traceparent == answer.headers["traceparent"]
        [audited] = under_test.published("schedmate.audit")
        await under_test.fold(audited)
        [node] = (await under_test.http.get("/v1/nodes")).json()["nodes"]
        assert [call["call"] for call in node["calls"]] == [command]


async def test_a_reservation_goes_to_the_pool_and_into_the_audit_and_can_be_withdrawn(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(reported(pool="west"))
        body = {"nodes": ["n1"], "start_at": FAR, "end_at": FAR + 100, "why": "new disks"}
        answer = await under_test.http.post("/v1/pools/west/reservations", json=body)
        assert answer.status_code == 202, answer.text
        given = answer.json()["reservation_id"]
        [asked] = under_test.published("schedmate.commands")
        assert asked.event == e.ReservationRequested(
            reservation_id=given, pool="west", nodes=("n1",), start_at=FAR, end_at=FAR + 100, requested_by="local",
            why="new disks",
        )  # fmt: skip
        assert asked.event.key == given
        [audited] = under_test.published("schedmate.audit")
        await under_test.fold(asked, audited)
        [node] = (await under_test.http.get("/v1/nodes")).json()["nodes"]
        assert [call["call"] for call in node["calls"]] == ["reserve"]
        back = await under_test.http.post(f"/v1/pools/west/reservations/{given}/withdraw", json={"why": "not today"})
        assert back.status_code == 202, back.text
        assert under_test.published("schedmate.commands")[1].event == e.ReservationWithdrawalRequested(
            reservation_id=given, pool="west", requested_by="local", why="not today"
        )
        assert under_test.published("schedmate.audit")[1].event.target == f"reservation/{given}"


@pytest.mark.parametrize(
    ("pool", "body", "status"),
    [
        ("default", {"count": 2, "end_at": FAR + 100}, 202),
        ("default", {"end_at": FAR + 100}, 422),
        ("default", {"nodes": ["n1"], "count": 1, "end_at": FAR + 100}, 422),
        ("default", {"nodes": ["n1"], "end_at": START}, 422),
        ("default", {"nodes": ["n1"], "start_at": FAR + 200, "end_at": FAR + 100}, 422),
        ("default", {"nodes": ["n1"]}, 422),
        ("default", {"nodes": ["n9"], "end_at": FAR + 100}, 404),
        ("west", {"nodes": ["n1"], "end_at": FAR + 100}, 404),
        ("..", {"nodes": ["n1"], "end_at": FAR + 100}, 404),
    ],
)
async def test_a_reservation_names_nodes_of_the_pool_or_how_many_and_a_time_to_come(
    tmp_path: Path, pool: str, body: dict[str, Any], status: int
) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(reported())
        answer = await under_test.http.post(f"/v1/pools/{pool}/reservations", json=body)
        assert answer.status_code == status, answer.text
        assert len(under_test.published("schedmate.commands")) == (status == 202)


async def test_a_call_about_an_unknown_node_or_command_is_refused(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        assert (await under_test.http.post("/v1/nodes/n9/drain")).status_code == 404
        await under_test.fold(reported())
        assert (await under_test.http.post("/v1/nodes/n1/explode")).status_code == 422
        assert (await under_test.http.post("/v1/nodes/n1/drain", json={"because": "x"})).status_code == 422
        assert (
            await under_test.http.post("/v1/nodes/n1/drain", content=b"why=x", headers={"content-type": "text/plain"})
        ).status_code == 415
        assert under_test.published("schedmate.commands") == []


async def test_a_cancel_is_a_request_and_asking_twice_is_asking_once(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        job = (await under_test.submit())["job_id"]
        for _ in range(2):
            answer = await under_test.http.post(f"/v1/jobs/{job}/cancel", json={"why": "wrong data"})
            assert (answer.status_code, answer.json()["requested"]) == (202, True)
        first, second = under_test.published("schedmate.commands")
        assert first.id == second.id
        assert isinstance(first.event, e.JobCancelRequested)
        assert (first.event.job_id, first.event.pool) == (job, "default")
        await under_test.fold(first, decided(job, JobState.CANCELLED, 1, attempt=0))
        late = await under_test.http.post(f"/v1/jobs/{job}/cancel")
        assert (late.status_code, late.json()["requested"], late.json()["state"]) == (202, False, "CANCELLED")
        assert (await under_test.http.get(f"/v1/jobs/{job}")).json()["cancel"]["why"] == "wrong data"


async def test_a_pool_is_told_in_numbers(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        empty = (await under_test.http.get("/v1/pools/default")).json()
        assert (empty["nodes"], empty["leader"]) == (0, None)
        assert (await under_test.http.get("/v1/pools/nowhere")).status_code == 404
        await under_test.submit()
        await under_test.fold(reported(runs=[run()]), submitted(JOB_ID), decided(JOB_ID, JobState.RUNNING, 1))
        await under_test.store.put("pool_leases", "default", {"holder": "d1", "term": 3, "address": "127.0.0.1:8475"})
        pool = (await under_test.http.get("/v1/pools/default")).json()
        assert pool["leader"] == {"holder": "d1", "term": 3, "address": "127.0.0.1:8475"}
        assert (pool["gpus_total"], pool["gpus_busy"], pool["gpus_by_type"]) == (4, 2, {"h100": 4})
        assert pool["jobs_by_state"] == {"RUNNING": 1, "SUBMITTED": 1}


# --- why --------------------------------------------------------------------------------------------------------------


def leader(answer: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return httpx.MockTransport(handle), asked


REASONED = {
    "reason": "FRAGMENTED", "detail": "needs 8 GPUs on one node; the largest free is 6 on n2", "queue_position": 2,
    "unblocks": {"text": "would fit when job J ends", "waits_for_jobs": ["J"], "expected_at": START + 60}, "at": START,
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "source", "reason"),
    [
        (httpx.Response(200, json=REASONED), "leader", "FRAGMENTED"),
        (httpx.Response(404), "recorded", "BACKING_OFF"),
        (httpx.Response(200, text="<html>"), "recorded", "BACKING_OFF"),
        (httpx.Response(200, json={"reason": "BECAUSE"}), "recorded", "BACKING_OFF"),
        (httpx.Response(200, json={**REASONED, "unblocks": 5}), "recorded", "BACKING_OFF"),
        (httpx.ConnectTimeout("late"), "recorded", "BACKING_OFF"),
    ],
)
async def test_why_asks_the_leader_and_falls_back_on_what_was_recorded(
    tmp_path: Path, answer: httpx.Response | Exception, source: str, reason: str
) -> None:
    transport, asked = leader(answer)
    async with ingesting(tmp_path) as under_test:
        object.__setattr__(under_test.context, "leaders", Leaders(under_test.store, timeout_s=1, transport=transport))
        job = (await under_test.submit())["job_id"]
        await under_test.fold(decided(job, JobState.QUEUED, 1, attempt=0))
        told = e.JobReasoned(job_id=job, pool="default", seq=1, at=START, reason="BACKING_OFF", detail="")
        await under_test.fold(enveloped(told))
        await under_test.store.put("pool_leases", "default", {"holder": "d", "term": 1, "address": "127.0.0.1:8475"})
        why = (await under_test.http.get(f"/v1/jobs/{job}/why")).json()
        assert (why["source"], why["reason"]) == (source, reason)
        assert str(asked[0].url) == f"http://127.0.0.1:8475/v1/why/{job}"
        assert asked[0].headers["traceparent"]
        if source == "leader":
            assert why["unblocks"]["waits_for_jobs"] == ["J"]


RESERVED = {
    "reservation_id": "r1", "pool": "default", "nodes": ["n1"], "start_at": FAR, "end_at": FAR + 100, "requested_by": "ann",
    "why": "new disks", "begun": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (httpx.Response(200, json=[RESERVED]), 200),
        (httpx.Response(200, json=[]), 200),
        (httpx.Response(404), 503),
        (httpx.Response(200, json={"reservations": []}), 503),
        (httpx.Response(200, json=[{**RESERVED, "nodes": 5}]), 503),
        (httpx.ConnectTimeout("late"), 503),
    ],
)
async def test_reservations_are_those_that_the_leader_knows(
    tmp_path: Path, answer: httpx.Response | Exception, status: int
) -> None:
    transport, asked = leader(answer)
    async with ingesting(tmp_path) as under_test:
        object.__setattr__(under_test.context, "leaders", Leaders(under_test.store, timeout_s=1, transport=transport))
        await under_test.store.put("pool_leases", "default", {"holder": "d", "term": 1, "address": "127.0.0.1:8475"})
        told = await under_test.http.get("/v1/pools/default/reservations")
        assert told.status_code == status, told.text
        assert str(asked[0].url) == "http://127.0.0.1:8475/v1/reservations/default"
        if status == 200:
            assert told.json() == {"reservations": json.loads(answer.content)}  # type: ignore[union-attr]


@pytest.mark.parametrize("address", [None, "", "evil/path:1", "user@host:80", "host:80/x?y="])
async def test_no_address_but_a_plain_one_is_asked(tmp_path: Path, address: str | None) -> None:
    transport, asked = leader(httpx.Response(200, json=REASONED))
    async with ingesting(tmp_path) as under_test:
        object.__setattr__(under_test.context, "leaders", Leaders(under_test.store, timeout_s=1, transport=transport))
        job = (await under_test.submit())["job_id"]
        await under_test.store.put("pool_leases", "default", {"holder": "d", "term": 1, "address": address})
        assert (await under_test.http.get(f"/v1/jobs/{job}/why")).json()["source"] == "recorded"
        assert asked == []


# --- dead letters -----------------------------------------------------------------------------------------------------


def letter(record: Record, offset: int = 0, at: float = START) -> Envelope[e.Event]:
    made: Envelope[Any] = dead_letter(Delivery(record, 0, offset), "log-monitor", ValueError("broken"), 5, at)
    return made


async def test_a_dead_letter_is_listed_and_sent_back_as_it_was(tmp_path: Path) -> None:
    record = Record("schedmate.runs", b"key\xff", b"poison\xff", (("ce_type", b"x"), ("odd", b"\xfe")))
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(letter(record), letter(record, offset=1, at=START + 1))
        first = (await under_test.http.get("/v1/dead-letters", params={"limit": 1})).json()
        [newest] = first["dead_letters"]
        assert (newest["original_offset"], newest["original_topic"], newest["value_bytes"]) == (1, "schedmate.runs", 7)
        assert "broken" in newest["error"]
        rest = (await under_test.http.get("/v1/dead-letters", params={"cursor": first["next_cursor"]})).json()
        assert [one["original_offset"] for one in rest["dead_letters"]] == [0]
        answer = await under_test.http.post(f"/v1/dead-letters/{newest['id']}/resend")
        assert (answer.status_code, answer.json()["resends"]) == (202, 1)
        [sent] = under_test.bus.records("schedmate.runs")
        assert (sent.key, sent.value, sent.header("odd"), sent.header("schedmate-resent")) == (
            b"key\xff",
            b"poison\xff",
            b"\xfe",
            b"1",
        )
        assert (await under_test.http.get("/v1/dead-letters")).json()["dead_letters"][0]["resends"] == 1
        assert len(under_test.published("schedmate.audit")) == 1
        assert (await under_test.http.post("/v1/dead-letters/nothing/resend")).status_code == 404


async def test_an_assignment_is_never_sent_back(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(letter(Record("schedmate.assignments", b"n1", b"{}", ())))
        [one] = (await under_test.http.get("/v1/dead-letters")).json()["dead_letters"]
        assert (await under_test.http.post(f"/v1/dead-letters/{one['id']}/resend")).status_code == 409
        assert under_test.bus.records("schedmate.assignments") == []


async def test_a_token_in_a_dead_letter_is_not_kept(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        made = letter(Record("schedmate.runs", b"k", b"v", ((HEADER_TOKEN, b"smt_secret"), ("kept", b"1"))))
        fields = made.event.model_dump() | {"original_headers": ((HEADER_TOKEN, "smt_secret"), ("kept", "1"))}
        await under_test.fold(enveloped(e.DeadLettered.model_validate(fields)))
        [document] = await under_test.store.scan("dead_letters", low="", high="~", limit=10)
        assert "smt_secret" not in repr(document)
        assert document.body["original_headers"] == [["kept", "1"]]


async def test_a_request_that_is_sent_back_becomes_a_job_in_the_operators_name(tmp_path: Path) -> None:
    asked = e.JobRequested(request_id="r-1", request=request(tenant="red", name="late"))
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(letter(encode(enveloped(asked))))
        [one] = (await under_test.http.get("/v1/dead-letters")).json()["dead_letters"]
        for _ in range(2):
            answer = await under_test.http.post(f"/v1/dead-letters/{one['id']}/resend")
            assert answer.status_code == 202, answer.text
            assert answer.json()["job_id"] == ids.job_id("red", "r-1")
        assert len(under_test.published("schedmate.jobs")) == 1
        assert under_test.bus.records("schedmate.requests") == []
        await under_test.fold(letter(Record("schedmate.requests", b"k", b"{", ()), offset=5, at=START + 9))
        [poison, _] = (await under_test.http.get("/v1/dead-letters")).json()["dead_letters"]
        assert (await under_test.http.post(f"/v1/dead-letters/{poison['id']}/resend")).status_code == 409


def test_a_node_shows_where_it_stands_and_one_that_does_not_say_shows_nothing() -> None:
    plain = reported()
    labelled = enveloped(e.NodeReportedV2(**dict(plain.event), rack="r1", spine="s1"))
    assert (shown(labelled).rack, shown(labelled).spine) == ("r1", "s1")
    assert (shown(plain).rack, shown(plain).spine) == (None, None)
