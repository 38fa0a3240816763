"""The pure tracker: one event and the tracks in, changed tracks and events out.

State is set by maximum (offset, attempt, bits of members), never added up, so that a repeat, an overlap or a late event changes nothing.
A progress that was already said for the very bytes that come again is said again, with the same id: the first saying may not have
been published before a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from schedmate.schemas import ids
from schedmate.schemas.events import (
    CheckpointsListed,
    Event,
    JobAnalyzed,
    JobSubmitted,
    LogChunked,
    Phase,
    ProgressObservedV2,
    RunDiagnosed,
    RunExited,
    RunSlowed,
)
from schedmate.services.log_monitor import unread
from schedmate.services.log_monitor.diagnosis import Asked, Verdict, diagnose
from schedmate.services.log_monitor.failures.judge import Similar
from schedmate.services.log_monitor.failures.rules import Rules
from schedmate.services.log_monitor.lines import Line, flush, push
from schedmate.services.log_monitor.metrics import proposal
from schedmate.services.log_monitor.metrics.command import hints_of
from schedmate.services.log_monitor.metrics.far import Snapshot, snapshot
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.node_faults import NodeFailure, NodeFaults
from schedmate.services.log_monitor.tracks import (
    Closing,
    Emission,
    Exit,
    JobTrack,
    MemberTrack,
    RunTrack,
    SlownessSaid,
    Table,
    job_key,
    load_job,
    load_member,
    member_key,
    save_job,
    save_member,
)
from schedmate.services.log_monitor.unread import Unread

DETAIL_MAX: Final = 400
SIZE_CHANGE: Final = 1.25  # a slow-down that changes by less is not said again
RECOVERED: Final = 0.9  # of the pace before


@dataclass(frozen=True, slots=True)
class Tuning:
    """How often progress is said and how long a diagnosis waits."""

    progress_interval_s: float = 1.0
    progress_fraction: float = 0.01
    tail_wait_s: float = 3.0
    two_tenants_within_s: float = 86_400.0
    propose: bool = False
    """Lines in which nothing shows a position are kept for a model to look at."""


@dataclass(slots=True)
class Outcome:
    """What came of an event: (id, event) pairs to publish, and whether a run of the job is now being closed."""

    events: list[tuple[str, Event]] = field(default_factory=list)
    closing: bool = False
    unread: Unread | None = None
    """Lines to ask a model about, for nothing shows a position in them."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A run is closed: with a verdict when it ended badly."""

    verdict: Verdict | None
    diagnosed: RunDiagnosed | None


