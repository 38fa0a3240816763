"""Submitting: one job for one key, an outbox behind it, problems that say what to do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from schedmate.infra.bus.port import BusUnavailableError
from schedmate.schemas import ids
from schedmate.schemas.events import JobSubmitted
from schedmate.services.ingest.access import Scope
from tests.ingesting import JOB, ingesting, tar


async def test_a_submitted_job_is_on_the_bus_and_can_be_looked_at_at_once(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k1"})
        assert answer.status_code == 201
        view = answer.json()
        assert view["job_id"] == ids.job_id("default", "k1")
        assert (view["state"], view["reason"], view["pool"], view["user"]) == (
            "SUBMITTED",
            "NOT_YET_CONSIDERED",
            "default",
            "local",
        )
        [envelope] = under_test.published("schedmate.jobs")
        assert isinstance(envelope.event, JobSubmitted)
        assert envelope.event.job_id == view["job_id"]
        looked = await under_test.http.get(answer.headers["location"])
        assert looked.status_code == 200
        assert looked.json()["job_id"] == view["job_id"]
        listed = (await under_test.http.get("/v1/jobs")).json()
        assert [job["job_id"] for job in listed["jobs"]] == [view["job_id"]]


async def test_a_part_of_a_gpu_is_asked_for_in_thousandths_and_a_job_without_says_nothing_of_it(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        half = (await under_test.http.post("/v1/jobs", json={**JOB, "gpus": 1, "gpu_milli": 500})).json()
        whole = (await under_test.http.post("/v1/jobs", json={**JOB, "gpus": 1})).json()
        assert (half["gpu_milli"], whole["gpu_milli"]) == (500, 1000)
        specs = [envelope.event.spec for envelope in under_test.published("schedmate.jobs")]  # type: ignore[attr-defined]
        assert [spec.gpu_milli for spec in specs] == [500, 1000]
        assert "gpu_milli" not in specs[1].model_dump_json()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"gpus": 2, "gpu_milli": 500}, "gpu_milli is a part of one GPU: it goes with gpus=1 and nodes=1"),
        ({"gpus": 1, "nodes": 2, "gpu_milli": 500}, "gpu_milli is a part of one GPU: it goes with gpus=1 and nodes=1"),
        ({"gpus": 1, "gpu_milli": 0}, "gpu_milli"),
        ({"gpus": 1, "gpu_milli": 1001}, "gpu_milli"),
    ],
)
async def test_an_impossible_part_of_a_gpu_is_refused_with_what_is_possible(
    tmp_path: Path, asked: dict[str, int], told: str
) -> None:
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", json={**JOB, **asked})
        assert answer.status_code == 422
        assert told in answer.text
        assert under_test.published("schedmate.jobs") == []


async def test_the_http_span_is_the_root_of_the_jobs_trace(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", json=JOB)
        [envelope] = under_test.published("schedmate.jobs")
        assert envelope.traceparent == answer.headers["traceparent"]
        assert envelope.traceparent is not None
        assert answer.json()["trace_id"] == envelope.traceparent.split("-")[1]


async def test_a_callers_trace_goes_on(tmp_path: Path) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", json=JOB, headers={"traceparent": given})
        assert answer.json()["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


async def test_the_same_key_with_the_same_body_is_the_same_job(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        first = await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        second = await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["job_id"] == second.json()["job_id"]
        assert first.json()["submitted_at"] == second.json()["submitted_at"]
        assert len(under_test.published("schedmate.jobs")) == 1


async def test_the_same_key_with_another_body_is_refused(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        answer = await under_test.http.post("/v1/jobs", json={**JOB, "gpus": 3}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 409
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:schedmate:problem:idempotency-key-reused"


async def test_two_submits_without_a_key_are_two_jobs(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        assert (await under_test.submit())["job_id"] != (await under_test.submit())["job_id"]


async def test_a_job_is_accepted_while_the_bus_is_away_and_published_by_the_sweeper(tmp_path: Path) -> None:
    async with ingesting(tmp_path, sweep_after_s=0) as under_test:
        publish = under_test.bus.publish

        async def away(records: object) -> None:
            raise BusUnavailableError("away")

        under_test.bus.publish = away  # type: ignore[method-assign,assignment]
        answer = await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 202
        assert answer.json()["state"] == "SUBMITTED"
        assert await under_test.context.outbox.sweep() == 0
        under_test.bus.publish = publish  # type: ignore[method-assign]
        assert await under_test.context.outbox.sweep() == 1
        assert await under_test.context.outbox.sweep() == 0
        [envelope] = under_test.published("schedmate.jobs")
        assert (
            envelope.traceparent == answer.headers["traceparent"]
        )  # the sweeper's publish stays in the submit's trace


async def test_a_repeat_publishes_what_is_unmarked(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        publish = under_test.bus.publish

        async def away(records: object) -> None:
            raise BusUnavailableError("away")

        under_test.bus.publish = away  # type: ignore[method-assign,assignment]
        await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        under_test.bus.publish = publish  # type: ignore[method-assign]
        again = await under_test.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        assert again.status_code == 200
        assert len(under_test.published("schedmate.jobs")) == 1


@pytest.mark.parametrize(
    ("body", "field", "word"),
    [
        ({**JOB, "gpus": 0}, "gpus", "greater"),
        ({**JOB, "name": ""}, "name", "at least 1"),
        ({**JOB, "colour": "red"}, "colour", "not permitted"),
        ({"name": "x"}, "", "exactly one of command and script"),
        ({**JOB, "script": "echo"}, "", "exactly one of command and script"),
        ({**JOB, "env": {"A B": "x"}}, "env.A B.[key]", "pattern"),
        ({**JOB, "command": ["a\x00b"]}, "command.0", "pattern"),
    ],
)
async def test_a_wrong_field_is_named(tmp_path: Path, body: dict[str, object], field: str, word: str) -> None:
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", json=body)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["instance"] == "/v1/jobs"
        assert [error["field"] for error in problem["errors"]] == [field]
        assert word in problem["errors"][0]["message"]
        assert under_test.published("schedmate.jobs") == []


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[]", "application/json", 422),
        (b"", "application/json", 400),
        (json.dumps(JOB).encode(), "text/plain", 415),
        (b"x" * 100, "multipart/form-data; boundary=y", 400),
        (b"x" * (1024 * 1024 + 1), "application/json", 413),
        (b'{"name": "\\ud800", "command": ["x"]}', "application/json", 400),
    ],
)
async def test_a_body_that_cannot_be_read_is_a_problem(tmp_path: Path, content: bytes, kind: str, status: int) -> None:
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", content=content, headers={"content-type": kind})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
        assert answer.json()["status"] == status


async def test_a_streamed_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async def endless():
        for _ in range(40):
            yield b" " * 65536

    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.post("/v1/jobs", content=endless(), headers={"content-type": "application/json"})
        assert answer.status_code == 413


async def test_unknown_paths_and_methods_are_problems(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        nowhere = await under_test.http.get("/v2/jobs")
        wrong = await under_test.http.delete("/v1/jobs")
        assert (nowhere.status_code, wrong.status_code) == (404, 405)
        assert nowhere.headers["content-type"] == wrong.headers["content-type"] == "application/problem+json"
        assert wrong.headers["allow"] == "GET, POST"
        assert (await under_test.http.put("/v1/nodes/n1/drain")).headers["allow"] == "POST"


async def test_a_names_odd_characters_survive(tmp_path: Path) -> None:
    name = "训练-résumé-🚀"
    async with ingesting(tmp_path) as under_test:
        view = await under_test.submit(name=name)
        assert view["name"] == name
        assert (await under_test.http.get(f"/v1/jobs/{view['job_id']}")).json()["name"] == name
        assert (await under_test.http.get("/v1/jobs", params={"name": name})).json()["jobs"][0]["name"] == name


async def test_a_bundle_comes_with_its_job(tmp_path: Path) -> None:
    archive = tar({"train.py": b"print(1)\n"})
    digest = hashlib.sha256(archive).hexdigest()
    async with ingesting(tmp_path) as under_test:
        files = {
            "job": (None, json.dumps({**JOB, "entry": "train.py"}), "application/json"),
            "bundle": ("b.tar", archive),
        }
        answer = await under_test.http.post("/v1/jobs", files=files)
        assert answer.status_code == 201, answer.text
        assert answer.json()["bundle"] == digest
        fetched = await under_test.http.get(f"/v1/bundles/{digest}")
        assert fetched.content == archive
        assert (await under_test.http.get("/v1/bundles/" + "0" * 64)).status_code == 404


async def test_a_bundle_that_is_no_archive_is_refused_and_not_kept(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        content = b"not an archive" * 100
        digest = hashlib.sha256(content).hexdigest()
        answer = await under_test.http.put(
            f"/v1/bundles/{digest}", content=content, headers={"content-type": "application/octet-stream"}
        )
        assert answer.status_code == 422, answer.text
        assert answer.json()["type"] == "urn:schedmate:problem:bundle-refused"
        assert (await under_test.http.get(f"/v1/bundles/{digest}")).status_code == 404


async def test_a_bundle_under_another_hash_is_refused(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        answer = await under_test.http.put(
            f"/v1/bundles/{'0' * 64}", content=tar({"a": b""}), headers={"content-type": "application/octet-stream"}
        )
        assert answer.status_code == 422


async def test_a_bundle_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with ingesting(tmp_path, bundle_bytes_max=20_000) as under_test:
        archive = tar({"a": b"x" * 30_000})
        digest = hashlib.sha256(archive).hexdigest()
        answer = await under_test.http.put(
            f"/v1/bundles/{digest}", content=archive, headers={"content-type": "application/octet-stream"}
        )
        assert answer.status_code == 413


async def test_another_tenants_bundle_cannot_be_used_or_fetched(tmp_path: Path) -> None:
    archive = tar({"a": b"secret"})
    digest = hashlib.sha256(archive).hexdigest()
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        red = await under_test.token("red", Scope.SUBMIT, Scope.READ)
        blue = await under_test.token("blue", Scope.SUBMIT, Scope.READ)
        worker = await under_test.token("infra", Scope.BUNDLES)
        kind = {"content-type": "application/octet-stream"}
        put = await under_test.http.put(f"/v1/bundles/{digest}", content=archive, headers=red | kind)
        assert put.status_code == 201
        assert (await under_test.http.get(f"/v1/bundles/{digest}", headers=red)).status_code == 200
        assert (await under_test.http.get(f"/v1/bundles/{digest}", headers=worker)).status_code == 200
        assert (await under_test.http.get(f"/v1/bundles/{digest}", headers=blue)).status_code == 404
        stolen = await under_test.http.post("/v1/jobs", json={**JOB, "bundle": digest}, headers=blue)
        assert stolen.status_code == 409
        assert "upload it first" in stolen.json()["detail"]
        used = await under_test.http.post("/v1/jobs", json={**JOB, "bundle": digest}, headers=red)
        assert used.status_code == 201
