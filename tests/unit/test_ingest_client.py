"""The Python client against a running instance, and its patience against a scripted one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schedmate.client import ApiError, Client, ClientError, LogPart, UnreachableError
from schedmate.schemas import ids
from schedmate.schemas.states import JobState
from tests.ingesting import JOB, IngestUnderTest, chunk, decided, exited, reported, serving, started, submitted, tar
from tests.waiting import eventually_sync

JOB_ID = "11111111-1111-5111-8111-111111111111"
TWICE_ID = "22222222-2222-5222-8222-222222222222"
S = JobState


async def prepare(under_test: IngestUnderTest) -> None:
    await under_test.publish(
        submitted(JOB_ID),
        decided(JOB_ID, S.QUEUED, 1, attempt=0),
        decided(JOB_ID, S.ASSIGNED, 2),
        started(JOB_ID),
        decided(JOB_ID, S.RUNNING, 3),
        exited(JOB_ID, log_bytes=12),
        decided(JOB_ID, S.SUCCEEDED, 4),
        submitted(TWICE_ID),
        decided(TWICE_ID, S.ASSIGNED, 5),
        exited(TWICE_ID, 1, log_bytes=6),
        decided(TWICE_ID, S.QUEUED, 6),
        decided(TWICE_ID, S.ASSIGNED, 7, attempt=2),
        exited(TWICE_ID, 0, attempt=2, log_bytes=7),
        decided(TWICE_ID, S.SUCCEEDED, 8, attempt=2),
        reported(),
    )
    await under_test.context.logs.add(chunk(JOB_ID, 0, b"hello\nworld\n"))
    await under_test.context.logs.add(chunk(TWICE_ID, 0, b"second", attempt=1))
    await under_test.context.logs.add(chunk(TWICE_ID, 0, b"attempt", attempt=2))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("api"), prepare, stream_poll_s=0.05) as url:
        with Client(url) as client:
            eventually_sync(lambda: [j for j in client.jobs(state="SUCCEEDED") if len(j.exit_codes) == 1][1:])
        yield url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.mark.localhost
def test_a_job_is_submitted_listed_asked_about_and_cancelled(client: Client) -> None:
    job = client.submit({**JOB, "name": "mine"}, idempotency_key="k")
    assert (
        client.submit({**JOB, "name": "mine"}, idempotency_key="k").job_id == job.job_id == ids.job_id("default", "k")
    )
    assert client.job(job.job_id).state is S.SUBMITTED
    assert [j.job_id for j in client.jobs(name="mine")] == [job.job_id]
    assert job.job_id in [j.job_id for j in client.jobs(unfinished=True)]
    assert client.why(job.job_id).reason == "NOT_YET_CONSIDERED"
    assert client.cancel(job.job_id, "no longer").requested
    assert len(client.events(JOB_ID).decisions) == 4
    assert len(list(client.jobs(limit=2))) == 2


@pytest.mark.localhost
def test_nodes_pools_and_operators_calls(client: Client) -> None:
    [node] = eventually_sync(client.nodes)
    assert node.node == "n1"
    assert client.command_node("n1", "drain", "smoke").pool == "default"
    assert client.pool().gpus_total == 4
    reserved = client.reserve("default", nodes=["n1"], end_at=9e9, why="new disks")
    assert client.withdraw_reservation("default", reserved.reservation_id) == reserved
    assert client.dead_letters() == []


@pytest.mark.localhost
def test_output_is_read_and_followed_to_its_end(client: Client) -> None:
    assert client.log(JOB_ID).text == "hello\nworld\n"
    assert client.log(JOB_ID, offset=-6).text == "world\n"
    parts = list(client.follow(JOB_ID))
    assert "".join(part.text for part in parts) == "hello\nworld\n"
    assert parts[-1] == LogPart(1, 12, 12, state=S.SUCCEEDED)
    assert "".join(part.text for part in client.follow(TWICE_ID, attempt=1)) == "second"
    assert "".join(part.text for part in client.follow(TWICE_ID)) == "attempt"  # the newest


@pytest.mark.localhost
def test_a_bundle_goes_with_its_job_or_before_it(client: Client, tmp_path: Path) -> None:
    archive = tmp_path / "source.tar"
    archive.write_bytes(tar({"train.py": b"print(1)"}))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert client.submit({**JOB, "entry": "train.py"}, bundle=archive).bundle == digest
    assert client.put_bundle(digest, archive).entries == 1
    assert client.submit({**JOB, "bundle": digest}).bundle == digest
    client.get_bundle(digest, tmp_path / "fetched.tar")
    assert (tmp_path / "fetched.tar").read_bytes() == archive.read_bytes()


@pytest.mark.localhost
def test_a_refusal_is_an_error_that_says_what_to_do(client: Client) -> None:
    with pytest.raises(ApiError, match="gpus") as caught:
        client.submit({**JOB, "gpus": 0})
    assert caught.value.status == 422
    assert caught.value.problem.errors[0].field == "gpus"
    with pytest.raises(ApiError) as missing:
        client.job("nothing/../x")
    assert missing.value.status == 404


# --- patience ---------------------------------------------------------------------------------------------------------


class Scripted:
    """A transport that answers by a script, and a clock that the client's pauses move."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.paused_s = 0.0

    def handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.paused_s += seconds

    def client(self, **given: Any) -> Client:
        transport = httpx.MockTransport(self.handle)
        return Client(transport=transport, sleep=self.sleep, monotonic=lambda: self.paused_s, **given)


