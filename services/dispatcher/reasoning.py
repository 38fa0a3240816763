"""Telling why jobs wait: when a reason changes, coalesced; the first jobs of the queue with what would unblock them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from schedmate.schemas.events import Event, JobReasoned, Unblocks
from schedmate.schemas.ids import derived
from schedmate.schemas.states import JobState
from schedmate.schemas.wire import Envelope
from schedmate.services.dispatcher.core.reasons import Why, why
from schedmate.services.dispatcher.core.state import Job, PoolState

COUNTERFACTUALS_MAX: Final = 20
SOURCE: Final = "schedmate/dispatcher"


class ReasonTeller:
    """Remembers what was told and tells what changed, at most every so often."""

    def __init__(self, pool: str, every_s: float, jobs_max: int) -> None:
        self._pool = pool
        self._every_s = every_s
        self._jobs_max = jobs_max
        self._told: dict[str, tuple[str, str]] = {}
        self._dirty = False
        self._last = float("-inf")

    def changed(self) -> None:
        """The pool's state has changed."""
        self._dirty = True

    def due(self, state: PoolState, now: float, monotonic: float) -> list[Envelope[Event]]:
        """Return the events to publish now."""
        if not self._dirty or monotonic - self._last < self._every_s:
            return []
        self._dirty, self._last = False, monotonic
        out: list[Envelope[Event]] = []
        seen: dict[str, tuple[str, str]] = {}
        for ahead, (job_id, _) in enumerate(state.queue.in_order()):
            if ahead >= self._jobs_max:
                break
            self._tell(state, state.jobs[job_id], ahead, now, seen, out)
        for job in state.jobs.values():
            if job.state is JobState.QUEUED and job.queue_key is None:
                self._tell(state, job, None, now, seen, out)
        self._told = seen
        return out

    def _tell(
        self,
        state: PoolState,
        job: Job,
        ahead: int | None,
        now: float,
        seen: dict[str, tuple[str, str]],
        out: list[Envelope[Event]],
    ) -> None:
        found = why(state, job, ahead=ahead, with_counterfactual=ahead is not None and ahead < COUNTERFACTUALS_MAX)
        key = (found.reason.value, found.unblocks)
        seen[job.id] = key
        if self._told.get(job.id) == key:
            return
        event = reasoned(state, job, found, ahead, now)
        identity = derived("reason", self._pool, state.seq, job.id)
        out.append(Envelope(identity, SOURCE, now, event, job.trace))


def reasoned(state: PoolState, job: Job, found: Why, ahead: int | None, now: float) -> JobReasoned:
    """Return the event that tells a reason."""
    unblocks = None
    if found.unblocks or found.expected_at is not None:
        text = found.unblocks
        if found.expected_at is not None:
            text += f", expected {datetime.fromtimestamp(found.expected_at, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
        unblocks = Unblocks(text=text, waits_for_jobs=found.waits_for, expected_at=found.expected_at)
    return JobReasoned(
        job_id=job.id,
        pool=state.pool,
        seq=state.seq,
        at=now,
        reason=found.reason,
        detail=found.detail,
        queue_position=ahead,
        unblocks=unblocks,
    )


def answer(state: PoolState, job_id: str, now: float) -> JobReasoned | None:
    """Return why a job stands where it stands, with its counterfactual; None for a job that is not live here."""
    job = state.jobs.get(job_id)
    if job is None:
        return None
    ahead = None
    if job.queue_key is not None:
        ahead = next((n for n, (queued, _) in enumerate(state.queue.in_order()) if queued == job_id), None)
    return reasoned(state, job, why(state, job, ahead=ahead), ahead, now)


def reservations_of(state: PoolState) -> list[dict[str, Any]]:
    """Return the reservations of a pool that have not ended, as JSON objects, in the order of their beginnings."""
    return [
        {
            "reservation_id": one.id, "pool": state.pool, "nodes": list(one.nodes), "start_at": one.start, "end_at": one.end,
            "requested_by": one.by, "why": one.why, "begun": one.start <= state.at,
        }
        for one in sorted(state.reservations.values(), key=lambda one: (one.start, one.id))
    ]  # fmt: skip
