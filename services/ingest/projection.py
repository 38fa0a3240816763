"""The read model of jobs: events folded into one document a job (pure).

`fold` gives the same document whatever repeats and however the topics interleave: each part keeps the fact that ranks
highest by its own order (a decision's place in the pool's log, an estimate's revision, a log's offset), never the one
that came last. A document may start from any event; without the job itself it is held, listed nowhere, until that comes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from schedmate.infra.store.port import Json
from schedmate.schemas.events import (
    CallAudited,
    EstimateBasis,
    Event,
    JobAnalyzed,
    JobCancelRequested,
    JobDecision,
    JobEstimateOrdered,
    JobPinRequested,
    JobReasoned,
    JobSubmitted,
    ProgressObserved,
    ProgressObservedV2,
    RunDiagnosed,
    RunExited,
    RunExitedV2,
    RunRefused,
    RunStarted,
    RunTimeEstimated,
)
from schedmate.schemas.job import JobSpec
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.schemas.wire import Envelope

HISTORY_LEN_MAX: Final = 200
ATTEMPTS_KEPT: Final = 3
CALLS_KEPT: Final = 20
UNKNOWN_CATEGORY: Final = "UNKNOWN"

_TERMINAL: Final = frozenset(state.value for state in TERMINAL)

View = Mapping[str, Json]
"""A job's document: JSON, never changed in place."""


def job_of(event: Event) -> str | None:
    """Return the job that an event is about, as far as the read model of jobs goes."""
    if isinstance(event, CallAudited):
        return event.target.removeprefix("job/") if event.target.startswith("job/") else None
    if type(event) in _FOLDS or isinstance(event, JobDecision):
        return str(getattr(event, "job_id", "")) or None
    return None


def fold(view: View | None, job_id: str, envelope: Envelope[Event]) -> View:
    """Return the job's document after an event; the very same object when the event adds nothing."""
    before = view if view is not None else empty(job_id)
    event = envelope.event
    if isinstance(event, JobDecision):
        after = _decided(before, event, envelope)
    elif (folding := _FOLDS.get(type(event))) is not None:
        after = folding(before, event, envelope)
    else:
        return before
    return after if after is before else _keyed(after)


def empty(job_id: str) -> View:
    """Return the document of a job of which nothing is known yet."""
    return {
        "job_id": job_id,
        "state": JobState.SUBMITTED.value,
        "reason": None,
        "detail": "",
        "attempt": 0,
        "place": [-1, -1],
    }


def is_known(view: View) -> bool:
    """Tell whether the job itself has been folded, and not only events about it."""
    return "asked" in view


def restored(job_id: str, event: Envelope[JobSubmitted], decisions: Sequence[Mapping[str, Json]]) -> View:
    """Return the document that a job document makes: the job, and the decisions kept with it at its end."""
    view = fold(None, job_id, event)
    for entry in decisions:
        view = with_decision(view, event.event.pool, entry)
    return _keyed(view)


def has_ended(view: View) -> bool:
    """Tell whether the job is at its end."""
    return view["state"] in _TERMINAL


def _keyed(view: View) -> View:
    """Add the fields that lists are made by: newest last; `open_key` only while the job has not ended."""
    if not is_known(view):
        return view
    sort_key = f"{int(view['submitted_at'] * 1000):015d}/{view['job_id']}"
    keyed = {**view, "sort_key": sort_key, "tenant_key": f"{view['asked']['tenant']}/{sort_key}"}
    if view["state"] in _TERMINAL:
        keyed.pop("open_key", None)
    else:
        keyed["open_key"] = sort_key
    return keyed


# --- one function an event -------------------------------------------------------------------------------------------


def _submitted(view: View, event: JobSubmitted, envelope: Envelope[Event]) -> View:
    if is_known(view):
        return view
    return {
        **view,
        "asked": asked(event.spec),
        "pool": event.pool,
        "submitted_at": event.submitted_at,
        "traceparent": envelope.traceparent,
    }


def asked(spec: JobSpec) -> dict[str, Json]:
    """Return what the read model keeps of a job. Values of the environment may be secrets: only their names are kept."""
    kept = spec.model_dump(mode="json", exclude={"env", "script"})
    kept["env_names"] = sorted(spec.env)
    kept["script_bytes"] = None if spec.script is None else len(spec.script.encode())
    return kept


