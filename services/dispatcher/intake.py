"""From events to inputs: decoded and validated here, so that the core sees plain values of its own pool alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from schedmate.schemas.codec import decode
from schedmate.schemas.events import (
    Event,
    JobCancelRequested,
    JobEstimateOrdered,
    JobPinRequested,
    JobSubmitted,
    NodeCordonRequested,
    NodeDeathDeclared,
    NodeDrainRequested,
    NodeReported,
    NodeReportedV2,
    NodeReportedV3,
    NodeUndrainRequested,
    ProgressObserved,
    ProgressObservedV2,
    ReservationRequested,
    ReservationWithdrawalRequested,
    RunDiagnosed,
    RunExited,
    RunExitedV2,
    RunRefused,
    RunStarted,
    RunTimeEstimated,
)
from schedmate.schemas.job import PRIORITY_RANK, JobKind
from schedmate.schemas.wire import HEADER_POOL, Delivery, Envelope
from schedmate.services.dispatcher.core import inputs as i

TOPICS: Final = (
    "schedmate.jobs",
    "schedmate.commands",
    "schedmate.estimates",
    "schedmate.progress",
    "schedmate.diagnoses",
    "schedmate.runs",
    "schedmate.nodes",
)
_MIB_PER_GIB: Final = 1024
_MIB: Final = 1 << 20


def is_of_pool(delivery: Delivery, pool: str) -> bool:
    """Tell by the header alone; a record without one has to be decoded."""
    header = delivery.record.header(HEADER_POOL)
    return header is None or header == pool.encode()


def read(delivery: Delivery, pool: str) -> Envelope[Event] | None:
    """Return the event if it is of this pool.

    Raises:
        UndecodableError: the record is no event of ours.
    """
    if not is_of_pool(delivery, pool):
        return None
    envelope = decode(delivery.record)
    return envelope if getattr(envelope.event, "pool", None) == pool else None


def to_input(envelope: Envelope[Event]) -> i.Input | None:
    """Return what the core is told of an event; None when it is nothing to it."""
    convert = _CONVERT.get(type(envelope.event))
    return convert(envelope) if convert is not None else None


def _job(envelope: Envelope[Any]) -> i.Input:
    event: JobSubmitted = envelope.event
    spec = event.spec
    return i.JobArrived(
        job=event.job_id,
        tenant=spec.tenant,
        user=spec.user,
        priority=PRIORITY_RANK[spec.priority],
        gpus=spec.gpus,
        nodes=spec.nodes,
        gpu_type=spec.gpu_type,
        gpu_memory_mib=round((spec.gpu_memory_gib or 0) * _MIB_PER_GIB),
        time_limit_s=spec.time_limit_s,
        retries=spec.retries,
        submitted_at=event.submitted_at,
        spec=spec.model_dump_json(),
        trace=envelope.traceparent,
        resumable=spec.resume_flag is not None or spec.checkpoint_dir is not None,
        inference=spec.kind is JobKind.INFERENCE,
        within=spec.within,
        gpu_milli=spec.gpu_milli,
    )


def _cancel(envelope: Envelope[Any]) -> i.Input:
    event: JobCancelRequested = envelope.event
    return i.CancelRequested(event.job_id, event.requested_by)


def _estimate_order(envelope: Envelope[Any]) -> i.Input:
    event: JobEstimateOrdered = envelope.event
    return i.EstimateOrdered(event.job_id, event.p10_s, event.p50_s, event.p90_s, event.requested_by, event.why)


def _pin(envelope: Envelope[Any]) -> i.Input:
    event: JobPinRequested = envelope.event
    return i.JobPinned(event.job_id, event.place, event.requested_by, event.why)


def _node_command(command: str) -> Callable[[Envelope[Any]], i.Input]:
    def convert(envelope: Envelope[Any]) -> i.Input:
        event = envelope.event
        return i.NodeCommanded(event.node, command, event.requested_by, event.why)

    return convert


def _reservation(envelope: Envelope[Any]) -> i.Input:
    event: ReservationRequested = envelope.event
    return i.ReservationMade(
        event.reservation_id, event.nodes, event.count, event.start_at, event.end_at, event.requested_by, event.why
    )


def _withdrawal(envelope: Envelope[Any]) -> i.Input:
    event: ReservationWithdrawalRequested = envelope.event
    return i.ReservationWithdrawn(event.reservation_id, event.requested_by, event.why)


def _estimate(envelope: Envelope[Any]) -> i.Input | None:
    event: RunTimeEstimated = envelope.event
    memory_mib = -(-event.gpu_memory_bytes // _MIB) if event.gpu_memory_bytes is not None else None
    return i.EstimateArrived(
        event.job_id, event.revision, event.p10_s, event.p50_s, event.p90_s, event.basis.value, event.worth_probing,
        event.gpu_utilisation, memory_mib, event.sharing_class,
    )  # fmt: skip


def _progress(envelope: Envelope[Any]) -> i.Input | None:
    event = ProgressObservedV2.of(envelope.event)
    if event.eta_s is None:
        return None
    low_s, high_s = event.eta_low_s, event.eta_high_s
    within_s = max(0.0, (high_s - low_s) / 2) if low_s is not None and high_s is not None else 0.0
    return i.ProgressArrived(event.job_id, event.attempt, event.eta_s, within_s)


def _diagnosis(envelope: Envelope[Any]) -> i.Input:
    event: RunDiagnosed = envelope.event
    return i.DiagnosisArrived(
        job=event.job_id,
        attempt=event.attempt,
        category=event.category,
        culpable=event.culpable.value if event.culpable is not None else None,
        action=event.action.value,
        culprit_node=event.culprit_node,
        node_evidence=event.node_evidence,
        resume_from=event.resume_from,
        proposed_change=event.proposed_change,
        work_was_complete=event.work_was_complete,
        confidence=event.confidence,
    )


def _started(envelope: Envelope[Any]) -> i.Input:
    event: RunStarted = envelope.event
    return i.MemberStarted(event.job_id, event.attempt, event.member, event.node, event.session, event.started_at)


def _exited(envelope: Envelope[Any]) -> i.Input:
    event: RunExited = envelope.event
    usage = event.usage if isinstance(event, RunExitedV2) else None
    return i.MemberExited(
        job=event.job_id,
        attempt=event.attempt,
        member=event.member,
        node=event.node,
        session=event.session,
        cause=event.cause.value,
        exit_code=event.exit_code,
        signal=event.signal,
        started_at=event.started_at,
        ended_at=event.ended_at,
        gpu_held_s=usage.gpu_held_s if usage is not None else None,
        gpu_busy_s=usage.gpu_busy_s if usage is not None else 0.0,
    )


def _refused(envelope: Envelope[Any]) -> i.Input:
    event: RunRefused = envelope.event
    return i.MemberRefused(
        job=event.job_id,
        attempt=event.attempt,
        member=event.member,
        node=event.node,
        session=event.session,
        seq=event.seq,
        index=event.index,
        cause=event.cause.value,
        detail=event.detail,
    )


def _report(envelope: Envelope[Any]) -> i.Input:
    event: NodeReported = envelope.event
    return i.NodeReported(
        node=event.node,
        session=event.session,
        boot_id=event.boot_id,
        applied_seq=event.applied_seq,
        applied_index=event.applied_index,
        address=event.address,
        port_min=event.port_min,
        port_max=event.port_max,
        gpus=tuple(
            i.Gpu(g.index, g.type, g.memory_mib or 0, g.healthy and not g.busy_external and not g.held)
            for g in event.gpus
        ),
        runs=tuple(
            i.RunSeen(
                job=r.job_id,
                attempt=r.attempt,
                member=r.member,
                ended=r.state == "ended",
                started=r.state in ("running", "stopping"),
                cause=r.cause.value if r.cause is not None else None,
                exit_code=r.exit_code,
                signal=r.signal,
                started_at=r.started_at,
                ended_at=r.ended_at,
            )
            for r in event.runs
        ),
        stopping=event.stopping,
        lease_s=event.lease_s,
        rack=getattr(event, "rack", None),
        spine=getattr(event, "spine", None),
    )


_CONVERT: Final[dict[type[Event], Callable[[Envelope[Any]], i.Input | None]]] = {
    JobSubmitted: _job,
    JobCancelRequested: _cancel,
    JobEstimateOrdered: _estimate_order,
    JobPinRequested: _pin,
    NodeDrainRequested: _node_command("drain"),
    NodeUndrainRequested: _node_command("undrain"),
    NodeCordonRequested: _node_command("cordon"),
    NodeDeathDeclared: _node_command("dead"),
    ReservationRequested: _reservation,
    ReservationWithdrawalRequested: _withdrawal,
    RunTimeEstimated: _estimate,
    ProgressObserved: _progress,
    ProgressObservedV2: _progress,
    RunDiagnosed: _diagnosis,
    RunStarted: _started,
    RunExited: _exited,
    RunExitedV2: _exited,
    RunRefused: _refused,
    NodeReported: _report,
    NodeReportedV2: _report,
    NodeReportedV3: _report,
}
