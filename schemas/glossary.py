"""What the fields of events mean, with their units: one meaning a name, said once.

A field that describes itself (`Field(description=...)`) keeps its words. A name that means something else in one model stands
under `Model.field`. A test holds that no field of any event is without words and that no word is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic import BaseModel

MEANINGS: Final[dict[str, str]] = {
    # whose
    "job_id": "The job. uuid5 of tenant and idempotency key, or random without a key.",
    "pool": "The named set of nodes that the job or the node belongs to.",
    "tenant": "Who the job belongs to.",
    "user": "The person of the tenant.",
    "node": "The node's name.",
    "run_id": "One attempt of the job: uuid5(job, attempt).",
    "attempt": "Counts the assignments of the job, from 1.",
    "member": "Rank of the member in its gang, from 0; one runs on each node.",
    "members": "How many members the gang has.",
    # requests and commands
    "request_id": "The platform's idempotency key: the same id is the same job.",
    "request": "The job that is asked for.",
    "requested_by": "The principal that asked.",
    "reservation_id": "The reservation's id.",
    "ReservationRequested.nodes": "The nodes that are wanted free; empty where `count` says how many.",
    "start_at": "When it begins.",
    "end_at": "When it has ended.",
    "place": "Where in its priority class the job shall wait: `first`, `last`, or `none`: where the policy has it.",
    "JobEstimateOrdered.p50_s": "Median of the run time as the operator has it, seconds; null clears what was ordered.",
    "why": "What was said about it, for people; may be empty.",
    "submitted_at": "When ingest accepted the job, Unix seconds.",
    "spec": "The job as it was accepted, every default decided.",
    # audit
    "principal": "Who called: the token's subject, or a service.",
    "CallAudited.tenant": "The tenant that the principal acted for; null for operators.",
    "scope": "The token's scope that the call was allowed or refused by.",
    "call": "Method and path template, e.g. `POST /v1/jobs`.",
    "target": "The job, node or bundle that the call was about; may be empty.",
    "outcome": "What came of the call.",
    # what the source says
    "content_hash": "sha256 of what was analysed.",
    "fields": "What was found, by the name of the workload's field; a field that is not there is unknown.",
    "WorkloadField.value": "The value itself.",
    "WorkloadField.basis": "What the value rests on.",
    "file": "The file that the line stands in.",
    "line": "The line's number, from 1.",
    "confidence": "How sure this is, 0 to 1.",
    # estimates
    "revision": "Grows with each better estimate of the same job; the highest counts.",
    "p10_s": "10 % quantile of the run time, seconds.",
    "p50_s": "Median of the run time, seconds.",
    "p90_s": "90 % quantile of the run time, seconds.",
    "early_end_risk": "Probability that the run ends early by failure or cancellation, 0 to 1.",
    "gpu_utilisation": "Expected mean use of its GPUs, 0 to 1.",
    "gpu_memory_bytes": "Expected peak of memory on each GPU, bytes.",
    "RunTimeEstimated.basis": "How the estimate was obtained; `unknown` carries no numbers.",
    # progress
    "log_offset": "Bytes of the member's output that this was read from.",
    "step": "The last step that the log tells of.",
    "total_steps": "Steps that the run will take.",
    "epoch": "The last epoch that the log tells of; a part of an epoch is a fraction.",
    "total_epochs": "Epochs that the run will take.",
    "fraction": "Part of the work that is done, 0 to 1.",
    "steps_per_sec": "Speed of late, steps a second.",
    "eta_s": "Remaining time, seconds, as of this event.",
    "eta_low_s": "Least of the interval of the remaining time, seconds; null when it cannot be told.",
    "eta_high_s": "Most of the interval of the remaining time, seconds; null when it cannot be told.",
    "phase": "What the job is doing.",
    "loss": "The last loss that the log tells of.",
    # diagnoses
    "culpable": "The side that the failure is laid to; null when it cannot be said.",
    "RunDiagnosed.action": "What should happen next.",
    "evidence": "The line that the diagnosis rests on.",
    "culprit_node": "The node that the failure is laid to.",
    "resume_from": "Checkpoint that the next attempt should resume from.",
    "proposed_change": "What the user should change before another attempt.",
    "work_was_complete": "True when only the teardown failed: the job has succeeded.",
    "RunDiagnosed.source": "What came to this diagnosis.",
    "Evidence.text": "The line itself.",
    # decisions
    "seq": "The entry's number in the pool's log.",
    "index": "The decision's number in its entry, from 0.",
    "term": "The leader's term: grows with each change of leader.",
    "decided_at": "The time that the core was told, Unix seconds; never decreasing in a pool.",
    "JobDecision.state": "The job's state after this decision.",
    "reason": "Why the job stands there.",
    "detail": "The particulars, for people; may be empty.",
    "placements": "Where each member runs, by member.",
    "policy": "The policy that ordered the queue.",
    "why_there": "Why these nodes and GPUs were chosen.",
    "predicted_p50_s": "Median of the run time as estimated when it was assigned, seconds.",
    "predicted_basis": "How that estimate was obtained.",
    "intent": "Why members are being stopped: REQUEUE, DIAGNOSE, FAIL or CANCEL. It only ever rises.",
    "not_before": "The earliest time of the next attempt, Unix seconds.",
    "category": "The failure's category, from the diagnosis that was folded in.",
    # assignments
    "session": "The node's session: grows at each start of its worker and each lapse of its lease.",
    "gpus": "Indexes of the GPUs on the node.",
    "master_addr": "Address of the gang's first member.",
    "master_port": "Port of the gang's first member, out of its node's range.",
    "grace_s": "Time between SIGTERM and SIGKILL, seconds.",
    # reasons
    "entries": "What is in it, the newest last, at most 200.",
    "modified_at": "When it was last written, Unix seconds.",
    "at": "When this was so, Unix seconds.",
    "queue_position": "Jobs that stand before it in the policy's order.",
    "unblocks": "What would let the job start, where that is known.",
    "Unblocks.text": "The counterfactual in words.",
    "waits_for_jobs": "The jobs whose end would make room.",
    "expected_at": "When that is expected, Unix seconds.",
    # runs
    "pid": "Process id of the member's supervisor group on its node.",
    "started_at": "When the member's process started, Unix seconds; null when it never did.",
    "ended_at": "When the last process of the member had ended, Unix seconds; null while it lives.",
    "RunExited.cause": "How the member came to its end.",
    "RunReport.cause": "How the member came to its end; null while it lives.",
    "RunRefused.cause": "Why nothing was started.",
    "exit_code": "Exit status 0..255; null while it lives, when a signal ended it, or when it is unknown.",
    "signal": "Number of the signal that ended the member; null without one.",
    "log_bytes": "Length of the member's output so far, bytes; final once the member has ended.",
    "RunReport.state": "Where the member stands on its node.",
    # nodes
    "boot_id": "The operating system's boot: another one proves that every earlier run is dead.",
    "applied_index": "The second part of it.",
    "address": "Address that other nodes reach this one at.",
    "port_min": "First port that gangs may use.",
    "port_max": "Last port that gangs may use.",
    "NodeReported.gpus": "Every GPU of the node.",
    "rack": "The rack that the node stands in: the nodes under one leaf switch, its leaf group.",
    "spine": "The spine that its rack hangs on.",
    "usage": "What was measured of the member's GPUs.",
    "measured": "What was measured of the node's living runs so far; a run that nothing was measured of is not there.",
    "runs": "Every run member of the node, living or ended and not yet released.",
    "stopping": "The worker is going away and starts nothing more.",
    "lease_s": "How long a report keeps the node's runs alive, seconds.",
    "GpuReport.index": "The GPU's index on its node, from 0.",
    "GpuReport.type": "The GPU's type, e.g. `A100`.",
    "memory_mib": "The GPU's memory, MiB.",
    "healthy": "False when the GPU must not be used.",
    "utilisation": "The GPU's use at present, 0 to 1.",
    "memory_used_mib": "Memory in use at present, MiB.",
    "origin": "Which side of the node says so.",
    "gpu": "Index of the GPU, where one is named.",
    "xid": "The driver's error number (Xid), where there is one.",
    "NodeFaultObserved.text": "The line itself.",
    # logs
    "start": "First byte of the range in the member's output.",
    "end": "The byte after the last one of the range.",
    "gap": "True when these bytes will never come; `content` is empty then.",
    "content": "The bytes themselves.",
    # dead letters
    "original_topic": "Topic that the record was read from.",
    "original_partition": "Partition that it was read from.",
    "original_offset": "Offset that it was read at.",
    "original_key": "The record's key, one character a byte (Latin-1), so that a foreign one survives.",
    "original_value": "The record's value, whole.",
    "original_headers": "The record's headers but a token, as pairs of name and value; a value is one character a byte (Latin-1).",
    "service": "The reader that could not process it.",
    "error": "What went wrong.",
    "attempts": "How often it was tried.",
}


def meaning(model: type[BaseModel], field: str) -> str:
    """Return the words for a field of `model`, its own before the glossary's.

    Raises:
        KeyError: nobody has said what the field means.
    """
    own = model.model_fields[field].description
    return own if own is not None else MEANINGS[word(model, field)]


def word(model: type[BaseModel], field: str) -> str:
    """Return the key in `MEANINGS` that explains a field of `model`: a base's particular meaning goes before the general one."""
    particular = (f"{base.__name__}.{field}" for base in model.__mro__)
    return next((name for name in particular if name in MEANINGS), field)
