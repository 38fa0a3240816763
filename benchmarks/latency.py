"""From the produce of JobSubmitted to the consume of JobAssigned, through a real dispatcher process, beside its floor in the same run.

    python benchmarks/latency.py [--samples 300] [--rate 50] [--seconds 6]

A broker and a MongoDB-wire server of the benchmark's own (infra/servers), topics and collections as in production, one dispatcher with its
defaults, free GPUs for every job. The floor is what nobody can do without: two raw produce→consume hops and one raw append, with the bare
clients at the same durability (acks=all, idempotent; majority and journaled) and a document of the size of a real entry.

`one by one`: a job at a time, each followed by a sample of the floor. `RATE a second`: jobs at that rate, then the floor's parts at that rate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import bson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from playing import percentile, reported, submitted
from pymongo import AsyncMongoClient, WriteConcern

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import Partition, Reader
from schedmate.infra.clock import SystemClock
from schedmate.infra.servers.kafka import KafkaServer
from schedmate.infra.servers.mongo import MongoServer
from schedmate.infra.setup import setup
from schedmate.infra.store.mongo import MongoStore
from schedmate.infra.telemetry.logs import setup_logging
from schedmate.schemas.events import JobAssigned
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Record

DATABASE = "bench"
RAW = "schedmate.audit"  # a topic that no dispatcher reads
ASSIGNED = JobAssigned.ce_type().encode()
WARM_UP = 30
NODES, GPUS = 64, 16
TIMEOUT_S = 20.0


class Through:
    """Jobs through the dispatcher: when each was produced, and when its assignment was consumed."""

    def __init__(self, bus: KafkaBus, reader: Reader) -> None:
        self._bus = bus
        self._reader = reader
        self._number = 0
        self.seconds: list[float] = []
        self._sent: dict[bytes, float] = {}
        self._all_came = asyncio.Event()

    async def read(self) -> None:
        """Consume decisions until cancelled."""
        while True:
            deliveries = await self._reader.poll(500, 1.0)
            now = time.perf_counter()
            for delivery in deliveries:
                if (
                    delivery.record.header("ce_type") == ASSIGNED
                    and (sent := self._sent.pop(delivery.record.key, None)) is not None
                ):
                    self.seconds.append(now - sent)
            if not self._sent:
                self._all_came.set()

    async def one(self) -> None:
        """Produce a job; the acknowledgement is waited for, as ingest does, while the dispatcher may have it already."""
        record = submitted(f"job-{self._number}", time.time())
        self._number += 1
        self._sent[record.key] = time.perf_counter()
        await self._bus.publish([record])

    async def settled(self) -> None:
        """Wait until every assignment has come."""
        while self._sent:
            self._all_came.clear()
            await asyncio.wait_for(self._all_came.wait(), TIMEOUT_S)

    def taken(self) -> list[float]:
        """Return what was measured since the last time."""
        out, self.seconds = self.seconds, []
        return out


class Floor:
    """The bare clients: a hop is produce→consume, an append an insert that is durable when it returns."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        consumer: AIOKafkaConsumer,
        entries: Any,
        record: Record,
        entry: Mapping[str, Any],
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._entries = entries
        self._record = record
        self._entry = dict(entry)
        self._number = 0
        self._sent: dict[bytes, float] = {}
        self._arrived: asyncio.Event = asyncio.Event()
        self.hops: list[float] = []

    async def read(self) -> None:
        """Consume until cancelled."""
        async for message in self._consumer:
            self.hops.append(time.perf_counter() - self._sent.pop(message.key))
            self._arrived.set()

    async def hop(self) -> None:
        """Produce a record of a job's size."""
        self._number += 1
        key = f"raw-{self._number}".encode()
        self._sent[key] = time.perf_counter()
        partition = partition_of(key, topology().topics[RAW].partitions)
        acknowledged = await self._producer.send(
            RAW, value=self._record.value, key=key, partition=partition, headers=list(self._record.headers)
        )
        await acknowledged

    async def hops_at(self, rate: float, seconds: float) -> list[float]:
        """Return the seconds of hops at a steady rate."""
        self.hops.clear()
        await at_rate(rate, seconds, self.hop)
        while self._sent:
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), TIMEOUT_S)
        return list(self.hops)

    async def append(self) -> float:
        """Insert a document of an entry's size; return the seconds."""
        self._number += 1
        began = time.perf_counter()
        await self._entries.insert_one({**self._entry, "_id": f"raw/{self._number:012d}"})
        return time.perf_counter() - began

    async def whole(self) -> float:
        """Return the seconds of a hop, an append and a hop."""
        parts = [await self._measured_hop(), await self.append(), await self._measured_hop()]
        return sum(parts)

    async def _measured_hop(self) -> float:
        self._arrived.clear()
        await asyncio.gather(self.hop(), asyncio.wait_for(self._arrived.wait(), TIMEOUT_S))
        return self.hops.pop()


async def at_rate(rate: float, seconds: float, call: Callable[[], Awaitable[object]]) -> list[Any]:
    """Call at a steady rate, whether earlier calls have returned or not; return what they returned."""
    began, calls = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        calls.append(asyncio.ensure_future(call()))
    return list(await asyncio.gather(*calls))


async def newest_entry(store: MongoStore) -> Mapping[str, Any]:
    """Return the body of an entry that placed a job."""
    found = await store.scan("pool_log", low="default/", high="default/~", limit=50, reverse=True)
    return next(
        d.body for d in found if any(kind.get("kind") == "placed" or "seats" in kind for kind in d.body["decisions"])
    )


