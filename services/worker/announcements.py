"""The events that a worker publishes about its members and its node, built from what it knows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schedmate.schemas import ids
from schedmate.schemas.events import (
    CheckpointEntry,
    CheckpointsListed,
    GpuReport,
    LogChunked,
    MeasuredRun,
    MemberAssigned,
    NodeFaultObserved,
    NodeReported,
    NodeReportedV2,
    NodeReportedV3,
    RefusalCause,
    RunExited,
    RunExitedV2,
    RunRefused,
    RunReport,
    RunStarted,
)
from schedmate.schemas.wire import Envelope
from schedmate.services.worker.fence import Place
from schedmate.services.worker.member import Member

DETAIL_LEN_MAX = 2000


def source_of(node: str) -> str:
    """Return the CloudEvents source of a node's worker."""
    return f"schedmate/worker/{node}"


def run_started(member: Member) -> Envelope[RunStarted]:
    """Say that a member's process runs."""
    assigned, start = member.assigned, member.start
    assert start is not None
    assert start.started_at is not None
    event = RunStarted(
        job_id=assigned.job_id,
        pool=assigned.pool,
        run_id=assigned.run_id,
        attempt=assigned.attempt,
        member=assigned.member,
        node=assigned.node,
        session=start.session,
        pid=start.pid,
        gpus=assigned.gpus,
        started_at=start.started_at,
    )
    event_id = ids.member_event_id(assigned.run_id, assigned.member, "started")
    return Envelope(event_id, source_of(assigned.node), start.started_at, event, member.traceparent)


def run_exited(member: Member) -> Envelope[RunExited]:
    """Say that a member has ended and nothing of it is left."""
    assigned, end = member.assigned, member.end
    assert end is not None
    exited = RunExited(
        job_id=assigned.job_id,
        pool=assigned.pool,
        run_id=assigned.run_id,
        attempt=assigned.attempt,
        member=assigned.member,
        node=assigned.node,
        session=end.session,
        cause=end.cause,
        exit_code=end.exit_code,
        signal=end.signal,
        log_bytes=end.log_bytes,
        started_at=end.started_at,
        ended_at=end.ended_at,
        detail=end.detail[:DETAIL_LEN_MAX],
    )
    event = RunExitedV2(**dict(exited), usage=end.usage) if end.usage is not None else exited
    event_id = ids.member_event_id(assigned.run_id, assigned.member, "exited")
    return Envelope(event_id, source_of(assigned.node), end.ended_at, event, member.traceparent)


def checkpoints_listed(
    member: Member, directory: str, entries: tuple[CheckpointEntry, ...], *, at: float
) -> Envelope[CheckpointsListed]:
    """Say what a job's checkpoint directory holds, before the exit of a member that ended badly."""
    assigned = member.assigned
    event = CheckpointsListed(
        job_id=assigned.job_id,
        pool=assigned.pool,
        run_id=assigned.run_id,
        attempt=assigned.attempt,
        member=assigned.member,
        node=assigned.node,
        directory=directory,
        entries=entries,
        at=at,
    )
    event_id = ids.member_event_id(assigned.run_id, assigned.member, "checkpoints")
    return Envelope(event_id, source_of(assigned.node), at, event, member.traceparent)


def run_refused(
    assigned: MemberAssigned, traceparent: str | None, cause: RefusalCause, detail: str, *, session: int, at: float
) -> Envelope[RunRefused]:
    """Say that nothing was started for an assignment."""
    event = RunRefused(
        job_id=assigned.job_id,
        pool=assigned.pool,
        run_id=assigned.run_id,
        attempt=assigned.attempt,
        member=assigned.member,
        node=assigned.node,
        session=session,
        seq=assigned.seq,
        index=assigned.index,
        cause=cause,
        detail=detail[:DETAIL_LEN_MAX],
        at=at,
    )
    event_id = ids.member_event_id(assigned.run_id, assigned.member, "refused")
    return Envelope(event_id, source_of(assigned.node), at, event, traceparent)


def log_chunk(member: Member, start: int, end: int, content: bytes | None, *, at: float) -> Envelope[LogChunked]:
    """Carry bytes [start, end) of a member's output; without content, say that they will never come."""
    assigned = member.assigned
    event = LogChunked(
        job_id=assigned.job_id,
        pool=assigned.pool,
        run_id=assigned.run_id,
        attempt=assigned.attempt,
        member=assigned.member,
        node=assigned.node,
        start=start,
        end=end,
        gap=content is None,
        content=content or b"",
    )
    event_id = ids.log_chunk_id(assigned.run_id, assigned.member, start, end)
    return Envelope(event_id, source_of(assigned.node), at, event, member.traceparent)


def node_fault(event: NodeFaultObserved) -> Envelope[NodeFaultObserved]:
    """Carry a fault; its id follows from what was seen and when."""
    event_id = ids.derived("node-fault", event.node, event.session, repr(event.at), event.text)
    return Envelope(event_id, source_of(event.node), event.at, event)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a report says, apart from its number and time. Replaced whole, read by the renewing thread."""

    node: str
    pool: str
    boot_id: str
    session: int
    applied: Place
    address: str
    port_min: int
    port_max: int
    gpus: tuple[GpuReport, ...]
    runs: tuple[RunReport, ...]
    stopping: bool
    same_user: bool
    lease_s: float
    rack: str | None = None
    spine: str | None = None
    measured: tuple[MeasuredRun, ...] = field(default=(), compare=False)  # figures: nobody waits until they are told


def node_reported(snapshot: Snapshot, *, report_no: int, at: float) -> Envelope[NodeReported]:
    """Tell the full truth about the node."""
    event = NodeReported(
        node=snapshot.node,
        pool=snapshot.pool,
        boot_id=snapshot.boot_id,
        session=snapshot.session,
        report_no=report_no,
        applied_seq=snapshot.applied.seq,
        applied_index=snapshot.applied.index,
        address=snapshot.address,
        port_min=snapshot.port_min,
        port_max=snapshot.port_max,
        gpus=snapshot.gpus,
        runs=snapshot.runs,
        stopping=snapshot.stopping,
        same_user=snapshot.same_user,
        lease_s=snapshot.lease_s,
        at=at,
    )
    stands = {"rack": snapshot.rack, "spine": snapshot.spine}
    if snapshot.measured:  # else a version that more readers know
        event = NodeReportedV3(**dict(event), **stands, measured=snapshot.measured)
    elif snapshot.rack is not None or snapshot.spine is not None:
        event = NodeReportedV2(**dict(event), **stands)
    event_id = ids.derived("node-report", snapshot.node, snapshot.session, report_no)
    return Envelope(event_id, source_of(snapshot.node), at, event)


def run_reports(members: Iterable[Member]) -> tuple[RunReport, ...]:
    """Return what a report says of each member, living or ended and not yet released."""
    return tuple(_run_report(m) for m in sorted(members, key=lambda m: m.key))


def _run_report(member: Member) -> RunReport:
    assigned, end = member.assigned, member.end
    started_at = member.start.started_at if member.start is not None else None
    return RunReport(
        job_id=assigned.job_id,
        run_id=assigned.run_id,
        attempt=assigned.attempt,
        member=assigned.member,
        pool=assigned.pool,
        seq=assigned.seq,
        index=assigned.index,
        gpus=assigned.gpus,
        state=member.state,
        cause=end.cause if end is not None else None,
        exit_code=end.exit_code if end is not None else None,
        signal=end.signal if end is not None else None,
        log_bytes=end.log_bytes if end is not None else 0,
        started_at=end.started_at if end is not None else started_at,
        ended_at=end.ended_at if end is not None else None,
    )
