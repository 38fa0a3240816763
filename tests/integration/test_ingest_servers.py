"""ingest on real Kafka and MongoDB wire: the read model is whole after a broker's and a store's kill -9, and no job is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schedmate.infra.blobs.files import FileBlobs
from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.mongo import MongoStore
from schedmate.schemas import events as e
from schedmate.schemas.codec import encode
from schedmate.schemas.states import JobState
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest.read_model import ReadModel
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.wiring import Ingest, build
from tests.ingesting import JOB, decided, exited, reported, started, submitted
from tests.servers import OWN_KAFKA, OWN_MONGO, KafkaServer, MongoServer
from tests.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]

JOBS = 150
S = JobState


def job(number: int) -> str:
    return f"{number:08d}-1111-5111-8111-111111111111"


def life(number: int) -> list[Envelope[e.Event]]:
    name, seq = job(number), number * 10
    return [
        submitted(name),
        decided(name, S.QUEUED, seq + 1, attempt=0),
        decided(name, S.ASSIGNED, seq + 2),
        started(name),
        decided(name, S.RUNNING, seq + 3),
        exited(name),
        decided(name, S.SUCCEEDED, seq + 4),
    ]


@pytest.fixture
def kafka(tmp_path: Path):
    with KafkaServer(tmp_path / "kafka", OWN_KAFKA) as server:
        yield server


@pytest.fixture
def mongo(tmp_path: Path):
    with MongoServer(tmp_path / "mongo", OWN_MONGO) as server:
        yield server


class Servers:
    """The two servers, and instances of ingest on them."""

    def __init__(self, kafka: KafkaServer, mongo: MongoServer, folder: Path) -> None:
        self.kafka = kafka
        self.mongo = mongo
        self.folder = folder

    @contextlib.asynccontextmanager
    async def instance(self, name: str) -> AsyncIterator[Ingest]:
        clock = SystemClock()
        bus = KafkaBus(self.kafka.address.removeprefix("kafka://"), clock, client_id=name)
        store = MongoStore(self.mongo.address, "ingest_servers")
        blobs = FileBlobs(self.folder / "blobs", clock)
        async with contextlib.AsyncExitStack() as stack:
            for part in (bus, store, blobs):
                await part.start()
                stack.push_async_callback(part.stop)
            await bus.create_topics(topology().topics.values())
            await store.setup(topology().collections.values())
            settings = IngestSettings(
                state_dir=self.folder / name, api_port=0, sweep_after_s=0, sweep_every_s=0.5, publish_timeout_s=2
            )
            ingest = build(settings, bus=bus, store=store, blobs=blobs, clock=clock)
            stack.push_async_callback(ingest.close)
            await ingest.start()
            stop = asyncio.Event()
            task = asyncio.create_task(ingest.run(stop))
            try:
                yield ingest
            finally:
                stop.set()
                async with asyncio.timeout(30):
                    await task


def client(ingest: Ingest) -> httpx.AsyncClient:
    host, port = ingest.address or ("", 0)
    return httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60)


async def publish(ingest: Ingest, envelopes: list[Envelope[e.Event]]) -> None:
    await ingest.context.bus.publish([encode(one) for one in envelopes])


async def listed(http: httpx.AsyncClient) -> dict[str, Any]:
    jobs: dict[str, Any] = {}
    cursor: dict[str, str] = {}
    while True:
        page = (await http.get("/v1/jobs", params={"limit": 500, **cursor})).json()
        jobs |= {one["job_id"]: one["state"] for one in page["jobs"]}
        if page["next_cursor"] is None:
            return jobs
        cursor = {"cursor": page["next_cursor"]}


async def test_the_read_model_is_whole_after_members_come_and_go_and_servers_die(
    kafka: KafkaServer, mongo: MongoServer, tmp_path: Path
) -> None:
    servers = Servers(kafka, mongo, tmp_path)
    events = [envelope for number in range(JOBS) for envelope in life(number)]
    third = len(events) // 3
    async with servers.instance("one") as one, client(one) as http:
        await publish(one, [*events[:third], reported()])
        async with servers.instance("two") as two:
            await publish(one, events[third : 2 * third])
            await eventually(lambda: two.ready()["caught_up"], 60)
        await asyncio.to_thread(mongo.kill)
        restart = asyncio.create_task(asyncio.to_thread(mongo.restart))
        await publish(one, events[2 * third :])
        await restart
        await asyncio.to_thread(kafka.kill)
        await asyncio.to_thread(kafka.restart)
        accepted = await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "after"})
        assert accepted.status_code in (201, 202), accepted.text
        expected = {job(n): "SUCCEEDED" for n in range(JOBS)} | {accepted.json()["job_id"]: "SUBMITTED"}

        async def whole() -> bool:
            return await listed(http) == expected

        await eventually(whole, 90)
        alone = MemoryStore()
        await alone.setup(topology().collections.values())
        await ReadModel(alone, SystemClock(), SeededRandom(0)).apply(events)

        async def same() -> bool:
            found = await one.context.store.get_many("views", [job(n) for n in range(JOBS)])
            wanted = await alone.get_many("views", [job(n) for n in range(JOBS)])
            return {k: d.body for k, d in found.items()} == {k: d.body for k, d in wanted.items()}

        await eventually(same, 60)
        await one.rebuild()
        await eventually(same, 60)
        assert await one.context.outbox.waiting() == 0


async def test_a_job_submitted_while_the_broker_is_dead_is_accepted_and_comes_on_the_bus_later(
    kafka: KafkaServer, mongo: MongoServer, tmp_path: Path
) -> None:
    servers = Servers(kafka, mongo, tmp_path)
    async with servers.instance("one") as one, client(one) as http:
        await asyncio.to_thread(kafka.kill)
        first = await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        assert first.status_code == 202
        cancelled = await http.post(f"/v1/jobs/{first.json()['job_id']}/cancel")
        assert cancelled.status_code == 503
        assert int(cancelled.headers["retry-after"]) > 0
        await asyncio.to_thread(kafka.restart)

        async def published() -> bool:
            return (await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})).status_code == 200 and (
                await one.context.outbox.waiting() == 0
            )

        await eventually(published, 60)


async def test_while_the_store_is_dead_the_api_says_so_and_comes_back(
    kafka: KafkaServer, mongo: MongoServer, tmp_path: Path
) -> None:
    servers = Servers(kafka, mongo, tmp_path)
    async with servers.instance("one") as one, client(one) as http:
        assert (await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "a"})).status_code == 201
        await asyncio.to_thread(mongo.kill)
        answer = await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "b"})
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        await eventually(lambda: not one.ready()["store"], 30)
        await asyncio.to_thread(mongo.restart)

        async def back() -> bool:
            return (await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "b"})).status_code in (200, 201)

        await eventually(back, 60)
        assert len(await listed(http)) == 2
