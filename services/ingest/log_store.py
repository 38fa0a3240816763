"""Log chunks as blobs: taken in from the bus, merged, bounded per member, and read by byte range."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from schedmate.infra.blobs.port import Blobs
from schedmate.infra.clock import Clock
from schedmate.schemas.events import LogChunked
from schedmate.services.ingest import log_extents
from schedmate.services.ingest.log_extents import Extent, Read

_KNOWN_FOR_S: Final = 30.0
_KNOWN_LEN_MAX: Final = 1000
_READ_ROUNDS: Final = 3


@dataclass(slots=True)
class _Known:
    """What this instance knows of a member's extents; another may have written since, so it is looked up now and then."""

    extents: set[Extent]
    at: float


@dataclass(frozen=True, slots=True)
class LogBytes:
    """Bytes [start, end) of a member's output. `total` is how far it is known; `gaps` were passed over to get to `start`."""

    start: int
    end: int
    total: int
    content: bytes
    gaps: tuple[tuple[int, int], ...]
    missing: bool


class LogStore:
    """Output of run members, kept within `member_bytes_max` each: its head, and its newest part."""

    def __init__(self, blobs: Blobs, clock: Clock, *, member_bytes_max: int) -> None:
        self._blobs = blobs
        self._clock = clock
        self._member_bytes_max = member_bytes_max
        self._merged_bytes_max = min(log_extents.MERGED_BYTES_MAX, member_bytes_max // 8)  # parts of the bound can go
        self._known: OrderedDict[tuple[str, int], _Known] = OrderedDict()

    async def add(self, chunk: LogChunked) -> bool:
        """Take in a chunk; False when all of it was here already. Chunks of one member come one after another.

        Raises:
            BlobError: the blob store did not take it; the same chunk may be added again.
        """
        if chunk.end <= chunk.start:
            return False
        known = await self._extents(chunk.run_id, chunk.member)
        extent = Extent(chunk.start, chunk.end, chunk.gap or len(chunk.content) != chunk.end - chunk.start)
        covering = known.extents if extent.gap else {e for e in known.extents if not e.gap}
        if log_extents.is_covered(covering, chunk.start, chunk.end):
            return False
        await self._put(chunk.run_id, chunk.member, known, extent, b"" if extent.gap else chunk.content)
        await self._merge(chunk.run_id, chunk.member, known)
        await self._drop(chunk.run_id, chunk.member, known)
        return True

    async def read(self, run_id: str, member: int, offset: int, limit: int) -> LogBytes:
        """Return up to `limit` bytes from `offset`; a negative offset counts from the end."""
        for attempt in range(_READ_ROUNDS):
            extents = sorted(await self._listed(run_id, member))
            total = log_extents.end_of(extents)
            begin = offset if offset >= 0 else max(0, total + offset)
            plan = log_extents.plan(extents, begin, limit)
            content = await self._content(run_id, member, plan)
            if content is not None:
                return LogBytes(plan.start, plan.end, total, content, plan.gaps, plan.missing)
            if attempt == _READ_ROUNDS - 1:
                break
        # extents were merged or dropped under the reader each time: let it ask again
        return LogBytes(begin, begin, total, b"", (), missing=True)

    async def next_known(self, run_id: str, member: int, offset: int) -> int | None:
        """Return where output goes on after a hole at `offset`, or None."""
        return log_extents.next_known(await self._listed(run_id, member), offset)

    async def _content(self, run_id: str, member: int, plan: Read) -> bytes | None:
        parts: list[bytes] = []
        for piece in plan.pieces:
            blob = await self._blobs.get(log_extents.address(run_id, member, piece.extent))
            if blob is None:
                return None
            parts.append(blob[piece.start - piece.extent.start : piece.end - piece.extent.start])
        return b"".join(parts)

    # --- keeping ------------------------------------------------------------------------------------------------------

    async def _extents(self, run_id: str, member: int) -> _Known:
        key = (run_id, member)
        now = self._clock.monotonic()
        known = self._known.pop(key, None)
        if known is None or now - known.at > _KNOWN_FOR_S:
            known = _Known(await self._listed(run_id, member), now)
        self._known[key] = known
        if len(self._known) > _KNOWN_LEN_MAX:
            self._known.popitem(last=False)
        return known

    async def _listed(self, run_id: str, member: int) -> set[Extent]:
        found = [log_extents.parse(i.address) async for i in self._blobs.list(log_extents.prefix(run_id, member))]
        return {extent for extent in found if extent is not None}

    async def _put(self, run_id: str, member: int, known: _Known, extent: Extent, content: bytes) -> None:
        await self._blobs.put(log_extents.address(run_id, member, extent), content)
        known.extents.add(extent)

    async def _remove(self, run_id: str, member: int, known: _Known, extent: Extent) -> None:
        await self._blobs.delete(log_extents.address(run_id, member, extent))
        known.extents.discard(extent)

    async def _merge(self, run_id: str, member: int, known: _Known) -> None:
        row = log_extents.to_merge(sorted(known.extents), self._merged_bytes_max)
        if not row:
            return
        parts = [await self._blobs.get(log_extents.address(run_id, member, extent)) for extent in row]
        if any(part is None for part in parts):
            self._known.pop((run_id, member), None)  # another instance was here: look again the next time
            return
        merged = Extent(row[0].start, row[-1].end)
        await self._put(run_id, member, known, merged, b"".join(part for part in parts if part is not None))
        for extent in row:
            if extent != merged:
                await self._remove(run_id, member, known, extent)

    async def _drop(self, run_id: str, member: int, known: _Known) -> None:
        """Let go of what is beyond the bound, the gap in its place first, so that a reader is never left waiting."""
        for extent in log_extents.to_drop(sorted(known.extents), self._member_bytes_max):
            beside = [e for e in known.extents if e.gap and (e.end == extent.start or e.start == extent.end)]
            start = min([extent.start, *(e.start for e in beside)])
            end = max([extent.end, *(e.end for e in beside)])
            await self._put(run_id, member, known, Extent(start, end, gap=True), b"")
            for gone in [extent, *beside]:
                await self._remove(run_id, member, known, gone)
