"""Following a job's output until its end, through holes, gaps and attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Json
from schedmate.schemas import ids
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.services.ingest import log_extents
from schedmate.services.ingest.log_store import LogBytes, LogStore
from schedmate.services.ingest.projection import View
from schedmate.services.ingest.read_model import ReadModel
from schedmate.services.ingest.streams import Streams, woken

READ_BYTES: Final = 64 * 1024
LATE_S: Final = 5.0
"""How long bytes that should still come are waited for after a run's end, before they are told as a gap."""
_TERMINAL: Final = frozenset(state.value for state in TERMINAL)
_OVER: Final = _TERMINAL | {JobState.QUEUED.value, JobState.DIAGNOSING.value}

Told = tuple[str, Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Whether a member's run is over, and the final length of its output where that is known."""

    over: bool
    log_bytes: int | None


def newest_attempt(view: View) -> int | None:
    """Return the newest attempt that has been assigned, or None before the first."""
    attempts = [int(a) for a in view.get("runs", {})]
    if view["attempt"] >= 1:
        attempts.append(view["attempt"])
    return max(attempts, default=None)


def run_end(view: View, attempt: int, member: int) -> RunEnd:
    """Return what the read model knows of a run's end."""
    run: Mapping[str, Any] = view.get("runs", {}).get(str(attempt), {})
    told: Mapping[str, Any] = run.get("members", {}).get(str(member), {})
    if told.get("ended_at") is not None:
        return RunEnd(over=True, log_bytes=told.get("log_bytes"))
    passed = view["attempt"] > attempt or (view["attempt"] == attempt and view["state"] in _OVER)
    return RunEnd(over=passed or view["state"] in _TERMINAL, log_bytes=None)


def text_of(read: LogBytes, limit: int, *, final: bool) -> tuple[str, int]:
    """Return the text of what was read and where it ends; a character is never cut while its rest may follow."""
    stopped_by_limit = read.end - read.start >= limit
    may_follow = stopped_by_limit or (read.end == read.total and not final)
    text, taken = log_extents.decode(read.content, more_may_follow=may_follow)
    return text, read.start + taken


@dataclass(slots=True)
class _Place:
    """Where a reader stands. `asked` is the attempt that it asked for, `current` the one that it is at."""

    job_id: str
    asked: int | None
    member: int
    offset: int
    since: float
    current: int | None = None
    ended: bool = False

    def end(self, state: str) -> Told:
        """Return the last thing to tell."""
        self.ended = True
        return "end", {"state": state, "attempt": self.current, "offset": max(0, self.offset)}


class Follower:
    """Tells a job's output as it comes: `attempt`, `log`, `gap`, at last `end`; None now and then, when there is nothing."""

    def __init__(
        self,
        read_model: ReadModel,
        logs: LogStore,
        streams: Streams,
        clock: Clock,
        *,
        poll_s: float,
        keep_alive_s: float,
    ) -> None:
        self._read_model = read_model
        self._logs = logs
        self._streams = streams
        self._clock = clock
        self._poll_s = poll_s
        self._keep_alive_s = keep_alive_s

    async def follow(self, job_id: str, attempt: int | None, member: int, offset: int) -> AsyncIterator[Told | None]:
        """Yield what there is to tell until the run's end; without an attempt, until the job's end through all of them."""
        place = _Place(job_id, attempt, member, offset, since=self._clock.monotonic())
        told_at = place.since
        with self._streams.following(job_id) as changed:
            while not self._streams.closing.is_set():
                view = await self._read_model.view(job_id)
                if view is None:
                    return
                told, moved = await self._turn(view, place)
                for one in told:
                    yield one
                if told:
                    place.since = told_at = self._clock.monotonic()
                if place.ended:
                    return
                if moved:
                    continue
                await woken(changed, self._poll_s)
                if self._clock.monotonic() - told_at > self._keep_alive_s:
                    told_at = self._clock.monotonic()
                    yield None

    async def _turn(self, view: View, place: _Place) -> tuple[list[Told], bool]:
        """Return what can be told now, and whether there may be more at once."""
        if place.current is None:
            return self._begin(view, place)
        end = run_end(view, place.current, place.member)
        late = end.over and self._clock.monotonic() - place.since > LATE_S
        told, after = await self._step(place, end, late=late)
        if after > place.offset:
            place.offset = after
            return told, True
        if end.over and (late or (end.log_bytes is not None and place.offset >= end.log_bytes)):
            newest = newest_attempt(view)
            if place.asked is None and newest is not None and newest > place.current:
                place.current, place.offset = None, 0
                return told, True
            if place.asked is not None or view["state"] in _TERMINAL:
                told.append(place.end(view["state"]))
        return told, False

    @staticmethod
    def _begin(view: View, place: _Place) -> tuple[list[Told], bool]:
        attempt = place.asked if place.asked is not None else newest_attempt(view)
        if attempt is not None:
            place.current = attempt
            run_id = ids.run_id(place.job_id, attempt)
            return [("attempt", {"attempt": attempt, "run_id": run_id, "member": place.member})], True
        return ([place.end(view["state"])], False) if view["state"] in _TERMINAL else ([], False)

    async def _step(self, place: _Place, end: RunEnd, *, late: bool) -> tuple[list[Told], int]:
        """Return what can be told from where the reader stands, and where it stands then."""
        run_id = ids.run_id(place.job_id, place.current or 0)
        offset = place.offset
        read = await self._logs.read(run_id, place.member, offset, READ_BYTES)
        told: list[Told] = [("gap", {"start": start, "end": stop}) for start, stop in read.gaps]
        final = late or (end.log_bytes is not None and read.end >= end.log_bytes)
        text, after = text_of(read, READ_BYTES, final=final)
        if text:
            told.append(("log", {"offset": read.start, "end": after, "text": text}))
        if after > offset or not late:
            return told, max(after, offset)
        beyond = await self._logs.next_known(run_id, place.member, offset) if read.missing else None
        beyond = beyond if beyond is not None else max(offset, end.log_bytes or 0)
        if beyond > offset:
            told.append(("gap", {"start": offset, "end": beyond}))
        return told, beyond
