"""Who leads a pool: the lease document, its terms, and a standby's patience (protocol §1).

Wall clocks are never compared: a holder makes the document change, a standby watches on its own monotonic clock how long
it did not. The lease only decides who tries; the append decides who leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Document, DuplicateKeyError, Store

LEASES: Final = "pool_leases"


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that we hold: its term, and the document's version that we wrote last."""

    term: int
    version: int
    beat: int


class PoolLease:
    """The lease document of one pool, as one dispatcher sees it."""

    def __init__(self, store: Store, pool: str, holder: str, address: str, lease_s: float, clock: Clock) -> None:
        self._store = store
        self._pool = pool
        self._holder = holder
        self._address = address
        self._lease_s = lease_s
        self._clock = clock
        self._seen: tuple[int, float] | None = None  # version and when we saw it first, monotonic

    async def try_take(self) -> Held | None:
        """Take the lease if nobody has it, or if it stood still for the lease; None when it is somebody's."""
        found = await self._store.get(LEASES, self._pool)
        if found is None:
            body = self._body(term=1, beat=0)
            try:
                await self._store.insert(LEASES, self._pool, body)
            except DuplicateKeyError:
                return None
            return Held(1, 1, 0)
        if not found.body.get("released") and not self._stood_still(found):
            return None
        term = int(found.body["term"]) + 1
        if not await self._store.replace(LEASES, self._pool, self._body(term=term, beat=0), version=found.version):
            self._seen = None
            return None
        self._seen = None
        return Held(term, found.version + 1, 0)

    def _stood_still(self, found: Document) -> bool:
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != found.version:
            self._seen = (found.version, now)
            return False
        return now - self._seen[1] >= self._lease_s

    async def renew(self, held: Held) -> Held | None:
        """Make the document change; None when somebody else took it."""
        body = self._body(term=held.term, beat=held.beat + 1)
        if await self._store.replace(LEASES, self._pool, body, version=held.version):
            return Held(held.term, held.version + 1, held.beat + 1)
        found = await self._store.get(LEASES, self._pool)  # a renewal whose acknowledgement was lost is still ours
        if found is not None and found.body["holder"] == self._holder and found.body["term"] == held.term:
            return Held(held.term, found.version, int(found.body["beat"]))
        return None

    async def release(self, held: Held) -> None:
        """Let a standby take over at once; if somebody took it already, so be it."""
        body = self._body(term=held.term, beat=held.beat + 1) | {"released": True}
        await self._store.replace(LEASES, self._pool, body, version=held.version)

    def _body(self, *, term: int, beat: int) -> dict[str, Any]:
        return {"holder": self._holder, "term": term, "beat": beat, "address": self._address, "released": False}
