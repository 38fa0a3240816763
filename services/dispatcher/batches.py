"""Batches: what goes into one entry, how far it reads, and which input of it breaks the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedmate.infra.bus.port import Partition
from schedmate.schemas.wire import Delivery
from schedmate.services.dispatcher.core.inputs import Input
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import CorePoisonedError, step


def slices(deliveries: Sequence[Delivery], bytes_max: int) -> list[list[Delivery]]:
    """Cut a batch so that no piece has more than so many bytes (or it is one record)."""
    out: list[list[Delivery]] = []
    size = 0
    for delivery in deliveries:
        length = len(delivery.record.value)
        if not out or size + length > bytes_max:
            out.append([])
            size = 0
        out[-1].append(delivery)
        size += length
    return out


def vector(offsets: Mapping[Partition, int]) -> dict[str, list[int]]:
    """Return offsets as lists by topic."""
    out: dict[str, list[int]] = {}
    for partition in sorted(offsets):
        out.setdefault(partition.topic, []).append(offsets[partition])
    return out


def by_partition(offsets: Mapping[str, list[int]]) -> dict[Partition, int]:
    """Return offsets by partition: the other way round."""
    return {Partition(topic, number): offset for topic, nexts in offsets.items() for number, offset in enumerate(nexts)}


def poison_among(state: PoolState, inputs: Sequence[Input], now: float) -> list[Input]:
    """Return the inputs without which the step goes through: each that breaks it together with those before that did not."""
    body = state.to_json()
    kept: list[Input] = []
    broke: list[Input] = []
    for value in inputs:
        try:
            step(PoolState.from_json(body, policy_named), [*kept, value], now)
        except CorePoisonedError:
            broke.append(value)
        else:
            kept.append(value)
    return broke
