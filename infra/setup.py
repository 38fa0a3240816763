"""`schedmate setup`: topics and collections, made before any client touches them; idempotent."""

from __future__ import annotations

from schedmate.infra.bus.port import EventBus
from schedmate.infra.store.port import Store
from schedmate.schemas.topology import topology


async def setup(bus: EventBus, store: Store) -> None:
    """Create every topic and every collection of the topology file on a started bus and store.

    Raises:
        TopologyMismatchError: a topic has another number of partitions.
        StoreError: the server's settings are too weak for durable writes.
    """
    await store.setup(topology().collections.values())
    await bus.create_topics(topology().topics.values())
