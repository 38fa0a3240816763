"""Jobs a second of a whole dispatcher in memory: decode, fold, decide, encode, append and publish, with no broker and no disk.

    python benchmarks/throughput.py [--jobs 3000] [--nodes 64] [--gpus 8]

One process, one thread. Each job is submitted, placed, started, exits 0 and is released. The events of ingest and of the nodes are made
by the benchmark itself; its own CPU time is measured and taken off: `jobs_per_s` is the dispatcher's, `jobs_per_s_with_players` is all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from playing import reported, run_of, submitted

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.port import Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.telemetry.logs import setup_logging
from schedmate.schemas.codec import decode
from schedmate.schemas.events import JobSucceeded, MemberAssigned
from schedmate.schemas.topology import topology
from schedmate.services.dispatcher.settings import DispatcherSettings
from schedmate.services.dispatcher.wiring import build

OUTSTANDING_MAX = 2000


class Players:
    """Ingest and all nodes, and what they cost."""

    def __init__(self, bus: MemoryBus, jobs: int) -> None:
        self.cpu_s = 0.0
        self.ended = 0
        self._bus = bus
        self._jobs = jobs
        self._submitted = 0

    async def play(self) -> None:
        """Submit jobs as others end, and run what is assigned, until all have succeeded."""
        topics = ("schedmate.assignments", "schedmate.decisions")
        reader = self._bus.reader({Partition(t, n): 0 for t in topics for n in range(topology().topics[t].partitions)})
        await reader.start()
        while self.ended < self._jobs:
            began = time.process_time()
            records = []
            while self._submitted < min(self._jobs, self.ended + OUTSTANDING_MAX):
                records.append(submitted(f"job-{self._submitted}", time.time()))
                self._submitted += 1
            self.cpu_s += time.process_time() - began
            if records:
                await self._bus.publish(records)
            deliveries = await reader.poll(500, 0.05)
            began = time.process_time()
            records = []
            for delivery in deliveries:
                kind = delivery.record.header("ce_type")
                if kind == JobSucceeded.ce_type().encode():
                    self.ended += 1
                elif kind == MemberAssigned.ce_type().encode():
                    records += run_of(decode(delivery.record).event, time.time())  # type: ignore[arg-type]
            self.cpu_s += time.process_time() - began
            if records:
                await self._bus.publish(records)
        await reader.stop()


async def measure(jobs: int, nodes: int, gpus: int) -> dict[str, float]:
    """Return jobs a second, with and without what the players cost."""
    clock = SystemClock()
    bus, store = MemoryBus(clock), MemoryStore()
    await bus.start()
    await bus.create_topics(topology().topics.values())
    await store.start()
    await store.setup(topology().collections.values())
    await bus.publish([reported(f"n{n}", gpus, clock.now()) for n in range(nodes)])
    dispatcher = build(DispatcherSettings(instance="bench"), bus=bus, store=store, clock=clock)
    await dispatcher.start()
    stop = asyncio.Event()
    running = asyncio.create_task(dispatcher.run(stop))
    players = Players(bus, jobs)
    began, began_cpu = time.perf_counter(), time.process_time()
    await asyncio.wait_for(players.play(), 300)
    took, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    stop.set()
    await running
    await dispatcher.close()
    return {
        "jobs": jobs,
        "jobs_per_s": round(jobs / (cpu_s - players.cpu_s), 1),
        "jobs_per_s_with_players": round(jobs / cpu_s, 1),
        "wall_s": round(took, 2),
        "cpu_ms_per_job": round(1000 * (cpu_s - players.cpu_s) / jobs, 3),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8)
    given = parser.parse_args()
    setup_logging("error", "console")
    print(json.dumps(asyncio.run(measure(given.jobs, given.nodes, given.gpus)), indent=2))


if __name__ == "__main__":
    main()
