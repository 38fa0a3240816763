"""From an entry to the events that tell the world: unchanged at every repeat, so ids and contents follow from the log alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from schedmate.infra.deadletters import dead_letter
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.tracing import format_traceparent, span_from
from schedmate.schemas import events as e
from schedmate.schemas.codec import encode
from schedmate.schemas.ids import decision_id, derived, run_id
from schedmate.schemas.job import JobSpec
from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobEvent, JobState, StopIntent, transition
from schedmate.schemas.wire import Delivery, Envelope, Record
from schedmate.services.dispatcher.core.decisions import Decision, Moved, NodeMarked, Noted, Placed, Release, Stop
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.log import Entry, Refusal

SERVICE: Final = "dispatcher"
SOURCE: Final = "schedmate/dispatcher"
_LOSSLESS: Final = "latin-1"


@dataclass(frozen=True, slots=True)
class Told:
    """What an event about a job needs beside the decision: the job's trace and, for an assignment, its spec; of a partner, its attempt."""

    trace: str | None
    spec: str
    attempt: int = 0


def told_of(state: PoolState, entry: Entry) -> dict[str, Told]:
    """Return trace and spec of the jobs that the entry decides about; call it right after the entry was decided or folded."""
    wanted = dict.fromkeys(d.job for d in entry.decisions if isinstance(d, (Moved, Noted, Placed, Stop, Release)))
    wanted |= dict.fromkeys(d.beside for d in entry.decisions if isinstance(d, Placed) and d.beside is not None)
    told: dict[str, Told] = {}
    for job_id in wanted:
        job = state.jobs.get(job_id) or state.ended_now.get(job_id)
        if job is not None:
            told[job_id] = Told(job.trace, job.spec, job.attempt)
    return told


def events_of(entry: Entry, told: dict[str, Told], states_before: dict[int, str]) -> list[Envelope[e.Event]]:
    """Return the events of an entry, in the order of its decisions.

    Args:
        entry: the entry.
        told: see `told_of`.
        states_before: for each place of a `Moved` or `Noted`, the job's state before it (recorded while applying).
    """
    out: list[Envelope[e.Event]] = []
    for index, decision in enumerate(entry.decisions):
        maker = _MAKERS[type(decision)]
        out.extend(maker(entry, index, decision, told, states_before.get(index, "")))
    return out


def encode_entry(entry: Entry, state: PoolState, spans: set[int], batch_trace: str) -> list[Record]:
    """Return the records of an entry: its events, and the dead letters of what it refused."""
    records: list[Record] = []
    traces: dict[int, str] = {}
    for envelope in events_of(entry, told_of(state, entry), state.before):
        index = getattr(envelope.event, "index", -1)
        trace = envelope.traceparent
        if index in spans and index not in traces:
            job_id = getattr(envelope.event, "job_id", "")
            with span_from(trace, names.DECIDE, links=[batch_trace], job_id=job_id, pool=entry.pool) as decided:
                traces[index] = format_traceparent(decided.get_span_context())
        records.append(encode(_with_trace(envelope, traces.get(index, trace))))
    for refused in entry.refused.values():
        delivery = refused_delivery(refused)
        if delivery is not None:
            records.append(encode(dead_letter(delivery, SERVICE, refused.error, 1, entry.at)))
    return records


def _with_trace(envelope: Envelope[e.Event], trace: str | None) -> Envelope[e.Event]:
    return Envelope(envelope.id, envelope.source, envelope.time, envelope.event, trace)


def _envelope(entry: Entry, index: int, event: e.Event, trace: str | None, part: str = "") -> Envelope[e.Event]:
    identity = decision_id(entry.pool, entry.seq, index)
    return Envelope(derived(identity, part) if part else identity, SOURCE, entry.at, event, trace)


_MOVED_EVENTS: Final[dict[str, type[e.JobDecision]]] = {
    JobEvent.ADMIT: e.JobQueued,
    JobEvent.REJECT: e.JobRejected,
    JobEvent.START: e.JobStarted,
    JobEvent.STOP: e.JobStopping,
    JobEvent.END_BADLY: e.JobDiagnosing,
    JobEvent.REQUEUE: e.JobRequeued,
    JobEvent.COMPLETE: e.JobSucceeded,
    JobEvent.FAIL: e.JobFailed,
    JobEvent.CANCEL: e.JobCancelled,
}


