"""What the embedded bus must carry for a demo, as a floor far below what is measured (15,000/s in batches of 100)."""

from __future__ import annotations

import time
from pathlib import Path

from schedmate.infra.bus.port import Partition
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SystemClock
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Record

RECORDS = 3000
FLOOR_PER_S = 2000


async def test_sqlite_publishes_and_reads_thousands_of_records_a_second(tmp_path: Path) -> None:
    bus = SqliteBus(tmp_path / "bus.db", SystemClock())
    await bus.start()
    await bus.create_topics([Topic("t", 8, 3600, "delete", 1_000_000)])
    records = [Record("t", b"job-%d" % (n % 50), b"x" * 400, (("ce_id", b"i" * 36),) * 8) for n in range(RECORDS)]
    began = time.perf_counter()
    for start in range(0, RECORDS, 100):
        await bus.publish(records[start : start + 100])
    published_s = time.perf_counter() - began
    reader = bus.reader({Partition("t", n): 0 for n in range(8)})
    await reader.start()
    began, count = time.perf_counter(), 0
    while count < RECORDS:
        count += len(await reader.poll(500, 1))
    read_s = time.perf_counter() - began
    await bus.stop()
    rates = {"published": RECORDS / published_s, "read": RECORDS / read_s}
    assert min(rates.values()) > FLOOR_PER_S, rates
