"""The least rights of each service: what its principal may do on topics, groups and collections, and nothing else.

Topics follow from `schemas.events` (one writer a topic); collections stand here, one line each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import READERS, WRITERS

DEAD_LETTERS: Final = "schedmate.dead-letters"
ASSIGNMENTS: Final = "schedmate.assignments"
CHANGELOG: Final = "schedmate.log-monitor-tracker-changelog"
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "ingest": ("ingest-requests", "ingest-view-*"),  # the read model's group is new with each rebuilding
    "code-analyzer": ("schedmate.code-analyzer",),
    "history-estimator": ("schedmate.history-estimator",),
    "log-monitor": ("schedmate.log-monitor",),
}
"""Consumer groups of the services that have some; `*` ends a prefix. The dispatcher and the workers belong to none."""


@dataclass(frozen=True, slots=True)
class CollectionRights:
    """Who may write a collection (and so read it), and who may only read it."""

    writers: tuple[str, ...]
    readers: tuple[str, ...] = ()


COLLECTION_RIGHTS: Final[dict[str, CollectionRights]] = {
    "jobs": CollectionRights(("ingest",)),
    "views": CollectionRights(("ingest",)),
    "node_views": CollectionRights(("ingest",)),
    "view_offsets": CollectionRights(("ingest",)),
    "dead_letters": CollectionRights(("ingest",)),
    "tokens": CollectionRights(("ingest",)),
    "tenants": CollectionRights(("ingest",)),
    "analyses": CollectionRights(("code-analyzer",)),
    "history": CollectionRights(("history-estimator",)),
    "pool_log": CollectionRights(("dispatcher",)),
    "pool_snapshots": CollectionRights(("dispatcher",)),
    "pool_leases": CollectionRights(("dispatcher",), ("ingest",)),
    "pool_published": CollectionRights(("dispatcher",)),
    "pool_config": CollectionRights(("dispatcher",), ("ingest",)),
    "trackers": CollectionRights(("log-monitor",)),
    "node_failures": CollectionRights(("log-monitor",)),
    "past_failures": CollectionRights(("log-monitor",)),
}


def topics_read_by(service: str) -> list[str]:
    """Return the topics that a service may read, log-monitor's changelog included."""
    own = [CHANGELOG] if service == "log-monitor" else []
    return [topic for topic, readers in READERS.items() if service in readers] + own


def topics_written_by(service: str) -> list[str]:
    """Return the topics that a service may write. Whoever reads may have to dead-letter what it reads."""
    written = [topic for topic, writer in WRITERS.items() if writer == service]
    if topics_read_by(service):
        written.append(DEAD_LETTERS)
    if service == "log-monitor":
        written.append(CHANGELOG)
    return written


def topics_resent_to_by(service: str) -> list[str]:
    """Return the topics that a service may write beside its own, to send dead letters back where they came from.

    Never `assignments` (protocol §8): the leader makes good from the next full node report what a worker missed.
    """
    if service != "ingest":
        return []
    return [topic for topic in WRITERS if topic not in topics_written_by(service) and topic != ASSIGNMENTS]


def groups_of(service: str) -> list[str]:
    """Return the consumer groups that a service may join."""
    return list(GROUPS.get(service, ()))