UNAVAILABLE = {
    "type": "urn:schedmate:problem:unavailable", "title": "A part does not answer", "status": 503, "detail": "again", "instance": "/",
}  # fmt: skip
ACCEPTED = {
    "job_id": JOB_ID, "name": "n", "tenant": "t", "user": "u", "pool": "p", "state": "SUBMITTED", "reason": "NOT_YET_CONSIDERED",
    "detail": "", "attempt": 0, "submitted_at": 1, "wait_s": 0, "gpus": 1, "nodes": 1, "gpus_total": 1, "priority": "low", "retries": 1,
    "a_field_of_tomorrow": 1,
}  # fmt: skip


def test_a_submit_is_repeated_under_the_same_key_until_it_is_answered() -> None:
    script = Scripted(
        httpx.ConnectError("down"), httpx.ReadTimeout("late"), httpx.Response(503, json=UNAVAILABLE, headers={"Retry-After": "2"}),
        httpx.Response(201, json=ACCEPTED),
    )  # fmt: skip
    with script.client() as client:
        assert client.submit(JOB).job_id == JOB_ID
    keys = {request.headers["idempotency-key"] for request in script.requests}
    bodies = {request.content for request in script.requests}
    assert (len(script.requests), len(keys), len(bodies)) == (4, 1, 1)
    assert script.paused_s >= 2.0


def test_patience_has_an_end() -> None:
    script = Scripted(httpx.ConnectError("down"))
    with script.client(retry_s=5.0) as client, pytest.raises(UnreachableError, match="SCHEDMATE_API"):
        client.nodes()
    assert script.paused_s <= 5.0


def test_a_refusal_is_not_repeated() -> None:
    script = Scripted(httpx.Response(404, json={**UNAVAILABLE, "status": 404}))
    with script.client() as client, pytest.raises(ApiError):
        client.job(JOB_ID)
    assert len(script.requests) == 1


def test_what_is_no_answer_of_ours_is_told_as_that() -> None:
    for answer in (httpx.Response(200, text="<html>"), httpx.Response(502, text="bad gateway")):
        with Scripted(answer).client() as client, pytest.raises(ClientError, match="SCHEDMATE_API"):
            client.job(JOB_ID)


def stream(*events: tuple[str, dict[str, Any]]) -> httpx.Response:
    text = "".join(f"event: {kind}\ndata: {json.dumps(told)}\n\n" for kind, told in events)
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def test_a_broken_stream_is_taken_up_where_it_broke_and_goes_on_with_the_next_attempt() -> None:
    script = Scripted(
        stream(("attempt", {"attempt": 1}), ("log", {"offset": 0, "end": 3, "text": "abc"})),  # breaks
        stream(("attempt", {"attempt": 1}), ("log", {"offset": 3, "end": 5, "text": "de"}), ("end", {"state": "QUEUED", "offset": 5})),
        stream(("attempt", {"attempt": 2}), ("gap", {"start": 0, "end": 9}), ("log", {"offset": 9, "end": 10, "text": "f"}),
               ("end", {"state": "FAILED", "offset": 10})),
    )  # fmt: skip
    with script.client() as client:
        parts = list(client.follow(JOB_ID))
    assert "".join(part.text for part in parts) == "abcdef"
    assert [part.gap for part in parts] == [False, False, True, False, False]
    assert parts[-1].state is S.FAILED
    asked = [dict(request.url.params) for request in script.requests]
    assert asked == [
        {"member": "0", "offset": "0"},
        {"member": "0", "offset": "3", "attempt": "1"},
        {"member": "0", "offset": "0", "attempt": "2"},
    ]


def test_the_token_comes_from_the_environment_or_on_this_machine_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "api-token").write_text("smt_file\n")
    here = {"SCHEDMATE_STATE_DIR": str(tmp_path)}
    cases = [
        (here, "Bearer smt_file"),
        (here | {"SCHEDMATE_API_TOKEN": "smt_env"}, "Bearer smt_env"),
        (here | {"SCHEDMATE_API": "http://gpu.example:8470"}, None),  # the file's token is for this machine only
        ({"SCHEDMATE_STATE_DIR": str(tmp_path / "none")}, None),
    ]
    for environment, expected in cases:
        with Client.from_environment(environment) as client:
            assert client._http.headers.get("authorization") == expected


@pytest.mark.parametrize(
    ("given", "user"), [({}, "ann"), ({"token": "smt_x"}, None), ({"token": "smt_x", "user": "bob"}, "bob")]
)
def test_the_user_is_whoever_runs_it_unless_a_token_says_who(
    given: dict[str, str], user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    script = Scripted(httpx.Response(201, json=ACCEPTED))
    with script.client(**given) as client:
        client.submit(JOB)
        client.submit({**JOB, "user": "eve"})
    assert [json.loads(request.content).get("user") for request in script.requests] == [user, "eve"]
