"""The pool's log in the store: appending is a compare-and-set on (pool, seq) (protocol §1)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schedmate.infra.store.port import DuplicateKeyError, Store, StoreUnavailableError
from schedmate.schemas.ids import derived
from schedmate.services.dispatcher.core import decisions as decision_values
from schedmate.services.dispatcher.core import inputs as input_values
from schedmate.services.dispatcher.core.decisions import Decision
from schedmate.services.dispatcher.core.inputs import Input
from schedmate.services.dispatcher.core.state import CORE_VERSION

ENTRIES: Final = "pool_log"
SNAPSHOTS: Final = "pool_snapshots"
PUBLISHED: Final = "pool_published"
SNAPSHOT_PART_BYTES: Final = 4 * 1024 * 1024
SNAPSHOTS_KEPT: Final = 2
_PAGE: Final = 200
_SEQ_END: Final = 10**12


class DeposedError(Exception):
    """Another dispatcher leads the pool: its entry stands where ours should, or its term is higher."""


class AppendCollisionError(Exception):
    """An entry of no higher term stands at this seq: recover from the log and decide again."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An input that the fold refused, with the record it came from, so that it can be dead-lettered from the log."""

    error: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    key: str = ""
    value: str = ""  # latin-1: one character a byte
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `offsets` maps a topic to the next offset of each partition; `bus` is the identity of the bus they belong to.

    `trust` has the sources of advice whose weight changed in it, and what it is from then on; a body without is read as none.
    """

    pool: str
    seq: int
    term: int
    at: float
    writer: str
    inputs: tuple[Input, ...]
    refused: Mapping[int, Refusal]
    offsets: Mapping[str, list[int]]
    bus: str
    decisions: tuple[Decision, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    core_version: str = CORE_VERSION
    trust: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Identity of this very entry: who wrote it, where, in which term."""
        return derived("entry", self.pool, self.seq, self.term, self.writer)

    def to_body(self) -> dict[str, Any]:
        """Return the document's body."""
        return {
            "entry_id": self.id,
            "pool": self.pool,
            "seq": self.seq,
            "term": self.term,
            "at": self.at,
            "writer": self.writer,
            "core_version": self.core_version,
            "config": dict(self.config),
            "inputs": [input_values.to_json(i) for i in self.inputs],
            "refused": {str(k): _refusal_to_json(v) for k, v in self.refused.items()},
            "offsets": dict(self.offsets),
            "bus": self.bus,
            "decisions": [decision_values.to_json(d) for d in self.decisions],
            **({"trust": dict(self.trust)} if self.trust else {}),
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Entry:
        """Return the entry of a document's body."""
        return cls(
            pool=body["pool"],
            seq=body["seq"],
            term=body["term"],
            at=body["at"],
            writer=body["writer"],
            inputs=tuple(input_values.from_json(i) for i in body["inputs"]),
            refused={int(k): _refusal_from_json(v) for k, v in body["refused"].items()},
            offsets={topic: list(nexts) for topic, nexts in body["offsets"].items()},
            bus=body["bus"],
            decisions=tuple(decision_values.from_json(d) for d in body["decisions"]),
            config=dict(body["config"]),
            core_version=body["core_version"],
            trust=dict(body.get("trust", {})),
        )


def _refusal_to_json(value: Refusal) -> dict[str, Any]:
    return {
        "error": value.error,
        "topic": value.topic,
        "partition": value.partition,
        "offset": value.offset,
        "key": value.key,
        "value": value.value,
        "headers": [list(h) for h in value.headers],
    }


def _refusal_from_json(value: Mapping[str, Any]) -> Refusal:
    return Refusal(**{**value, "headers": tuple((name, text) for name, text in value["headers"])})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pool's state after entry `seq`, with the offsets of that entry."""

    seq: int
    term: int
    offsets: Mapping[str, list[int]]
    bus: str
    state: dict[str, Any]


def entry_key(pool: str, seq: int) -> str:
    """Return the document id of an entry: unique by (pool, seq), ordered by seq."""
    return f"{pool}/{seq:012d}"


class PoolLog:
    """Entries, snapshots and the last published seq of one pool."""

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self.pool = pool

    async def append(self, entry: Entry) -> None:
        """Append an entry; when this returns it is durable and the only one at its seq.

        Raises:
            DeposedError: an entry of a higher term stands there.
            AppendCollisionError: an entry of no higher term, and not ours, stands there.
            StoreUnavailableError: the result is unknown and could not be read back.
        """
        try:
            await self._store.insert(ENTRIES, entry_key(self.pool, entry.seq), entry.to_body())
        except (DuplicateKeyError, StoreUnavailableError) as error:
            found = await self._store.get(ENTRIES, entry_key(self.pool, entry.seq))
            if found is None:
                if isinstance(error, DuplicateKeyError):
                    raise AppendCollisionError(f"seq {entry.seq} of {self.pool} was taken and is gone") from error
                raise
            if found.body["entry_id"] == entry.id:
                return
            if found.body["term"] > entry.term:
                raise DeposedError(f"{self.pool}: seq {entry.seq} belongs to term {found.body['term']}") from error
            raise AppendCollisionError(
                f"{self.pool}: seq {entry.seq} was written by {found.body['writer']} in term {found.body['term']}"
            ) from error

    async def entries(self, after: int, until: int = _SEQ_END) -> AsyncIterator[Entry]:
        """Yield entries with after < seq < until, in order."""
        low = after + 1
        while True:
            found = await self._store.scan(
                ENTRIES, low=entry_key(self.pool, low), high=entry_key(self.pool, until), limit=_PAGE
            )
            for document in found:
                yield Entry.from_body(document.body)
            if len(found) < _PAGE:
                return
            low = int(found[-1].body["seq"]) + 1

    async def save(self, snapshot: Snapshot) -> None:
        """Store a snapshot; it counts once its last part, the index, is written."""
        text = json.dumps(snapshot.state, separators=(",", ":"), ensure_ascii=False)
        parts = [text[i : i + SNAPSHOT_PART_BYTES] for i in range(0, len(text), SNAPSHOT_PART_BYTES)]
        for number, part in enumerate(parts):
            await self._store.put(SNAPSHOTS, f"{self.pool}/{snapshot.seq:012d}/{number:06d}", {"text": part})
        index = await self._store.get(SNAPSHOTS, f"{self.pool}/index")
        known: list[dict[str, Any]] = list(index.body["snapshots"]) if index is not None else []
        known = [k for k in known if k["seq"] != snapshot.seq]
        known.append(
            {
                "seq": snapshot.seq,
                "term": snapshot.term,
                "offsets": dict(snapshot.offsets),
                "bus": snapshot.bus,
                "parts": len(parts),
            }
        )
        known.sort(key=lambda k: k["seq"])
        dropped, kept = known[:-SNAPSHOTS_KEPT], known[-SNAPSHOTS_KEPT:]
        await self._store.put(SNAPSHOTS, f"{self.pool}/index", {"snapshots": kept})
        for old in dropped:
            for number in range(old["parts"]):
                await self._store.delete(SNAPSHOTS, f"{self.pool}/{old['seq']:012d}/{number:06d}")

    async def newest_snapshot(self, until: int = _SEQ_END) -> Snapshot | None:
        """Return the newest snapshot that is whole and not beyond the entry `until`, or None."""
        index = await self._store.get(SNAPSHOTS, f"{self.pool}/index")
        for known in reversed(index.body["snapshots"] if index is not None else []):
            if known["seq"] > until:
                continue
            keys = [f"{self.pool}/{known['seq']:012d}/{n:06d}" for n in range(known["parts"])]
            found = await self._store.get_many(SNAPSHOTS, keys)
            if len(found) == len(keys):
                state = json.loads("".join(str(found[k].body["text"]) for k in keys))
                return Snapshot(known["seq"], known["term"], known["offsets"], known["bus"], state)
        return None

    async def published(self) -> int:
        """Return the seq up to which everything was published, -1 when nothing was."""
        found = await self._store.get(PUBLISHED, self.pool)
        return int(found.body["seq"]) if found is not None else -1

    async def set_published(self, seq: int) -> None:
        """Remember that everything up to seq was published and acknowledged."""
        await self._store.put(PUBLISHED, self.pool, {"seq": seq})
