"""Closes runs: waits, bounded, for a failed run's last bytes and for the node's own side, then says the diagnosis once.

The wait is kept in the job's track, so that a restart takes it up again; the diagnosis is published before the track is settled, so that
a crash in between says it again with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import structlog

from schedmate.infra.bus.keyed_state import KeyedState, NotHeldError
from schedmate.infra.bus.port import BusUnavailableError
from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Document, DuplicateKeyError, Json, Store, StoreError, StoreUnavailableError
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import current_traceparent, span_from
from schedmate.schemas.events import Event, NodeFaultObserved, RunDiagnosed
from schedmate.schemas.wire import Envelope
from schedmate.services.log_monitor import work
from schedmate.services.log_monitor.failures.judge import Judgement
from schedmate.services.log_monitor.failures.rules import load_rules
from schedmate.services.log_monitor.handlers import SOURCE, JobLocks
from schedmate.services.log_monitor.node_faults import (
    NodeFailure,
    NodeFaults,
    failures_body,
    read_failures,
    with_failure,
)
from schedmate.services.log_monitor.past import PastFailures
from schedmate.services.log_monitor.tracker import (
    Closed,
    Tuning,
    diagnosis_id,
    gang_size,
    members_of,
    settle,
)
from schedmate.services.log_monitor.tracks import JobTrack, MemberTrack, job_key, load_job, member_key

FAILURES: Final = "node_failures"
TICK_S: Final = 0.1
RETRY_S: Final = 1.0
RESUME_EVERY_S: Final = 30.0
OVERDUE_S: Final = 5.0
NODE_UPDATES_MAX: Final = 5

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

OnSaid = Callable[[RunDiagnosed, Judgement, Sequence[MemberTrack], str], None]
Publish = Callable[[Sequence[Envelope[Event]]], Awaitable[None]]


class Closings:
    """The jobs with a run that is being closed, and when to look at each again."""

    def __init__(
        self,
        state: KeyedState,
        locks: JobLocks,
        store: Store,
        publish: Publish,
        tuning: Tuning,
        clock: Clock,
        metrics: Metrics,
        *,
        track_age_max_s: float,
        on_said: OnSaid | None = None,
        past: PastFailures | None = None,
    ) -> None:
        self._past = past
        self._on_said = on_said
        self._state = state
        self._locks = locks
        self._store = store
        self._publish = publish
        self._tuning = tuning
        self._clock = clock
        self._metrics = metrics
        self._track_age_max_s = track_age_max_s
        self._faults = NodeFaults()
        self._look_at: dict[str, float] = {}
        self._woken = asyncio.Event()

    def closing(self, job_id: str) -> None:
        """Look at this job at the next turn."""
        self._look_at[job_id] = 0.0
        self._woken.set()

    def node_fault(self, fault: NodeFaultObserved) -> None:
        """Remember what a node said; every waiting diagnosis may rest on it."""
        if self._faults.add(fault):
            for job_id in self._look_at:
                self._look_at[job_id] = 0.0
            self._woken.set()

    async def resume(self, *, overdue_s: float | None = None) -> None:
        """Take up every run that is being closed, and forget jobs of which nothing was heard for long.

        With `overdue_s` only runs whose closing is so long overdue that whoever had it must be gone.
        """
        oldest = self._clock.now() - self._track_age_max_s
        old: list[str] = []
        tracked = 0
        async for key, value in self._state.scan():
            if "#" in key:
                tracked += 1
                continue
            job = JobTrack.model_validate_json(value)
            due = job.due()
            if due is not None:
                if overdue_s is None or due + overdue_s < self._clock.now():
                    self.closing(job.job_id)
            elif job.touched_at < oldest:
                old.append(key)
                old.extend(
                    member_key(job.job_id, attempt, member)
                    for attempt in job.runs
                    for member in range(gang_size(job, attempt))
                )
        if old:
            await self._state.save({}, old)
        self._metrics.set(names.TRACKERS, tracked)

    async def run(self, stop: asyncio.Event) -> None:
        """Close what is due until `stop`; a failed look is tried again."""
        resumed_at: float | None = None
        while not stop.is_set():
            now = self._clock.monotonic()
            if resumed_at is None or now - resumed_at >= RESUME_EVERY_S:
                await self._try_to_resume(first=resumed_at is None)
                resumed_at = now
            for job_id in [job_id for job_id, at in self._look_at.items() if at <= now]:
                await self._look(job_id)
            if not self._woken.is_set():
                await self._doze(stop)
            self._woken.clear()

    async def _doze(self, stop: asyncio.Event) -> None:
        waiters = [
            asyncio.ensure_future(self._clock.sleep(TICK_S)),
            asyncio.ensure_future(self._woken.wait()),
            asyncio.ensure_future(stop.wait()),
        ]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _try_to_resume(self, *, first: bool) -> None:
        try:
            await self.resume(overdue_s=None if first else OVERDUE_S)
        except StoreUnavailableError as error:
            log.warning("could not look for runs to close", action="closings.resume", error=str(error))

    async def _look(self, job_id: str) -> None:
        try:
            again_at = await self._close(job_id)
        except NotHeldError:
            again_at = None  # another instance has the job now, and closes its runs
        except (BusUnavailableError, StoreUnavailableError) as error:
            log.warning("could not close a run yet", action="closings.unavailable", job_id=job_id, error=str(error))
            again_at = self._clock.monotonic() + RETRY_S
        if again_at is None:
            self._look_at.pop(job_id, None)
        else:
            self._look_at[job_id] = again_at

    async def _close(self, job_id: str) -> float | None:
        """Close what is due of a job; return when to look again (monotonic), or None."""
        async with self._locks.of(job_id):
            overlay = work.Overlay.over(await self._state.load([job_key(job_id)]))
            job = load_job(overlay, job_id)
            if job is None:
                return None
            for attempt in sorted(a for a, r in job.runs.items() if r.closing is not None):
                closing = job.runs[attempt].closing
                keys = [member_key(job_id, attempt, m) for m in range(gang_size(job, attempt))]
                overlay.values.update(await self._state.load(keys))
                members = members_of(overlay, job, attempt)
                with span_from(closing.traceparent if closing is not None else None, names.DIAGNOSE, job_id=job_id):
                    closed = await self._verdict(job, attempt, members)
                    if closed is None:
                        break
                    await self._say(job, members, closed)
                settle(overlay, job, attempt)
            if overlay.puts or overlay.removes:
                await self._state.save(overlay.puts, sorted(overlay.removes))
            due = job.due()
        if due is None:
            return None
        wait_s = min(max(due - self._clock.now(), 0.0), self._tuning.tail_wait_s)
        return self._clock.monotonic() + wait_s

    async def _verdict(self, job: JobTrack, attempt: int, members: Sequence[MemberTrack]) -> Closed | None:
        run = job.runs[attempt]
        nodes = {m.node for m in members if any(self._is_hardware(rule) for rule in m.digest.hits)}
        failures = {node: await self._failures(node) for node in sorted(nodes)}
        return work.tracker(self._tuning).close(
            job,
            attempt,
            members,
            faults=self._faults,
            failures=lambda node: failures.get(node, ()),
            now=self._clock.now(),
            similar=await self._past.similar(job.tenant) if self._past is not None and run.bad else None,
        )

    def _is_hardware(self, rule_id: str) -> bool:
        rule = load_rules().by_id.get(rule_id)
        return rule is not None and rule.node

    async def _say(self, job: JobTrack, members: Sequence[MemberTrack], closed: Closed) -> None:
        if closed.verdict is None or closed.diagnosed is None:
            if self._past is not None:
                await self._past.ended_well(members)
            return
        event, verdict = closed.diagnosed, closed.verdict
        envelope = Envelope(
            id=diagnosis_id(event.run_id),
            source=SOURCE,
            time=self._clock.now(),
            event=event,
            traceparent=current_traceparent(),
        )
        await self._publish([envelope])
        self._metrics.count(names.DIAGNOSES, action=event.action.value)
        log.info(
            "run diagnosed",
            action="run.diagnosed",
            job_id=event.job_id,
            run_id=event.run_id,
            category=event.category,
            confidence=event.confidence,
        )
        if self._past is not None:
            await self._past.failed(event, job.tenant, members)
        if self._on_said is not None and verdict.judged is not None:
            self._on_said(event, verdict.judged, members, envelope.traceparent or "")
        if verdict.hardware and verdict.culprit_node is not None and job.tenant is not None:
            ended = max((m.exit.ended_at for m in members if m.exit is not None), default=self._clock.now())
            await self._remember(verdict.culprit_node, NodeFailure(event.run_id, job.tenant, event.category, ended))

    async def _failures(self, node: str) -> tuple[NodeFailure, ...]:
        try:
            document = await self._store.get(FAILURES, node)
        except StoreError as error:
            log.warning("no failures of the node", action="closings.failures", node=node, error=str(error))
            return ()
        return read_failures(document.body if document is not None else None)

    async def _remember(self, node: str, failure: NodeFailure) -> None:
        """Add a failure to the node's document: compare-and-set, for other instances add theirs."""
        try:
            for _ in range(NODE_UPDATES_MAX):
                document = await self._store.get(FAILURES, node)
                body = failures_body(with_failure(read_failures(document.body if document else None), failure))
                if await self._write_failures(node, body, document):
                    return
        except StoreError as error:
            log.warning("could not remember a node's failure", action="closings.remember", node=node, error=str(error))

    async def _write_failures(self, node: str, body: Mapping[str, Json], before: Document | None) -> bool:
        if before is not None:
            return await self._store.replace(FAILURES, node, body, version=before.version)
        try:
            await self._store.insert(FAILURES, node, body)
        except DuplicateKeyError:
            return False
        return True
