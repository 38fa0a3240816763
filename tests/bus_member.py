"""A member of a consumer group as a process of its own, to be killed: `python -m tests.bus_member BUS GROUP TOPIC FILE`.

It writes a line `key number` for each event that it handles, flushed before the event counts as done.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.bus.port import EventBus
from schedmate.infra.bus.sqlite import SqliteBus
from schedmate.infra.clock import SystemClock, SystemRandom
from schedmate.infra.runner import GroupRunner
from schedmate.schemas.events import Event, JobCancelRequested
from schedmate.schemas.wire import Envelope


def bus_at(address: str) -> EventBus:
    """The bus at `kafka://HOST:PORT` or `sqlite:FILE`."""
    if address.startswith("kafka://"):
        return KafkaBus(address.removeprefix("kafka://"), SystemClock(), client_id="bus-member")
    return SqliteBus(Path(address.removeprefix("sqlite:")), SystemClock())


def numbered(job: str, number: int) -> Envelope[JobCancelRequested]:
    """An event on `schedmate.commands` that carries a number."""
    event = JobCancelRequested(job_id=job, pool="default", requested_by="test", why=str(number))
    return Envelope(id=f"{job}-{number}", source="schedmate/test", time=1.0, event=event)


def handled(path: Path) -> list[tuple[str, int]]:
    """What members that write to `path` have handled; a line that a kill cut off does not count."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [(key, int(number)) for key, number in (line.split() for line in whole.splitlines())]


async def main(arguments: Sequence[str]) -> None:
    """Consume until SIGTERM."""
    address, group, topic, path = arguments
    bus = bus_at(address)
    await bus.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Path(path).open("a") as lines:  # noqa: ASYNC230 - a line is written at once

        async def handler(envelope: Envelope[Event]) -> Sequence[Envelope[Event]]:
            assert isinstance(envelope.event, JobCancelRequested)
            await asyncio.sleep(0.002)  # so that a kill finds some in the middle
            lines.write(f"{envelope.event.job_id} {envelope.event.why}\n")
            lines.flush()
            return ()

        runner = GroupRunner(
            bus,
            group=group,
            topics=[topic],
            handler=handler,
            service="tester",
            clock=SystemClock(),
            random=SystemRandom(),
        )
        await runner.run(stop)
    await bus.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