async def measure(
    kafka: KafkaServer, mongo: MongoServer, directory: Path, samples: int, rate: float, seconds: float
) -> dict[str, Any]:
    """Return all figures, milliseconds."""
    async with contextlib.AsyncExitStack() as stack:
        bus = KafkaBus(kafka.bootstrap, SystemClock(), client_id="bench")
        store = MongoStore(mongo.address, DATABASE, client="pymongo")
        for started in (bus, store):
            await started.start()
            stack.push_async_callback(started.stop)
        await setup(bus, store)
        await stack.enter_async_context(dispatcher(kafka, mongo, directory))
        through = await stack.enter_async_context(jobs_through(bus))
        for _ in range(WARM_UP):
            await through.one()
            await through.settled()
        entry = await newest_entry(store)
        floor = await stack.enter_async_context(bare_clients(kafka, mongo, entry))
        for _ in range(WARM_UP):
            await floor.whole()
        through.taken()
        return {
            "entry_bytes": len(bson.encode(entry)),
            "one by one": await one_by_one(through, floor, samples),
            f"{rate:g} a second": await steadily(through, floor, rate, seconds),
        }


async def one_by_one(through: Through, floor: Floor, samples: int) -> dict[str, float]:
    """Compare job by job: the machine is as busy for the one as for the other."""
    floors: list[float] = []
    for _ in range(samples):
        await through.one()
        await through.settled()
        floors.append(await floor.whole())
    return compared(through.taken(), floors)


async def steadily(through: Through, floor: Floor, rate: float, seconds: float) -> dict[str, float]:
    """Compare at a rate: jobs first, then a hop, an append and a hop at the same rate."""
    await at_rate(rate, seconds, through.one)
    await through.settled()
    jobs = through.taken()
    first = await floor.hops_at(rate, seconds)
    appends = await at_rate(rate, seconds, floor.append)
    last = await floor.hops_at(rate, seconds)
    return compared(jobs, [a + b + c for a, b, c in zip(first, appends, last, strict=True)])


@contextlib.asynccontextmanager
async def dispatcher(kafka: KafkaServer, mongo: MongoServer, directory: Path) -> AsyncIterator[None]:
    """Run a dispatcher with its defaults."""
    flags = ["--bus", kafka.address, "--store", mongo.address, "--mongo-database", DATABASE]
    flags += ["--health-port", "0", "--state-dir", str(directory)]
    with (directory / "dispatcher.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schedmate.services.dispatcher", *flags, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


@contextlib.asynccontextmanager
async def jobs_through(bus: KafkaBus) -> AsyncIterator[Through]:
    """Report nodes with GPUs for all jobs, and read decisions meanwhile."""
    now = SystemClock().now()
    await bus.publish([reported(f"n{n}", GPUS, now) for n in range(NODES)])
    topic = JobAssigned.TOPIC
    reader = bus.reader({Partition(topic, n): 0 for n in range(topology().topics[topic].partitions)})
    await reader.start()
    through = Through(bus, reader)
    reading = asyncio.create_task(through.read())
    try:
        yield through
    finally:
        await ended(reading)
        await reader.stop()


@contextlib.asynccontextmanager
async def bare_clients(kafka: KafkaServer, mongo: MongoServer, entry: Mapping[str, Any]) -> AsyncIterator[Floor]:
    """Connect the bare clients, at the durability of the adapters."""
    client: AsyncMongoClient[Any] = AsyncMongoClient(mongo.address)
    entries = client[DATABASE].get_collection("raw_entries", write_concern=WriteConcern(w="majority", j=True))
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", enable_idempotence=True, linger_ms=0)
    consumer = AIOKafkaConsumer(
        RAW, bootstrap_servers=kafka.bootstrap, auto_offset_reset="latest", fetch_max_wait_ms=250
    )
    await producer.start()
    await consumer.start()
    for partition in consumer.assignment():
        await consumer.position(partition)  # known before the first record, which would be passed over
    floor = Floor(producer, consumer, entries, submitted("job-0", SystemClock().now()), entry)
    reading = asyncio.create_task(floor.read())
    try:
        yield floor
    finally:
        await ended(reading)
        await producer.stop()
        await consumer.stop()
        await client.close()


async def ended(task: asyncio.Task[None]) -> None:
    """End a task that reads for ever; what it failed with is told."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def compared(through: list[float], floor: list[float]) -> dict[str, float]:
    """Return p50 and p99 of both in milliseconds, and their ratios."""
    out: dict[str, float] = {"samples": len(through)}
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        mine, least = percentile(through, share), percentile(floor, share)
        out |= {
            f"{name}_ms": round(1000 * mine, 2),
            f"floor_{name}_ms": round(1000 * least, 2),
            f"{name}_ratio": round(mine / least, 2),
        }
    return out


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=6)
    given = parser.parse_args()
    setup_logging("error", "console")
    with tempfile.TemporaryDirectory(prefix="schedmate-bench-") as name:
        directory = Path(name)
        free = {"client": 0, "controller": 0}
        with KafkaServer(directory / "kafka", free) as kafka, MongoServer(directory / "mongo", {"client": 0}) as mongo:
            figures = asyncio.run(measure(kafka, mongo, directory, given.samples, given.rate, given.seconds))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
