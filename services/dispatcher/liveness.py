"""When is a node lost? The leader's own count (protocol §3).

Silence counts only over time in which this leader led, was connected and stood at the end of `nodes`: a takeover or an outage of
the bus restarts the count, so neither makes a node lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MARGIN_RATIO: Final = 0.02  # two clocks that count the same lease may differ by so much


@dataclass(slots=True)
class _Watched:
    session: int
    lease_s: float
    silent_s: float = 0.0
    told: bool = False
    is_fresh: bool = True  # read since the end was reached last: what passed before the reading is no silence


class NodeLiveness:
    """Counts the silence of each node. All times come in from outside."""

    def __init__(self, margin_s: float, step_max_s: float) -> None:
        """`step_max_s` bounds what one observation may add: a leader that slept has not watched."""
        self._margin_s = margin_s
        self._step_max_s = step_max_s
        self._nodes: dict[str, _Watched] = {}
        self._watched_from: float | None = None

    def reported(self, node: str, session: int, lease_s: float) -> None:
        """A report of the node was read; one of an earlier session than was read before says nothing about now."""
        known = self._nodes.get(node)
        if known is None or session >= known.session:
            self._nodes[node] = _Watched(session, lease_s)

    def expect(self, node: str, session: int, lease_s: float) -> None:
        """A node that the pool's state holds for alive: after a takeover it is watched from now on."""
        self._nodes.setdefault(node, _Watched(session, lease_s))

    def interrupted(self) -> None:
        """The bus or the store did not answer: nobody was watched, every count starts again."""
        self._watched_from = None
        for watched in self._nodes.values():
            watched.silent_s = 0.0

    def at_end(self, now: float) -> list[tuple[str, int]]:
        """The end of `nodes` has been reached at `now` (monotonic): return the (node, session) whose lease ran out."""
        before, self._watched_from = self._watched_from, now
        if before is None:
            return []
        passed = min(max(now - before, 0.0), self._step_max_s)
        lost = []
        for node, watched in self._nodes.items():
            if watched.is_fresh:
                watched.is_fresh = False
                continue
            watched.silent_s += passed
            margin_s = max(self._margin_s, watched.lease_s * _MARGIN_RATIO)
            if not watched.told and watched.silent_s > watched.lease_s + margin_s:
                watched.told = True
                lost.append((node, watched.session))
        return lost
