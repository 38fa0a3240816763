"""The second door, outages of bus and store, the component's life, the stream of decisions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from schedmate.infra.blobs.port import BlobsUnavailableError
from schedmate.infra.bus.port import BusUnavailableError
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry.recorded import Edge, RecordedSpans, roots
from schedmate.infra.telemetry.tracing import Tracing
from schedmate.schemas import events as e
from schedmate.schemas import ids
from schedmate.schemas.codec import encode
from schedmate.schemas.states import JobState
from schedmate.schemas.wire import HEADER_TOKEN, Envelope, Record
from schedmate.services.ingest.access import Scope
from tests.ingesting import JOB, IngestUnderTest, decided, enveloped, ingesting, request, running
from tests.waiting import eventually

pytestmark = pytest.mark.localhost
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def requested(request_id: str, token: str | None = None, **given: Any) -> Record:
    event = e.JobRequested(request_id=request_id, request=request(**given))
    made: Envelope[e.Event] = enveloped(event)
    record = encode(Envelope(made.id, made.source, made.time, made.event, TRACE))
    headers = record.headers if token is None else (*record.headers, (HEADER_TOKEN, token.encode()))
    return Record(record.topic, record.key, record.value, headers)


async def dead(under_test: IngestUnderTest, count: int) -> list[e.DeadLettered]:
    await eventually(lambda: len(under_test.bus.records("schedmate.dead-letters")) >= count)
    return [one.event for one in under_test.published("schedmate.dead-letters")]  # type: ignore[misc]


async def test_a_request_on_the_bus_becomes_the_same_job_as_over_http(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test, running(under_test):
        await under_test.bus.publish([requested("r-1"), requested("r-1"), requested("r-2", name="other")])
        await eventually(lambda: len(under_test.bus.records("schedmate.jobs")) == 2)
        by_id = {one.event.key: one for one in under_test.published("schedmate.jobs")}
        assert set(by_id) == {ids.job_id("default", "r-1"), ids.job_id("default", "r-2")}
        [first] = [one for one in by_id.values() if one.event.key == ids.job_id("default", "r-1")]
        assert first.traceparent is not None
        assert first.traceparent.split("-")[1] == TRACE.split("-")[1]
        again = await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "r-1"})
        assert (again.status_code, again.json()["job_id"]) == (200, ids.job_id("default", "r-1"))


async def test_a_bad_request_goes_to_the_dead_letters_at_once_with_its_error_and_without_its_token(
    tmp_path: Path,
) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test, running(under_test):
        red = (await under_test.token("red", Scope.SUBMIT))["authorization"].removeprefix("Bearer ")
        reader = (await under_test.token("red", Scope.READ))["authorization"].removeprefix("Bearer ")
        good = requested("good", red)
        await under_test.bus.publish([good])
        await eventually(lambda: len(under_test.bus.records("schedmate.jobs")) == 1)
        bad = [
            (requested("a"), "no valid token"),
            (requested("b", "smt_wrong"), "no valid token"),
            (requested("c", reader), "scope submit"),
            (requested("d", red, tenant="blue"), "tenant"),
            (requested("e", red, bundle="0" * 64), "upload it first"),
            (requested("good", red, gpus=7), "another content"),
            (Record("schedmate.requests", b"k", b'{"request_id": "f"}', good.headers), "request"),
            (Record("schedmate.requests", b"k2", b"\xff", ()), "CloudEvent"),
        ]
        await under_test.bus.publish([record for record, _ in bad])
        letters = await dead(under_test, len(bad))
        assert len(letters) == len(bad)
        for record, words in bad:
            [letter] = [one for one in letters if one.original_value == record.value and words in one.error]
            assert (letter.service, letter.attempts) == ("ingest", 1)
            assert HEADER_TOKEN not in dict(letter.original_headers)
        assert len(under_test.bus.records("schedmate.jobs")) == 1

        async def listed() -> bool:
            operator = await under_test.token("ops", Scope.OPERATE)
            page = (await under_test.http.get("/v1/dead-letters", headers=operator)).json()
            return len(page["dead_letters"]) == len(bad)

        await eventually(listed)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (("POST", "/v1/jobs"), "store"),
        (("GET", "/v1/jobs"), "store"),
        (("GET", "/v1/nodes"), "store"),
        (("POST", "/v1/jobs/{job}/cancel"), "bus"),
        (("GET", "/v1/jobs/{job}/log"), "blobs"),
        (("GET", "/v1/bundles/" + "0" * 64), "blobs"),
    ],
)
async def test_what_does_not_answer_is_a_503_that_says_when_to_come_back(
    tmp_path: Path, call: tuple[str, str], part: str
) -> None:
    async with ingesting(tmp_path, publish_timeout_s=0.2) as under_test:
        job = (await under_test.submit())["job_id"]
        await under_test.fold(decided(job, JobState.ASSIGNED, 1))
        method, path = call
        _break(under_test, part)
        answer = await under_test.http.request(
            method, path.format(job=job), json=JOB if path == "/v1/jobs" and method == "POST" else None
        )
        assert answer.status_code == 503, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) > 0


def _break(under_test: IngestUnderTest, part: str) -> None:
    async def away(*_: object, **__: object) -> Any:
        if part == "bus":
            await asyncio.sleep(10)  # a bus that hangs is as gone as one that says so
        raise {"store": StoreUnavailableError, "bus": BusUnavailableError, "blobs": BlobsUnavailableError}[part]("away")

    async def nothing(*_: object, **__: object) -> Any:
        raise BlobsUnavailableError("away")
        yield  # an async iterator

    target: Any = getattr(under_test, part)
    names = {
        "store": ("get", "find", "scan", "insert", "get_many"),
        "bus": ("publish",),
        "blobs": ("info", "get", "put"),
    }[part]
    for name in names:
        setattr(target, name, away)
    if part == "blobs":
        target.list = nothing


async def test_an_instance_with_its_hands_full_says_so_in_words(tmp_path: Path) -> None:
    async with ingesting(tmp_path, connections_max=1, stream_poll_s=0.02) as under_test:
        job = (await under_test.submit())["job_id"]
        task = asyncio.create_task(under_test.http.get(f"/v1/jobs/{job}/log/follow"))
        await eventually(lambda: under_test.context.streams.open == 1)
        full = await under_test.http.get("/v1/jobs")
        assert (full.status_code, full.headers["content-type"]) == (503, "application/problem+json")
        assert int(full.headers["retry-after"]) > 0
        under_test.context.streams.close()
        await task
        assert (await under_test.http.get("/v1/jobs")).status_code == 200


async def test_the_calls_span_is_the_root_and_the_job_and_its_folding_hang_on_it(tmp_path: Path) -> None:
    root = "POST /v1/jobs"
    below = {Edge("ingest", root, "ingest", f"{what} schedmate.jobs") for what in ("publish", "process")}
    spans = RecordedSpans()
    with Tracing("ingest", exporter=spans, batched=False).active():
        async with ingesting(tmp_path) as under_test, running(under_test):
            host, port = under_test.ingest.address or ("", 0)
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=20) as http:
                made = (await http.post("/v1/jobs", json=JOB)).json()
                await eventually(lambda: set(spans.edges(made["trace_id"])) >= below)
    assert [(one.service, one.name) for one in roots(spans.spans(made["trace_id"]))] == [("ingest", root)]


async def test_a_body_that_stops_arriving_is_not_waited_for(tmp_path: Path) -> None:
    async with ingesting(tmp_path, receive_timeout_s=0.1) as under_test:

        async def stalls() -> Any:
            yield b'{"name": '
            await asyncio.sleep(30)

        answer = await under_test.http.post("/v1/jobs", content=stalls(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["content-type"]) == (408, "application/problem+json")


async def test_a_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async with ingesting(tmp_path, request_timeout_s=0.1) as under_test:

        async def hangs(*_: object, **__: object) -> Any:
            await asyncio.sleep(30)

        under_test.store.scan = hangs  # type: ignore[method-assign]
        assert (await under_test.http.get("/v1/nodes")).status_code == 503


async def test_a_follower_that_goes_away_gives_its_place_back(tmp_path: Path) -> None:
    async with ingesting(tmp_path, stream_poll_s=0.02, stream_keep_alive_s=0.05) as under_test, running(under_test):
        job = (await under_test.submit())["job_id"]
        host, port = under_test.ingest.address or ("", 0)
        async with (
            httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=20) as http,
            http.stream("GET", f"/v1/jobs/{job}/log/follow") as answer,
        ):
            assert answer.status_code == 200
            await eventually(lambda: under_test.context.streams.open == 1)
        await eventually(lambda: under_test.context.streams.open == 0)


async def test_a_mistake_of_ours_is_a_500_that_tells_nothing_but_its_trace(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:

        async def broken(*_: object, **__: object) -> Any:
            raise RuntimeError("the password is hunter2")

        under_test.store.scan = broken  # type: ignore[method-assign]
        answer = await under_test.http.get("/v1/nodes")
        assert answer.status_code == 500
        assert "hunter2" not in answer.text
        assert answer.json()["trace_id"] == answer.headers["traceparent"].split("-")[1]


async def test_the_component_serves_is_ready_and_stops_while_a_stream_is_open(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        async with running(under_test):
            await eventually(lambda: all(under_test.ingest.ready().values()))
            host, port = under_test.ingest.address or ("", 0)
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=20) as http:
                made = await http.post("/v1/jobs", json=JOB)
                assert made.status_code == 201
                job = made.json()["job_id"]
                task = asyncio.create_task(http.get(f"/v1/jobs/{job}/log/follow"))
                await eventually(lambda: under_test.context.streams.open == 1)
                await under_test.ingest.measure()
                text = under_test.ingest.metrics.text().decode()
                assert 'schedmate_jobs_accepted_total{door="http",pool="default"} 1.0' in text
                assert 'route="/v1/jobs"' in text
                assert "schedmate_outbox_jobs 0.0" in text
                # leaving the block stops the server; the stream ends instead of holding it up
                stopping = asyncio.create_task(_stop(under_test))
                async with asyncio.timeout(10):
                    assert (await task).status_code == 200
                await stopping
        assert under_test.context.streams.open == 0


async def _stop(under_test: IngestUnderTest) -> None:
    under_test.context.streams.close()


async def test_decisions_are_streamed_as_they_are_made_to_those_who_may_see_them(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test, running(under_test):
        red = await under_test.token("red", Scope.READ, Scope.SUBMIT)
        operator = await under_test.token("ops", Scope.READ, Scope.SUBMIT, Scope.OPERATE)
        mine = (await under_test.http.post("/v1/jobs", json=JOB, headers=red)).json()["job_id"]
        theirs = (await under_test.http.post("/v1/jobs", json={**JOB, "tenant": "blue"}, headers=operator)).json()[
            "job_id"
        ]
        await under_test.publish(decided(mine, JobState.QUEUED, 1, attempt=0))  # before the stream: not told
        host, port = under_test.ingest.address or ("", 0)
        told: list[tuple[str, Any]] = []

        async def listen() -> None:
            async with (
                httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=20, headers=red) as http,
                http.stream("GET", "/v1/events") as answer,
            ):
                kind = ""
                async for line in answer.aiter_lines():
                    if line.startswith("event: "):
                        kind = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        told.append((kind, json.loads(line.removeprefix("data: "))))

        task = asyncio.create_task(listen())
        await eventually(lambda: told)
        assert told[0][0] == "ready"
        await under_test.publish(
            decided(theirs, JobState.QUEUED, 2, attempt=0),
            decided(mine, JobState.ASSIGNED, 3),
            enveloped(e.NodeCordoned(pool="default", seq=4, index=0, decided_at=1.0, node="n1")),
            decided(mine, JobState.RUNNING, 5),
        )
        await eventually(lambda: len(told) == 3)
        assert [(kind, what["job_id"]) for kind, what in told[1:]] == [
            ("schedmate.job.assigned.v1", mine),
            ("schedmate.job.started.v1", mine),
        ]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: under_test.context.streams.open == 0)
