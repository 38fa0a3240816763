"""The read model in the store: any number of instances, dropped and rebuilt, batches that find their poison."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded interleavings
from collections.abc import Sequence
from pathlib import Path

import pytest

from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.store.faults import Faults
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.schemas import events as e
from schedmate.schemas.states import JobState
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest.read_model import Coalescer, ReadModel
from tests.ingesting import chunk, decided, enveloped, exited, ingesting, reported, running, started, submitted
from tests.waiting import eventually

S = JobState


def job(number: int) -> str:
    return f"{number:08d}-1111-5111-8111-111111111111"


def life(number: int) -> list[Envelope[e.Event]]:
    name = job(number)
    seq = number * 10
    return [
        submitted(name),
        decided(name, S.QUEUED, seq + 1, attempt=0),
        decided(name, S.ASSIGNED, seq + 2),
        started(name),
        decided(name, S.RUNNING, seq + 3),
        exited(name),
        decided(name, S.SUCCEEDED, seq + 4),
    ]


async def ready_store(faults: Faults | None = None) -> MemoryStore:
    store = MemoryStore(faults)
    await store.setup(topology().collections.values())
    return store


async def documents(store: MemoryStore, collection: str = "views") -> dict[str, object]:
    return {d.id: d.body for d in await store.scan(collection, low="", high="~", limit=1000)}


async def test_instances_that_fold_the_same_jobs_at_once_lose_nothing(seed: int) -> None:
    """Topics of one job are read by different instances, each batch at once with the others'."""
    rolls = random.Random(seed)
    store = await ready_store()
    models = [ReadModel(store, SystemClock(), SeededRandom(n)) for n in range(4)]
    by_topic: dict[str, list[Envelope[e.Event]]] = {}
    for number in range(20):
        for envelope in life(number):
            by_topic.setdefault(envelope.event.TOPIC, []).append(envelope)

    async def consume(topic: str, model: ReadModel) -> None:
        events = by_topic[topic]
        while events:
            size = rolls.randrange(1, 30)
            batch, events = events[:size], events[size:]
            await model.apply([*batch, *rolls.choices(batch, k=2)])
            await asyncio.sleep(0)

    await asyncio.gather(*(consume(topic, models[n % 4]) for n, topic in enumerate(sorted(by_topic)) for _ in range(2)))
    alone = await ready_store()
    for number in range(20):
        await ReadModel(alone, SystemClock(), SeededRandom(0)).apply(life(number))
    assert await documents(store) == await documents(alone)


async def test_a_batch_is_one_read_and_one_write_a_job() -> None:
    store = await ready_store()
    calls: list[str] = []
    for name in ("get_many", "insert", "replace", "get"):
        _count(store, name, calls)
    model = ReadModel(store, SystemClock(), SeededRandom(0))
    await model.apply([envelope for number in range(50) for envelope in life(number)])
    assert calls.count("insert") == 50
    assert calls.count("get_many") == 2  # views, and the job documents of those without one
    assert calls.count("replace") == 0
    calls.clear()
    await model.apply([envelope for number in range(50) for envelope in life(number)])
    assert calls == ["get_many"]  # nothing new, nothing written


def _count(store: MemoryStore, name: str, calls: list[str]) -> None:
    original = getattr(store, name)

    async def counted(*args: object, **kwargs: object) -> object:
        calls.append(name)
        return await original(*args, **kwargs)

    setattr(store, name, counted)


