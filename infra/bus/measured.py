"""Counts what every adapter publishes and what fails, for the service that the current context runs for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from schedmate.infra.bus.port import BusError, Written
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import count
from schedmate.schemas.wire import Record

Publish = TypeVar("Publish", bound=Callable[..., Coroutine[Any, Any, Sequence[Written]]])


def measured(publish: Publish) -> Publish:
    """Wrap an adapter's `publish`."""

    @wraps(publish)
    async def counting(bus: object, records: Sequence[Record]) -> Sequence[Written]:
        try:
            written = await publish(bus, records)
        except BusError as error:
            count(names.BUS_ERRORS, error=type(error).__name__)
            raise
        for topic, published in Counter(record.topic for record in records).items():
            count(names.BUS_PUBLISHED, published, topic=topic)
        return written

    return cast("Publish", counting)