class Tracker:
    """Applies events to tracks. Holds no state of its own."""

    def __init__(self, rules: Rules, tuning: Tuning, redact: Callable[[str], str]) -> None:
        self._rules = rules
        self._tuning = tuning
        self._redact = redact
        self._follower = Follower(library())

    def apply(self, event: Event, *, at: float, now: float, table: Table, traceparent: str | None = None) -> Outcome:
        """Take in one event. `at` is the event's own time, `now` this service's clock (Unix seconds)."""
        match event:
            case JobSubmitted():
                return self._submitted(event, now, table)
            case JobAnalyzed():
                return self._analyzed(event, now, table)
            case LogChunked():
                return self._chunked(event, at, now, table)
            case CheckpointsListed():
                return self._listed(event, table)
            case RunExited():
                return self._exited(event, at, now, table, traceparent)
            case _:
                return Outcome()

    def keys(self, event: Event) -> tuple[str, ...]:
        """Return the keys of the tracks that `apply` may read for an event."""
        match event:
            case JobSubmitted() | JobAnalyzed():
                return (job_key(event.job_id),)
            case LogChunked() | RunExited() | CheckpointsListed():
                return job_key(event.job_id), member_key(event.job_id, event.attempt, event.member)
            case _:
                return ()

    def close(
        self,
        job: JobTrack,
        attempt: int,
        members: Sequence[MemberTrack],
        *,
        faults: NodeFaults,
        failures: Callable[[str], Sequence[NodeFailure]],
        now: float,
        similar: Similar | None = None,
    ) -> Closed | None:
        """Return what to say of a run that is being closed, or None while it is better to wait (never past the deadline)."""
        run = job.runs[attempt]
        closing = run.closing
        if closing is None or (now < closing.deadline and not closing.ready):
            return None
        if not run.bad:
            return Closed(None, None)
        verdict = diagnose(
            members,
            asked=Asked(attempt, job.time_limit_s, job.checkpoint_dir),
            rules=self._rules,
            faults=faults,
            failures=failures,
            tenant=job.tenant,
            two_tenants_within_s=self._tuning.two_tenants_within_s,
            redact=self._redact,
            similar=similar,
        )
        if now < closing.deadline and verdict.awaits_node and not verdict.node_evidence:
            return None
        return Closed(verdict, _diagnosed(job, attempt, run, verdict))

    # --- events ----------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: float, table: Table) -> Outcome:
        job = load_job(table, event.job_id) or JobTrack(job_id=event.job_id, pool=event.pool)
        if job.tenant is not None:
            return Outcome()
        job.tenant, job.members, job.touched_at = event.spec.tenant, event.spec.nodes, now
        command = " ".join(event.spec.command or ()) or event.spec.script or ""
        job.told = hints_of(command, gpus=event.spec.gpus, nodes=event.spec.nodes)
        job.time_limit_s, job.checkpoint_dir = event.spec.time_limit_s, event.spec.checkpoint_dir
        for run in job.runs.values():
            self._check_ready(job, run, now, None)
        save_job(table, job)
        return Outcome(closing=job.due() is not None)

    def _analyzed(self, event: JobAnalyzed, now: float, table: Table) -> Outcome:
        job = load_job(table, event.job_id) or JobTrack(job_id=event.job_id, pool=event.pool)
        total = _number(event, "total_steps") or _number(event, "max_steps")
        epochs = _number(event, "epochs")
        if total is None and epochs is None:
            return Outcome()
        job.total_steps, job.total_epochs, job.touched_at = int(total) if total else None, epochs, now
        save_job(table, job)
        return Outcome()

    def _chunked(self, event: LogChunked, at: float, now: float, table: Table) -> Outcome:
        job = load_job(table, event.job_id) or JobTrack(job_id=event.job_id, pool=event.pool)
        known = event.attempt in job.runs
        run = job.run(event.attempt, event.run_id)
        if run is None:
            return Outcome()
        track = load_member(table, event.job_id, event.attempt, event.member) or _new_track(event)
        if event.end <= track.feed.offset:
            return self._repeat(job, track, event.end)
        before = run.model_copy(deep=True)
        outcome = Outcome()
        for line in push(track.feed, event.start, event.end, event.content, gap=event.gap):
            self._take_line(track, line, at)
        if track.tail_read:
            self._finish_member(track, at)
            self._mark(run, track)
            self._check_ready(job, run, now, None)
            outcome.closing = run.closing is not None
        self._report(run, track)
        self._say_progress(job, run, track, at, outcome, force=track.tail_read)
        if unread.is_full(track):
            if proposal.wanted(self._far(job, track)):
                outcome.unread = Unread(job.job_id, track.attempt, track.member, tuple(track.unread))
            track.asked = True
            track.unread.clear()
        save_member(table, event.job_id, track)
        if not known or run != before:
            job.touched_at = now
            save_job(table, job)
        return outcome

    def _listed(self, event: CheckpointsListed, table: Table) -> Outcome:
        job = load_job(table, event.job_id) or JobTrack(job_id=event.job_id, pool=event.pool)
        known = event.attempt in job.runs
        if job.run(event.attempt, event.run_id) is None:
            return Outcome()
        track = load_member(table, event.job_id, event.attempt, event.member) or _new_track(event)
        if track.listed is None:
            track.listed = event
            save_member(table, event.job_id, track)
            if not known:
                save_job(table, job)
        return Outcome()

    def _exited(self, event: RunExited, at: float, now: float, table: Table, traceparent: str | None) -> Outcome:
        job = load_job(table, event.job_id) or JobTrack(job_id=event.job_id, pool=event.pool)
        run = job.run(event.attempt, event.run_id)
        if run is None:
            return Outcome()
        track = load_member(table, event.job_id, event.attempt, event.member) or _new_track(event)
        if track.exit is not None:
            return Outcome(closing=run.closing is not None)
        track.exit = _exit_of(event)
        if track.tail_read:
            self._finish_member(track, at)
        self._mark(run, track)
        run.bad |= track.exit.bad
        self._check_ready(job, run, now, traceparent)
        outcome = Outcome(closing=run.closing is not None)
        self._report(run, track)
        self._say_progress(job, run, track, at, outcome, force=track.tail_read)
        job.touched_at = now
        save_member(table, event.job_id, track)
        save_job(table, job)
        return outcome

    # --- parts -----------------------------------------------------------------------------------------------------

    def _take_line(self, track: MemberTrack, line: Line, at: float) -> None:
        self._follower.follow(track.progress, line.text, at)
        if self._tuning.propose:
            unread.note(track, line.text, at)
        track.digest.take(line.text, line.number, self._rules)

    def _finish_member(self, track: MemberTrack, at: float) -> None:
        for line in flush(track.feed):
            self._take_line(track, line, at)

    def _mark(self, run: RunTrack, track: MemberTrack) -> None:
        bit = 1 << track.member
        run.exited |= bit
        run.read |= bit if track.tail_read else 0

    def _check_ready(self, job: JobTrack, run: RunTrack, now: float, traceparent: str | None) -> None:
        """Begin to close a run at its first bad exit, or when all members have ended; it is ready when every tail was read."""
        if run.closing is None and (run.bad or job.all_in(run.exited)):
            run.closing = Closing(deadline=now + self._tuning.tail_wait_s, traceparent=traceparent)
        if run.closing is not None:
            run.closing.ready = run.closing.ready or job.all_in(run.read)

    def _report(self, run: RunTrack, track: MemberTrack) -> None:
        """The lowest member whose log shows progress speaks for the run."""
        if track.progress.sightings and (run.reporter is None or track.member < run.reporter):
            run.reporter = track.member

    def _say_progress(
        self, job: JobTrack, run: RunTrack, track: MemberTrack, at: float, outcome: Outcome, *, force: bool
    ) -> None:
        if run.reporter != track.member:
            return
        far = self._far(job, track)
        slowed = _slowed_event(job, track, far)
        if slowed is not None:
            outcome.events.append(slowed)
        if not self._worth_saying(track.emission, far, at, force=force):
            return
        track.emission = Emission(
            offset=track.feed.offset, at=at, step=far.step, fraction=far.fraction, phase=far.phase
        )
        outcome.events.append(_progress_event(job, track, far))

    def _far(self, job: JobTrack, track: MemberTrack) -> Snapshot:
        return snapshot(self._follower.view(track.progress), job.hints)

    def _worth_saying(self, said: Emission | None, far: Snapshot, at: float, *, force: bool) -> bool:
        if said is None:
            return True
        if (said.step, said.fraction, said.phase) == (far.step, far.fraction, far.phase):
            return False
        if force or far.phase is Phase.DONE or abs(at - said.at) >= self._tuning.progress_interval_s:
            return True
        if far.fraction is None or said.fraction is None:
            return False
        return abs(far.fraction - said.fraction) >= self._tuning.progress_fraction

    def _repeat(self, job: JobTrack, track: MemberTrack, end: int) -> Outcome:
        said = track.emission
        if track.feed.offset != end:
            return Outcome()
        far = self._far(job, track)
        again = Outcome()
        if track.slowness is not None and track.slowness.offset == end:
            again.events.append(_slowness_again(job, track, far, track.slowness))
        if said is not None and said.offset == end:
            again.events.append(_progress_event(job, track, far))
        return again


