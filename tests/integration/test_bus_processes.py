"""Members of a group as processes that are killed, paused and stopped: on SQLite, and on the real Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schedmate.infra.bus.port import EventBus, Partition
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SystemClock
from schedmate.schemas.codec import encode
from schedmate.schemas.topology import topology
from tests.bus_member import bus_at, handled, numbered
from tests.servers import OWN_KAFKA, KafkaServer
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TOPIC = "schedmate.commands"
KEYS = 24


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.servers)])
def address(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'bus.db'}"
        return
    with KafkaServer(tmp_path / "kafka", OWN_KAFKA) as kafka:
        yield kafka.address


@pytest.fixture
async def bus(address: str) -> AsyncIterator[EventBus]:
    made = bus_at(address)
    await made.start()
    await made.create_topics(topology().topics.values())
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def member(address: str, file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bus_member", address, "g", TOPIC, str(file), cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"}, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def publish(bus: EventBus, start: int, count: int) -> None:
    for first in range(start, start + count, 50):
        await bus.publish([encode(numbered(f"job-{n % KEYS}", n)) for n in range(first, first + 50)])


def assert_complete(lines: list[tuple[str, int]], count: int) -> None:
    """Everything was handled, and of each key the first time of each in order."""
    assert {number for _, number in lines} == set(range(count))
    first_seen: dict[str, list[int]] = defaultdict(list)
    for key, number in lines:
        if number not in first_seen[key]:
            first_seen[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in first_seen.values())


async def test_a_member_killed_in_the_middle_loses_nothing(address: str, bus: EventBus, tmp_path: Path) -> None:
    lines = tmp_path / "handled"
    async with member(address, lines) as first, member(address, lines):
        await publish(bus, 0, 600)
        await eventually(lambda: len(handled(lines)) > 100, 30)
        first.kill()
        await first.wait()
        await publish(bus, 600, 200)
        await eventually(lambda: len({n for _, n in handled(lines)}) == 800, 40)
    assert_complete(handled(lines), 800)


async def test_a_member_told_to_stop_drains_commits_and_doubles_nothing(
    address: str, bus: EventBus, tmp_path: Path
) -> None:
    lines = tmp_path / "handled"
    async with member(address, lines) as first, member(address, lines) as second:
        await publish(bus, 0, 400)
        await eventually(lambda: len(handled(lines)) > 50, 30)
        first.terminate()
        assert await asyncio.wait_for(first.wait(), 20) == 0
        await publish(bus, 400, 100)
        await eventually(lambda: len({n for _, n in handled(lines)}) == 500, 40)
        second.terminate()
        assert await asyncio.wait_for(second.wait(), 20) == 0
    assert_complete(handled(lines), 500)
    assert len(handled(lines)) == 500, "an orderly hand-over handles nothing twice"


@pytest.mark.slow
async def test_a_member_paused_for_longer_than_its_session_is_replaced_and_joins_again(
    address: str, bus: EventBus, tmp_path: Path
) -> None:
    lines = [tmp_path / "first", tmp_path / "second"]

    published = 0

    def numbers() -> set[int]:
        return {n for file in lines for _, n in handled(file)}

    async def more() -> None:
        nonlocal published
        await publish(bus, published, 50)
        published += 50
        await eventually(lambda: numbers() == set(range(published)), 40, f"{published} handled")

    async def more_until_both_work(before: tuple[int, int]) -> None:
        async with asyncio.timeout(60):
            while not all(len(handled(file)) > count for file, count in zip(lines, before, strict=True)):
                await more()

    async with member(address, lines[0]) as first, member(address, lines[1]):
        await more_until_both_work((0, 0))
        first.send_signal(signal.SIGSTOP)
        await more()  # its share comes to the other one when its session has ended
        first.send_signal(signal.SIGCONT)
        await more_until_both_work((len(handled(lines[0])) + 50, 0))  # some of it may still have been in its hands
    assert numbers() == set(range(max(numbers()) + 1))


async def test_what_sqlite_acknowledged_outlives_kill_9_of_the_publisher(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    program = (
        "import asyncio, sys\n"
        "from tests.bus_member import bus_at, numbered\n"
        "from schedmate.schemas.codec import encode\n"
        "from schedmate.schemas.topology import topology\n"
        "async def main():\n"
        "    bus = bus_at('sqlite:' + sys.argv[1])\n"
        "    await bus.start()\n"
        "    await bus.create_topics(topology().topics.values())\n"
        "    n = 0\n"
        "    while True:\n"
        "        await bus.publish([encode(numbered('job', n)), encode(numbered('job', n + 1))])\n"
        "        n += 2\n"
        "        print(n, flush=True)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    acknowledged = 0
    async with asyncio.timeout(30):
        while acknowledged < 100:
            acknowledged = int(await process.stdout.readline())
        process.kill()
        rest = (await process.stdout.read()).split()
        await process.wait()
    acknowledged = int(rest[-1]) if rest else acknowledged
    async with started(path) as bus:
        number = (await bus.publish([encode(numbered("job", -1))]))[0]
        assert number.offset in {acknowledged, acknowledged + 2}, "whole batches, and all that were acknowledged"
        reader = bus.reader({number.partition: 0})
        await reader.start()
        found = await reader.poll(10_000, 1)
        assert [d.offset for d in found] == list(range(number.offset + 1))
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_another_process_s_records_wake_a_poll_within_a_fraction_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    async with started(path) as one, started(path) as other:  # two connections: nothing is shared but the file
        await one.create_topics(topology().topics.values())
        partitions = {Partition(TOPIC, n): 0 for n in range(8)}
        reader = one.reader(partitions)
        await reader.start()
        waiting = asyncio.ensure_future(reader.poll(10, 10))
        await eventually(lambda: one.file._waiters)
        loop = asyncio.get_running_loop()
        before = loop.time()
        await other.publish([encode(numbered("job", 1))])
        assert len(await waiting) == 1
        assert loop.time() - before < 1


@contextlib.asynccontextmanager
async def started(path: Path) -> AsyncIterator[SqliteBus]:
    bus = SqliteBus(path, SystemClock())
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()