def place_of(decision: Mapping[str, Json]) -> list[int]:
    """Return a decision's place in its pool's log."""
    return [decision["seq"], decision["index"]]


def _decided(view: View, event: JobDecision, envelope: Envelope[Event]) -> View:
    """Put a decision where it belongs among the others; where the job stands is what the last of them says."""
    entry = event.model_dump(mode="json", exclude={"job_id", "pool"}, exclude_none=True)
    return with_decision(view, event.pool, {**entry, "type": event.ce_type(), "id": envelope.id})


def with_decision(view: View, pool: str, entry: Mapping[str, Json]) -> View:
    """Return the document with an entry of its history, which may be there already."""
    place = place_of(entry)
    history: list[Json] = view.get("history", [])
    at = bisect_left(history, place, key=place_of)
    left_out = view.get("left_out")
    if (at < len(history) and place_of(history[at]) == place) or (left_out and left_out[0] <= place <= left_out[1]):
        return view
    history = _with_newest_placements([*history[:at], entry, *history[at:]])
    newest = history[-1]
    after: dict[str, Any] = {
        **view,
        "pool": pool,
        "place": place_of(newest),
        **{name: newest[name] for name in ("state", "reason", "detail", "attempt")},
        "history": history,
    }
    if len(history) > HISTORY_LEN_MAX:  # the beginning and the newest tell most
        gone = history[HISTORY_LEN_MAX // 2]
        first, last = left_out or (place_of(gone), place_of(gone))
        after["left_out"] = [min(first, place_of(gone)), max(last, place_of(gone))]
        after["history"] = [one for one in history if one is not gone]
    return after


def _with_newest_placements(history: list[Json]) -> list[Json]:
    """Keep the placements of the newest assignment only: a large gang has thousands."""
    assigned = [n for n, one in enumerate(history) if "placements" in one]
    for number in assigned[:-1]:
        history[number] = {name: value for name, value in history[number].items() if name != "placements"}
    return history


def _reasoned(view: View, event: JobReasoned, _: Envelope[Event]) -> View:
    known = view.get("reasoned")
    if known is not None and (event.seq, event.at) <= (known["seq"], known["at"]):
        return view
    return {**view, "reasoned": event.model_dump(mode="json", exclude={"job_id", "pool"})}


def _estimated(view: View, event: RunTimeEstimated, _: Envelope[Event]) -> View:
    """Keep the newest estimate, and the newest that does not rest on the run itself: what was foretold."""
    told = event.model_dump(mode="json", exclude={"job_id", "pool"})
    kept = ["estimate"] if event.basis is EstimateBasis.PROGRESS else ["estimate", "foretold"]
    newer = {name: told for name in kept if (known := view.get(name)) is None or event.revision > known["revision"]}
    return {**view, **newer} if newer else view


def _analyzed(view: View, event: JobAnalyzed, _: Envelope[Event]) -> View:
    known = view.get("analysis")
    if known is not None and (event.partial_because is None, len(event.fields)) <= (
        known["partial_because"] is None,
        len(known["fields"]),
    ):
        return view
    return {**view, "analysis": event.model_dump(mode="json", exclude={"job_id", "pool"})}


def _progressed(view: View, event: ProgressObserved, envelope: Envelope[Event]) -> View:
    """Keep the newest attempt's, of it the lowest member's (the first rank prints), of it the furthest in the log."""
    known = view.get("progress")
    rank = (event.attempt, -event.member, event.log_offset)
    if known is not None and rank <= (known["attempt"], -known["member"], known["log_offset"]):
        return view
    seen = ProgressObservedV2.of(event).model_dump(mode="json", exclude={"job_id", "pool", "run_id"})
    return {**view, "progress": {**seen, "at": envelope.time}}


def _diagnosed(view: View, event: RunDiagnosed, _: Envelope[Event]) -> View:
    """Keep the newest attempt's; of it a named cause before an unknown one, then the surer one, then the first."""
    known = view.get("diagnosis")
    rank = (event.attempt, event.category != UNKNOWN_CATEGORY, event.confidence)
    if known is not None and rank <= (known["attempt"], known["category"] != UNKNOWN_CATEGORY, known["confidence"]):
        return view
    return {**view, "diagnosis": event.model_dump(mode="json", exclude={"job_id", "pool", "run_id"})}


def _member(view: View, attempt: int, run_id: str, member: int, facts: Mapping[str, Json]) -> View:
    runs: Mapping[str, Any] = view.get("runs", {})
    run = runs.get(str(attempt), {"run_id": run_id, "members": {}})
    known = run["members"].get(str(member), {})
    after = {**known, **facts}
    if after == known:
        return view
    changed = {**runs, str(attempt): {**run, "members": {**run["members"], str(member): after}}}
    kept = sorted(changed, key=int)[-ATTEMPTS_KEPT:]
    if str(attempt) not in kept:
        return view
    return {**view, "runs": {a: changed[a] for a in kept}}


def _run_started(view: View, event: RunStarted, _: Envelope[Event]) -> View:
    facts = {"node": event.node, "gpus": list(event.gpus), "started_at": event.started_at}
    return _member(view, event.attempt, event.run_id, event.member, facts)


def _run_exited(view: View, event: RunExited, _: Envelope[Event]) -> View:
    facts: dict[str, Json] = {
        "node": event.node,
        "ended_at": event.ended_at,
        "cause": event.cause.value,
        "exit_code": event.exit_code,
        "signal": event.signal,
        "log_bytes": event.log_bytes,
        "exit_detail": event.detail,
    }
    if event.started_at is not None:
        facts["exit_started_at"] = event.started_at  # each event has fields of its own: no order is needed
    if isinstance(event, RunExitedV2):
        facts |= {name: getattr(event.usage, name) for name in ("gpu_utilisation", "gpu_memory_bytes")}
    return _member(view, event.attempt, event.run_id, event.member, facts)


def _run_refused(view: View, event: RunRefused, _: Envelope[Event]) -> View:
    facts = {"node": event.node, "refused": event.cause.value, "refused_detail": event.detail, "refused_at": event.at}
    return _member(view, event.attempt, event.run_id, event.member, facts)


def _cancel_requested(view: View, event: JobCancelRequested, envelope: Envelope[Event]) -> View:
    known = view.get("cancel")
    if known is not None and known["at"] <= envelope.time:
        return view
    return {**view, "cancel": {"requested_by": event.requested_by, "why": event.why, "at": envelope.time}}


def _ordered(name: str) -> Callable[[View, Any, Envelope[Event]], View]:
    """Keep the newest order of an operator under this name, also one that takes the others back."""

    def fold_order(view: View, event: JobEstimateOrdered | JobPinRequested, envelope: Envelope[Event]) -> View:
        known = view.get(name)
        told = {**event.model_dump(mode="json", exclude={"job_id", "pool"}), "at": envelope.time}
        return view if known is not None and (known["at"] > told["at"] or known == told) else {**view, name: told}

    return fold_order


def _audited(view: View, event: CallAudited, _: Envelope[Event]) -> View:
    calls = with_call(view.get("calls", []), event)
    return view if calls is None else {**view, "calls": calls}


def with_call(calls: list[Json], event: CallAudited) -> list[Json] | None:
    """Return the newest calls with this one among them, by time; None when it is there already or too old."""
    call = {"at": event.at, "principal": event.principal, "call": event.call, "outcome": event.outcome}
    if call in calls:
        return None
    kept = sorted([*calls, call], key=lambda c: (c["at"], c["principal"], c["call"]))[-CALLS_KEPT:]
    return kept if call in kept else None


_FOLDS: Final[dict[type[Event], Callable[[View, Any, Envelope[Event]], View]]] = {
    JobSubmitted: _submitted,
    JobReasoned: _reasoned,
    RunTimeEstimated: _estimated,
    JobAnalyzed: _analyzed,
    ProgressObserved: _progressed,
    ProgressObservedV2: _progressed,
    RunDiagnosed: _diagnosed,
    RunStarted: _run_started,
    RunExited: _run_exited,
    RunExitedV2: _run_exited,
    RunRefused: _run_refused,
    JobCancelRequested: _cancel_requested,
    JobEstimateOrdered: _ordered("ordered_estimate"),
    JobPinRequested: _ordered("pin"),
    CallAudited: _audited,
}