def settle(table: Table, job: JobTrack, attempt: int) -> None:
    """Close an attempt for good: whatever still comes of it or of an earlier one is dropped, and its members' tracks are removed."""
    job.done_attempt = max(job.done_attempt, attempt)
    settled = [a for a in job.runs if a <= attempt]
    for old in settled:
        run = job.runs.pop(old)
        for member in range(_gang_size(job, run)):
            table.remove(member_key(job.job_id, old, member))
    save_job(table, job)


def members_of(table: Table, job: JobTrack, attempt: int) -> list[MemberTrack]:
    """Return the tracks of a run's members, as far as there are some."""
    found = (load_member(table, job.job_id, attempt, m) for m in range(gang_size(job, attempt)))
    return [track for track in found if track is not None]


def gang_size(job: JobTrack, attempt: int) -> int:
    """Return how many members to look for."""
    return _gang_size(job, job.runs[attempt])


def _gang_size(job: JobTrack, run: RunTrack) -> int:
    return max(job.members or 0, run.exited.bit_length(), (run.reporter or 0) + 1)


def _diagnosed(job: JobTrack, attempt: int, run: RunTrack, verdict: Verdict) -> RunDiagnosed:
    return RunDiagnosed(
        job_id=job.job_id,
        pool=job.pool,
        run_id=run.run_id,
        attempt=attempt,
        category=verdict.category,
        culpable=verdict.culpable,
        action=verdict.action,
        evidence=verdict.evidence,
        culprit_node=verdict.culprit_node,
        node_evidence=verdict.node_evidence,
        resume_from=verdict.resume_from,
        proposed_change=verdict.proposed_change,
        work_was_complete=verdict.work_was_complete,
        confidence=verdict.confidence,
        source=verdict.source,
    )


