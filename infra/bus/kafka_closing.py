"""Closing aiokafka's clients for certain, within a bound, whatever the broker does meanwhile.

In aiokafka 0.14 `stop` may wait for a broker that is away, and may let the cancellation of one of its own tasks escape as if
the caller had been cancelled; both leave tasks and sockets behind. So `stop` runs in a task of its own, and where it did not
come to its end the client's own tasks are cancelled and its connections closed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from aiokafka.admin import AIOKafkaAdminClient

STOP_S: Final = 5.0
_CANCELLED_WITHIN_S: Final = 1.0
_COORDINATOR_TASKS: Final = ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task")


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group, if the broker answers, and close."""
    if await _came_to_its_end(consumer.stop):
        return
    coordinator, fetcher = consumer._coordinator, consumer._fetcher  # noqa: SLF001 - there is no other way to them
    left = [getattr(coordinator, name, None) for name in _COORDINATOR_TASKS]
    if fetcher is not None:
        left += [fetcher._fetch_task, *fetcher._pending_tasks]  # noqa: SLF001
    await _cancel(left)
    await _came_to_its_end(consumer._client.close)  # noqa: SLF001


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Flush, if the broker answers, and close."""
    if await _came_to_its_end(producer.stop):
        return
    await _cancel([producer._sender.sender_task])  # noqa: SLF001
    accumulator = producer._message_accumulator  # noqa: SLF001
    queued = [batch for batches in accumulator._batches.values() for batch in batches]  # noqa: SLF001
    accumulator._pending_batches.update(queued)  # noqa: SLF001 - where it looks for a batch that has ended
    accumulator.fail_all(errors.ProducerClosed())  # or its flush waits for ever
    await _came_to_its_end(producer.client.close)


async def close_admin(admin: AIOKafkaAdminClient) -> None:
    """Close."""
    await _came_to_its_end(admin.close)


async def _came_to_its_end(close: Callable[[], Awaitable[object]]) -> bool:
    task = asyncio.ensure_future(close())
    try:
        done, _ = await asyncio.wait({task}, timeout=STOP_S)
    finally:
        if not task.done():
            await _cancel([task])
    return bool(done) and not task.cancelled() and task.exception() is None


async def _cancel(tasks: Iterable[asyncio.Future[Any] | None]) -> None:
    waited = {task for task in tasks if task is not None and not task.done()}
    for task in waited:
        task.cancel()
    if waited:
        await asyncio.wait(waited, timeout=_CANCELLED_WITHIN_S)
    for task in waited:
        if task.done() and not task.cancelled():
            task.exception()  # looked at: nobody else will
