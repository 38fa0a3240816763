"""Ingest under test: the application over memory adapters, and builders for the events that it folds."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.clock import Clock, SeededIds, SeededRandom, SystemClock
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas import events as e
from schedmate.schemas import ids
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.job import JobRequest, JobSpec
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobState
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest.access import Scope
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.tokens import create_token
from schedmate.services.ingest.wiring import Ingest, build
from tests.waiting import eventually

START = 1_700_000_000.0
JOB: dict[str, Any] = {"name": "train", "command": ["python", "train.py"], "gpus": 2}


class IngestUnderTest:
    """One instance over adapters that may be shared with others."""

    def __init__(self, ingest: Ingest, bus: MemoryBus, store: MemoryStore, blobs: MemoryBlobs) -> None:
        self.ingest = ingest
        self.bus = bus
        self.store = store
        self.blobs = blobs
        self.context = ingest.context
        transport = httpx.ASGITransport(ingest.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470", timeout=20)

    async def fold(self, *envelopes: Envelope[e.Event]) -> None:
        """Apply events to the read model directly."""
        await self.context.read_model.apply(envelopes)

    async def publish(self, *envelopes: Envelope[e.Event]) -> None:
        """Put events on the bus."""
        await self.bus.publish([encode(one) for one in envelopes])

    def published(self, topic: str) -> list[Envelope[e.Event]]:
        """Return what is on a topic."""
        return [decode(record) for record in self.bus.records(topic)]

    async def token(self, tenant: str, *scopes: Scope, subject: str = "ann") -> dict[str, str]:
        """Return the headers of a new token."""
        made = await create_token(self.store, SystemClock(), tenant=tenant, subject=subject, scopes=scopes)
        return {"authorization": f"Bearer {made.text}"}

    async def submit(self, **given: Any) -> dict[str, Any]:
        """Submit a job; return its view."""
        answer = await self.http.post("/v1/jobs", json={**JOB, **given})
        assert answer.status_code == 201, answer.text
        view: dict[str, Any] = answer.json()
        return view


@contextlib.asynccontextmanager
async def ingesting(
    tmp_path: Path,
    *,
    bus: MemoryBus | None = None,
    store: MemoryStore | None = None,
    blobs: MemoryBlobs | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[IngestUnderTest]:
    """Yield ingest's application, not running: no consumers, no port."""
    clock = clock or SystemClock()
    bus = bus or MemoryBus(clock)
    store = store or MemoryStore()
    blobs = blobs or MemoryBlobs(clock)
    await bus.create_topics(topology().topics.values())
    await store.setup(topology().collections.values())
    given = IngestSettings(state_dir=tmp_path, api_port=0, **settings)
    ingest = build(given, bus=bus, store=store, blobs=blobs, clock=clock, ids=SeededIds(7), random=SeededRandom(7))
    under_test = IngestUnderTest(ingest, bus, store, blobs)
    try:
        yield under_test
    finally:
        await under_test.http.aclose()
        await ingest.close()