def _job_base(entry: Entry, index: int, decision: Moved | Noted | Placed, state: str, reason: str) -> dict[str, Any]:
    return {
        "pool": entry.pool,
        "seq": entry.seq,
        "index": index,
        "decided_at": entry.at,
        "job_id": decision.job,
        "attempt": decision.attempt,
        "state": state,
        "reason": reason,
    }


def _moved(entry: Entry, index: int, decision: Moved, told: dict[str, Told], before: str) -> list[Envelope[e.Event]]:
    after = transition(JobState(before), JobEvent(decision.event))
    fields = _job_base(entry, index, decision, after.value, decision.reason) | {"detail": decision.detail}
    model = _MOVED_EVENTS[decision.event]
    if "run_id" in model.model_fields:
        fields["run_id"] = run_id(decision.job, decision.attempt)
    if model is e.JobStopping:
        fields["intent"] = StopIntent(decision.intent).name.lower()
    elif model is e.JobRequeued:
        fields |= {"not_before": decision.not_before, "resume_from": decision.resume_from}
    elif model is e.JobFailed:
        fields |= {"category": decision.category, "proposed_change": decision.proposed_change}
    known = told.get(decision.job)
    return [_envelope(entry, index, model(**fields), known.trace if known is not None else None)]


def _noted(entry: Entry, index: int, decision: Noted, told: dict[str, Told], before: str) -> list[Envelope[e.Event]]:
    known = told.get(decision.job)
    base = _job_base(entry, index, decision, before, decision.reason)
    fields = base | {"detail": decision.detail, "run_id": run_id(decision.job, decision.attempt)}
    if before == JobState.STOPPING:
        raised = StopIntent(decision.intent).name.lower() if decision.intent else "unchanged"
        event: e.JobDecision = e.JobStopping(**fields, intent=raised)
    else:
        event = e.JobReachabilityChanged(**fields)
    return [_envelope(entry, index, event, known.trace if known is not None else None)]


def _placed(
    entry: Entry,
    index: int,
    decision: Placed,
    told: dict[str, Told],
    before: str,  # noqa: ARG001 - one signature for all
) -> list[Envelope[e.Event]]:
    known = told[decision.job]
    run = run_id(decision.job, decision.attempt)
    assigned = e.JobAssigned(
        **_job_base(entry, index, decision, JobState.ASSIGNED, Reason.STARTING),
        run_id=run,
        placements=tuple(e.Placement(member=n, node=s.node, gpus=s.gpus) for n, s in enumerate(decision.seats)),
        policy=str(entry.config.get("policy", "")),
        passed_over=decision.passed_over,
        why_there=why_there(decision),
        predicted_p50_s=decision.p50_s,
        predicted_basis=decision.basis,
        resume_from=decision.resume_from,
    )
    spec = JobSpec.model_validate_json(known.spec)
    holds = _holds(entry, decision, told)
    members = [
        _assigned(
            holds,
            pool=entry.pool,
            seq=entry.seq,
            index=index,
            term=entry.term,
            node=seat.node,
            session=seat.session,
            job_id=decision.job,
            run_id=run,
            attempt=decision.attempt,
            member=number,
            members=len(decision.seats),
            gpus=seat.gpus,
            spec=spec,
            master_addr=decision.master_addr,
            master_port=decision.master_port,
            resume_from=decision.resume_from,
        )
        for number, seat in enumerate(decision.seats)
    ]
    return [
        _envelope(entry, index, assigned, known.trace),
        *(_envelope(entry, index, m, known.trace, f"member/{m.member}") for m in members),
    ]


def _holds(entry: Entry, decision: Placed, told: dict[str, Told]) -> dict[str, Any]:
    """Return how the members hold their GPUs, empty where they hold them whole and alone."""
    if decision.gpu_milli < WHOLE_MILLI:
        return {"gpu_milli": decision.gpu_milli}
    if not (entry.config.get("gpu_sharing") and policy_named(str(entry.config["policy"])).packs):
        return {}
    host = decision.beside
    return {"packable": True, "packed_with": run_id(host, told[host].attempt) if host is not None else None}


def _assigned(holds: dict[str, Any], **fields: Any) -> e.MemberAssigned:
    """Return the order to a member; in the version that every worker reads where it holds its GPUs whole and alone."""
    return e.MemberAssignedV2(**fields, **holds) if holds else e.MemberAssigned(**fields)


