"""Deciding a pool's log again: the same core on the same inputs must come to the same decisions, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from schedmate.infra.store.port import Store
from schedmate.services.dispatcher.core import decisions as decision_values
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import CORE_VERSION, PoolState
from schedmate.services.dispatcher.core.step import step
from schedmate.services.dispatcher.log import Entry, PoolLog


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a replay decided otherwise."""

    seq: int
    index: int
    recorded: str | None
    replayed: str | None
    core_version: str

    def __str__(self) -> str:
        """Return the difference in words."""
        other = (
            f" (recorded by core {self.core_version}, replayed by {CORE_VERSION})"
            if self.core_version != CORE_VERSION
            else ""
        )
        return f"entry {self.seq}, decision {self.index}{other}: recorded {self.recorded}, replayed {self.replayed}"


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to. `other_versions` are those of the cores that recorded entries, where they are not ours."""

    entries: int
    decisions: int
    difference: Difference | None
    other_versions: tuple[str, ...] = ()


async def replay(store: Store, pool: str) -> Replay:
    """Decide every entry of a pool's log again, from its beginning, and stop at the first difference."""
    state = PoolState(pool, PoolConfig(), policy_named(PoolConfig().policy))
    entries = decisions = 0
    others: dict[str, None] = {}
    async for entry in PoolLog(store, pool).entries(-1):
        if entry.core_version != CORE_VERSION:
            others[entry.core_version] = None
        difference = _compare(state, entry)
        if difference is not None:
            return Replay(entries, decisions, difference, tuple(others))
        entries += 1
        decisions += len(entry.decisions)
    return Replay(entries, decisions, None, tuple(others))


def _compare(state: PoolState, entry: Entry) -> Difference | None:
    """Step once; inputs that were refused stay out, so that one that broke an older core breaks nothing here."""
    assert entry.seq == state.seq + 1, f"the log of {entry.pool} lacks entry {state.seq + 1}"
    done = step(state, [value for n, value in enumerate(entry.inputs) if n not in entry.refused], entry.at)
    recorded = [canonical_text(d) for d in entry.decisions]
    replayed = [canonical_text(d) for d in done.decisions]
    if entry.core_version == CORE_VERSION:  # an older core's entries record no weights
        recorded += _weights(entry.trust)
        replayed += _weights(done.trust)
    for index in range(max(len(recorded), len(replayed))):
        mine = recorded[index] if index < len(recorded) else None
        other = replayed[index] if index < len(replayed) else None
        if mine != other:
            return Difference(entry.seq, index, mine, other, entry.core_version)
    return None


def _weights(trust: Mapping[str, float]) -> list[str]:
    """Return the weights that changed as bytes are compared, after the decisions."""
    return [
        json.dumps({"kind": "trust", "source": b, "weight": w}, sort_keys=True, separators=(",", ":"))
        for b, w in trust.items()
    ]


def canonical_text(decision: decision_values.Decision) -> str:
    """Return a decision as bytes are compared: JSON with sorted keys."""
    return json.dumps(decision_values.to_json(decision), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