@contextlib.asynccontextmanager
async def running(under_test: IngestUnderTest) -> AsyncIterator[None]:
    """Run the component's consumers (and its server) inside the block. Needs the loopback."""
    stop = asyncio.Event()
    await under_test.ingest.start()
    task = asyncio.create_task(under_test.ingest.run(stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


@contextlib.contextmanager
def serving(
    tmp_path: Path, prepare: Callable[[IngestUnderTest], Awaitable[None]] | None = None, **settings: Any
) -> Iterator[str]:
    """Yield the URL of an instance that runs in a thread of its own. Needs the loopback."""
    told: dict[str, Any] = {}
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with ingesting(tmp_path, **settings) as under_test, running(under_test):
            if prepare is not None:
                await prepare(under_test)
            await eventually(lambda: all(under_test.ingest.ready().values()))
            assert under_test.ingest.address is not None
            told["url"] = "http://{}:{}".format(*under_test.ingest.address)
            ready.set()
            await asyncio.to_thread(done.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            told["error"] = error
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="ingest under test")
    thread.start()
    try:
        ready.wait(30)
        assert "url" in told, told
        yield told["url"]
    finally:
        done.set()
        thread.join(30)


def tar(files: dict[str, bytes]) -> bytes:
    """Return a tar archive of these files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


# --- events -----------------------------------------------------------------------------------------------------------


def spec(**given: Any) -> JobSpec:
    return JobSpec.model_validate({**JOB, "tenant": "default", "user": "ann", "pool": "default", **given})


def enveloped(event: e.Event, at: float = START, *, event_id: str | None = None) -> Envelope[e.Event]:
    fresh = ids.derived("test", event.ce_type(), event.model_dump_json(), str(at))
    return Envelope(id=event_id or fresh, source="schedmate/test", time=at, event=event)


def submitted(job: str, at: float = START, **given: Any) -> Envelope[e.Event]:
    what = spec(**given)
    return enveloped(e.JobSubmitted(job_id=job, pool=what.pool, spec=what, submitted_at=at), at)


_KINDS: dict[JobState, tuple[type[e.JobDecision], Reason]] = {
    JobState.QUEUED: (e.JobQueued, Reason.NOT_YET_CONSIDERED),
    JobState.REJECTED: (e.JobRejected, Reason.EXCEEDS_POOL_LIMITS),
    JobState.ASSIGNED: (e.JobAssigned, Reason.STARTING),
    JobState.RUNNING: (e.JobStarted, Reason.ALL_MEMBERS_STARTED),
    JobState.STOPPING: (e.JobStopping, Reason.CANCEL_REQUESTED),
    JobState.DIAGNOSING: (e.JobDiagnosing, Reason.AWAITING_DIAGNOSIS),
    JobState.SUCCEEDED: (e.JobSucceeded, Reason.ALL_MEMBERS_EXITED_ZERO),
    JobState.FAILED: (e.JobFailed, Reason.DIAGNOSED_PERMANENT),
    JobState.CANCELLED: (e.JobCancelled, Reason.CANCELLED_BY_REQUEST),
}


def decided(
    job: str, state: JobState, seq: int, *, at: float | None = None, attempt: int = 1, index: int = 0, **given: Any
) -> Envelope[e.Event]:
    kind, reason = _KINDS[state]
    fields: dict[str, Any] = {
        "pool": "default", "seq": seq, "index": index, "decided_at": START + seq if at is None else at, "job_id": job,
        "attempt": attempt, "state": state, "reason": reason,
    }  # fmt: skip
    if "run_id" in kind.model_fields:
        fields["run_id"] = ids.run_id(job, attempt)
    if kind is e.JobAssigned:
        placement = e.Placement(member=0, node="n1", gpus=(0, 1))
        fields |= {
            "placements": (placement,),
            "policy": "fifo",
            "passed_over": 0,
            "why_there": "the only node that fits",
        }
    if kind is e.JobStopping:
        fields["intent"] = "cancel"
    event = kind.model_validate({**fields, **given})
    return enveloped(event, event.decided_at, event_id=ids.decision_id("default", seq, index))


def started(job: str, *, attempt: int = 1, member: int = 0, at: float = START) -> Envelope[e.Event]:
    event = e.RunStarted(
        job_id=job, pool="default", run_id=ids.run_id(job, attempt), attempt=attempt, member=member, node="n1", session=1,
        pid=42, gpus=(0, 1), started_at=at,
    )  # fmt: skip
    return enveloped(event, at)


def exited(
    job: str, code: int = 0, *, attempt: int = 1, member: int = 0, at: float = START, log_bytes: int = 0
) -> Envelope[e.Event]:
    event = e.RunExited(
        job_id=job, pool="default", run_id=ids.run_id(job, attempt), attempt=attempt, member=member, node="n1", session=1,
        cause=e.ExitCause.EXITED, exit_code=code, log_bytes=log_bytes, started_at=None, ended_at=at,
    )  # fmt: skip
    return enveloped(event, at)


def chunk(
    job: str, start: int, content: bytes, *, attempt: int = 1, member: int = 0, gap_to: int | None = None
) -> e.LogChunked:
    return e.LogChunked(
        job_id=job, pool="default", run_id=ids.run_id(job, attempt), attempt=attempt, member=member, node="n1", start=start,
        end=start + len(content) if gap_to is None else gap_to, gap=gap_to is not None, content=content,
    )  # fmt: skip


def reported(
    node: str = "n1",
    *,
    report_no: int = 1,
    session: int = 1,
    at: float = START,
    runs: Sequence[e.RunReport] = (),
    **given: Any,
) -> Envelope[e.Event]:
    fields: dict[str, Any] = {
        "node": node, "pool": "default", "boot_id": "boot", "session": session, "report_no": report_no, "applied_seq": -1,
        "applied_index": -1, "address": "127.0.0.1", "port_min": 20000, "port_max": 20999,
        "gpus": tuple(e.GpuReport(index=i, type="h100") for i in range(4)), "runs": tuple(runs), "lease_s": 30.0, "at": at,
    }  # fmt: skip
    return enveloped(e.NodeReported.model_validate({**fields, **given}), at)


def request(**given: Any) -> JobRequest:
    return JobRequest.model_validate({**JOB, **given})