def why_there(decision: Placed) -> str:
    """Return in a sentence why these GPUs were chosen."""
    first = decision.seats[0]
    if decision.beside is not None:
        return f"packed with job {decision.beside} on {first.node}: their profiles go together"
    if decision.gpu_milli < WHOLE_MILLI:
        return f"{decision.gpu_milli / WHOLE_MILLI:g} of GPU {first.gpus[0]} of {first.node}, best fit on what is left of a GPU"
    count = len(first.gpus)
    if len(decision.seats) == 1:
        left = decision.free - count
        text = f"best fit: {first.node} had {decision.free} free GPUs, the fewest that are enough for {count}, and keeps {left}"
    else:
        nodes = ", ".join(seat.node for seat in decision.seats[:8]) + (" …" if len(decision.seats) > 8 else "")  # noqa: PLR2004
        text = f"gang of {len(decision.seats)} x {count} placed whole by best fit on {nodes}"
    text += f"; {decision.fitting} GPUs were free in the pool"
    if decision.passed_over:
        text += f"; {decision.passed_over} kinds of earlier jobs did not fit or were at a limit"
    return text


def _order(decision: Stop | Release, entry: Entry, index: int) -> dict[str, Any]:
    return {
        "pool": entry.pool,
        "seq": entry.seq,
        "index": index,
        "term": entry.term,
        "node": decision.node,
        "job_id": decision.job,
        "run_id": run_id(decision.job, decision.attempt),
        "attempt": decision.attempt,
        "member": decision.member,
    }


def _stop(
    entry: Entry,
    index: int,
    decision: Stop,
    told: dict[str, Told],
    before: str,  # noqa: ARG001
) -> list[Envelope[e.Event]]:
    known = told.get(decision.job)
    event = e.MemberStopOrdered(**_order(decision, entry, index), grace_s=decision.grace_s)
    return [_envelope(entry, index, event, known.trace if known is not None else None)]


def _release(
    entry: Entry,
    index: int,
    decision: Release,
    told: dict[str, Told],
    before: str,  # noqa: ARG001
) -> list[Envelope[e.Event]]:
    known = told.get(decision.job)
    event = e.MemberReleased(**_order(decision, entry, index))
    return [_envelope(entry, index, event, known.trace if known is not None else None)]


_MARKS: Final[dict[str, type[e.NodeDecision]]] = {
    "cordoned": e.NodeCordoned,
    "drained": e.NodeDrained,
    "uncordoned": e.NodeUncordoned,
    "lost": e.NodeLost,
    "unreachable": e.NodeUnreachable,
    "joined": e.NodeJoined,
    "reserved": e.NodeReserved,
    "unreserved": e.NodeUnreserved,
}


def _node(
    entry: Entry,
    index: int,
    decision: NodeMarked,
    told: dict[str, Told],  # noqa: ARG001
    before: str,  # noqa: ARG001
) -> list[Envelope[e.Event]]:
    event = _MARKS[decision.mark](
        pool=entry.pool, seq=entry.seq, index=index, decided_at=entry.at, node=decision.node, why=decision.why
    )
    return [_envelope(entry, index, event, None)]


_MAKERS: Final[dict[type[Decision], Callable[..., list[Envelope[e.Event]]]]] = {
    Moved: _moved,
    Noted: _noted,
    Placed: _placed,
    Stop: _stop,
    Release: _release,
    NodeMarked: _node,
}


# --- refused inputs ---


def refusal(error: str, delivery: Delivery | None) -> Refusal:
    """Return what the log keeps of a refused input: its error and the whole record, so that it can be dead-lettered from there."""
    if delivery is None:
        return Refusal(error)
    record = delivery.record
    return Refusal(
        error=error,
        topic=record.topic,
        partition=delivery.partition,
        offset=delivery.offset,
        key=record.key.decode(_LOSSLESS),
        value=record.value.decode(_LOSSLESS),
        headers=tuple((name, value.decode(_LOSSLESS)) for name, value in record.headers),
    )


def refused_delivery(value: Refusal) -> Delivery | None:
    """Return the record that a refused input came from; None when it came from no record (a timer)."""
    if not value.topic:
        return None
    headers = tuple((name, text.encode(_LOSSLESS)) for name, text in value.headers)
    record = Record(value.topic, value.key.encode(_LOSSLESS), value.value.encode(_LOSSLESS), headers)
    return Delivery(record, value.partition, value.offset)