async def test_a_view_finds_its_job_in_the_job_document_when_the_event_has_left_its_topic(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        name = (await under_test.submit())["job_id"]
        await under_test.store.drop("views")
        await under_test.fold(decided(name, S.QUEUED, 1, attempt=0))
        listed = (await under_test.http.get("/v1/jobs")).json()["jobs"]
        assert [(one["job_id"], one["state"]) for one in listed] == [(name, "QUEUED")]


async def test_an_ended_job_survives_its_topics(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        name = (await under_test.submit())["job_id"]
        await under_test.fold(
            *(decided(name, state, n) for n, state in enumerate([S.QUEUED, S.ASSIGNED, S.RUNNING, S.FAILED], 1))
        )
        before = (await under_test.http.get(f"/v1/jobs/{name}/events")).json()
        await under_test.context.read_model.rebuild()  # and the topics hold nothing any more
        assert (await under_test.http.get(f"/v1/jobs/{name}/events")).json() == before
        listed = (await under_test.http.get("/v1/jobs", params={"state": "FAILED"})).json()["jobs"]
        assert [one["job_id"] for one in listed] == [name]
        assert (await under_test.http.get("/v1/jobs", params={"unfinished": True})).json()["jobs"] == []
        await under_test.store.drop("views")
        assert (await under_test.http.get(f"/v1/jobs/{name}")).json()["state"] == "FAILED"


async def test_a_job_without_a_view_is_looked_up_in_its_document(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        name = (await under_test.submit())["job_id"]
        await under_test.store.drop("views")
        assert (await under_test.http.get(f"/v1/jobs/{name}")).json()["state"] == "SUBMITTED"


async def test_events_of_a_job_that_nobody_submitted_are_held_and_listed_nowhere(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(decided(job(1), S.QUEUED, 1))
        assert (await under_test.http.get("/v1/jobs")).json()["jobs"] == []
        assert (await under_test.http.get(f"/v1/jobs/{job(1)}")).status_code == 404
        await under_test.fold(submitted(job(1)))
        assert (await under_test.http.get(f"/v1/jobs/{job(1)}")).json()["state"] == "QUEUED"


# --- lists ------------------------------------------------------------------------------------------------------------


async def test_pages_hold_every_job_once_newest_first(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(
            *(submitted(job(n), at=1_700_000_000.0 + n // 3, tenant="red" if n % 2 else "blue") for n in range(25))
        )
        await under_test.fold(*(decided(job(n), S.CANCELLED, n + 1, attempt=0) for n in range(0, 25, 4)))
        expected = {
            (): list(range(24, -1, -1)),
            (("tenant", "red"),): [n for n in range(24, -1, -1) if n % 2],
            (("state", "CANCELLED"),): list(range(24, -1, -4)),
            (("unfinished", "true"),): [n for n in range(24, -1, -1) if n % 4],
            (("state", "SUBMITTED"), ("tenant", "blue")): [n for n in range(24, -1, -1) if n % 2 == 0 and n % 4],
            (("name", "nothing"),): [],
        }
        for filters, numbers in expected.items():
            seen: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = (await under_test.http.get("/v1/jobs", params={**dict(filters), "limit": "4", **cursor})).json()
                seen += [one["job_id"] for one in page["jobs"]]
                if page["next_cursor"] is None:
                    break
                cursor = {"cursor": page["next_cursor"]}
            assert seen == [job(n) for n in numbers], filters


# --- coalescing -------------------------------------------------------------------------------------------------------


async def test_what_comes_during_a_write_goes_with_the_next_one() -> None:
    batches: list[int] = []

    async def apply(envelopes: Sequence[Envelope[e.Event]]) -> None:
        batches.append(len(envelopes))
        await asyncio.sleep(0)

    coalescer = Coalescer(apply)
    await asyncio.gather(*(coalescer.add(envelope) for number in range(100) for envelope in life(number)))
    assert sum(batches) == 700
    assert len(batches) <= 3


async def test_poison_in_a_batch_fails_alone() -> None:
    applied: list[str] = []

    async def apply(envelopes: Sequence[Envelope[e.Event]]) -> None:
        if any(one.event.key == job(3) for one in envelopes):
            raise ValueError("poison")
        applied.extend(one.event.key for one in envelopes)

    coalescer = Coalescer(apply)
    results = await asyncio.gather(*(coalescer.add(submitted(job(n))) for n in range(6)), return_exceptions=True)
    assert [isinstance(result, ValueError) for result in results] == [n == 3 for n in range(6)]
    assert sorted(applied) == [job(n) for n in range(6) if n != 3]


async def test_an_outage_reaches_everybody_in_the_batch() -> None:
    async def apply(envelopes: Sequence[Envelope[e.Event]]) -> None:
        raise StoreUnavailableError("away")

    coalescer = Coalescer(apply)
    results = await asyncio.gather(*(coalescer.add(submitted(job(n))) for n in range(6)), return_exceptions=True)
    assert all(isinstance(result, StoreUnavailableError) for result in results)


# --- the running component --------------------------------------------------------------------------------------------


@pytest.mark.localhost
async def test_a_running_instance_folds_what_is_on_the_bus_and_can_be_rebuilt(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test, running(under_test):
        submitted_job = (await under_test.submit())["job_id"]
        events = [envelope for number in range(30) for envelope in life(number)]
        await under_test.publish(*events, reported())
        alone = await ready_store()
        await ReadModel(alone, SystemClock(), SeededRandom(0)).apply([*events, *under_test.published("schedmate.jobs")])
        expected = await documents(alone)
        assert submitted_job in expected

        async def settled() -> bool:
            nodes = (await under_test.http.get("/v1/nodes")).json()["nodes"]
            return await documents(under_test.store) == expected and nodes != []

        await eventually(settled, 15)
        assert await under_test.ingest.rebuild() == 2
        assert submitted_job in await documents(under_test.store)
        await eventually(settled, 15)
        await eventually(lambda: all(under_test.ingest.ready().values()))


@pytest.mark.localhost
async def test_many_events_of_one_job_are_few_writes_and_its_log_chunks_stay_in_order(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        writes: list[str] = []
        _count(under_test.store, "replace", writes)
        events = [decided(job(1), S.QUEUED, n) for n in range(1, 200)]
        chunks = [enveloped(chunk(job(1), n * 10, b"%09d\n" % n)) for n in range(300)]
        await under_test.publish(submitted(job(1)), *events, *chunks)
        async with running(under_test):
            await eventually(lambda: under_test.ingest.ready()["caught_up"], 15)
            history = (await under_test.http.get(f"/v1/jobs/{job(1)}/events")).json()["decisions"]
            assert [one["seq"] for one in history] == list(range(1, 200))
            assert len(writes) < 20
            log = (await under_test.http.get(f"/v1/jobs/{job(1)}/log", params={"attempt": 1})).json()
            assert log["text"] == "".join(f"{n:09d}\n" for n in range(300))


@pytest.mark.localhost
async def test_two_instances_share_the_topics_and_keep_one_read_model(tmp_path: Path) -> None:
    async with (
        ingesting(tmp_path / "a") as one,
        ingesting(tmp_path / "b", bus=one.bus, store=one.store, blobs=one.blobs) as two,
        running(one),
        running(two),
    ):
        await eventually(lambda: all(one.ingest.ready().values()) and all(two.ingest.ready().values()))
        await one.publish(*(envelope for number in range(40) for envelope in life(number)))

        async def settled() -> bool:
            return [v["state"] for v in (await documents(one.store)).values()] == ["SUCCEEDED"] * 40  # type: ignore[index]

        await eventually(settled, 15)
        listed = (await two.http.get("/v1/jobs", params={"limit": 100})).json()["jobs"]
        assert len(listed) == 40