def diagnosis_id(run_id: str) -> str:
    """Id of the rules' diagnosis of a run: whoever says it again says the same."""
    return ids.derived("diagnosis", run_id, "rules")


def _progress_event(job: JobTrack, track: MemberTrack, far: Snapshot) -> tuple[str, Event]:
    offset = track.feed.offset
    event = ProgressObservedV2(
        job_id=job.job_id,
        pool=job.pool,
        run_id=track.run_id,
        attempt=track.attempt,
        member=track.member,
        log_offset=offset,
        step=far.step,
        total_steps=far.total_steps,
        epoch=far.epoch,
        total_epochs=far.total_epochs,
        fraction=far.fraction,
        steps_per_sec=far.steps_per_sec,
        eta_s=far.eta_s,
        phase=far.phase,
        loss=far.loss,
        eta_low_s=far.eta_low_s,
        eta_high_s=far.eta_high_s,
    )
    return ids.derived("progress", track.run_id, track.member, offset), event


def _slowed_event(job: JobTrack, track: MemberTrack, far: Snapshot) -> tuple[str, Event] | None:
    """Return what is new about the run's slowness: it begins, its size changes much, or it is over."""
    said, slowed = track.slowness, far.slowed
    if slowed is None and (said is None or said.size == 1.0 or far.steps_per_sec is None):
        return None
    if slowed is not None and said is not None and said.size / SIZE_CHANGE < slowed.size < said.size * SIZE_CHANGE:
        return None
    if slowed is not None:
        said = SlownessSaid(
            offset=track.feed.offset, size=slowed.size, before=slowed.before, since_step=slowed.since_step
        )
    elif said is not None:
        if far.steps_per_sec is None or far.steps_per_sec < RECOVERED * said.before:
            return None
        said = said.model_copy(update={"offset": track.feed.offset, "size": 1.0})
    assert said is not None
    track.slowness = said
    return _slowness_again(job, track, far, said)


def _slowness_again(job: JobTrack, track: MemberTrack, far: Snapshot, said: SlownessSaid) -> tuple[str, Event]:
    now = far.slowed.now if far.slowed is not None else far.steps_per_sec or said.before
    event = RunSlowed(
        job_id=job.job_id,
        pool=job.pool,
        run_id=track.run_id,
        attempt=track.attempt,
        member=track.member,
        log_offset=track.feed.offset,
        slowdown=said.size,
        steps_per_sec=now,
        steps_per_sec_before=said.before,
        since_step=said.since_step,
        slow_for_s=far.slowed.slow_for_s if far.slowed is not None else 0.0,
    )
    return ids.derived("slowed", track.run_id, track.member, track.feed.offset), event


def _new_track(event: LogChunked | RunExited | CheckpointsListed) -> MemberTrack:
    return MemberTrack(run_id=event.run_id, attempt=event.attempt, member=event.member, node=event.node)


def _exit_of(event: RunExited) -> Exit:
    return Exit(
        cause=event.cause,
        exit_code=event.exit_code,
        signal=event.signal,
        log_bytes=event.log_bytes,
        started_at=event.started_at,
        ended_at=event.ended_at,
        detail=event.detail[:DETAIL_MAX],
    )


def _number(event: JobAnalyzed, name: str) -> float | None:
    found = event.fields.get(name)
    if found is None or isinstance(found.value, bool) or not isinstance(found.value, int | float) or found.value <= 0:
        return None
    return float(found.value)
