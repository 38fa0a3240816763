"""The waiting jobs of a pool, in the policy's order, by kind.

Jobs that ask for the same (GPUs, nodes, type, memory) under the same limits are of one kind: when the first of them does not
fit, none does. A pass over the queue therefore looks at one job a kind, however many wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

Kind = tuple[int, int, str | None, int, str | None, tuple[str, ...], tuple[Any, ...]]
"""GPUs per node, nodes, GPU type, least GPU memory (MiB), tenant where it has a limit, nodes to avoid, what else sets it apart."""
Key = tuple[Any, ...]


class WaitingQueue:
    """Sorted lists of (key, job id), one a kind."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, list[tuple[Key, str]]] = {}
        self.changed = True

    @property
    def empty(self) -> bool:
        """Does nobody wait?"""
        return not self._kinds

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._kinds.values())

    def add(self, kind: Kind, key: Key, job: str) -> None:
        """Put a job where its key belongs."""
        insort(self._kinds.setdefault(kind, []), (key, job))
        self.changed = True

    def remove(self, kind: Kind, key: Key, job: str) -> None:
        """Take a job out."""
        entries = self._kinds[kind]
        at = 0 if entries[0][1] == job else bisect_left(entries, (key, job))
        assert entries[at][1] == job, "the queue lost a job"
        del entries[at]
        if not entries:
            del self._kinds[kind]
        self.changed = True  # whoever it held back may go now

    def heads(self) -> list[tuple[Key, str, Kind]]:
        """Return the first job of each kind as a heap; keys are unique, so kinds are never compared."""
        heap = [(*entries[0], kind) for kind, entries in self._kinds.items()]
        if len(heap) > 1:
            heapify(heap)
        return heap

    def counts(self) -> list[tuple[Kind, int]]:
        """Return how many jobs of each kind wait."""
        return [(kind, len(entries)) for kind, entries in self._kinds.items()]

    def first(self) -> tuple[Key, str] | None:
        """Return the first job of all, with its key."""
        return min((entries[0] for entries in self._kinds.values()), default=None)

    def kinds(self) -> list[Kind]:
        """Return the kinds that wait, in the order of their first jobs."""
        return sorted(self._kinds, key=lambda kind: self._kinds[kind][0])

    def first_of(self, kind: Kind, most: int) -> list[str]:
        """Return the first jobs of a kind."""
        return [job for _, job in self._kinds.get(kind, [])[:most]]

    def head_of(self, kind: Kind) -> tuple[Key, str, Kind] | None:
        """Return the first job of a kind."""
        entries = self._kinds.get(kind)
        return (*entries[0], kind) if entries else None

    def in_order(self) -> Iterator[tuple[str, Kind]]:
        """Yield (job, kind) in the policy's order over all kinds."""
        heap = [(entries[0], 0, kind) for kind, entries in self._kinds.items()]
        heapify(heap)
        while heap:
            (_, job), at, kind = heappop(heap)
            yield job, kind
            entries = self._kinds[kind]
            if at + 1 < len(entries):
                heappush(heap, (entries[at + 1], at + 1, kind))
