"""From the read model's documents to what the API answers (pure; the time is told)."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from schedmate.infra.store.port import Document, Json
from schedmate.infra.telemetry.tracing import trace_id
from schedmate.schemas.events import JobAssigned, JobDecision, JobStarted
from schedmate.schemas.reasons import EXPLANATIONS, Reason
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.services.ingest import models
from schedmate.services.ingest.access import Principal
from schedmate.services.ingest.node_projection import resends
from schedmate.services.ingest.projection import View

_QUANTILES: Final = ("p10_s", "p50_s", "p90_s")
PREVIEW_BYTES: Final = 400
_WAITING: Final = frozenset({JobState.SUBMITTED, JobState.QUEUED, JobState.ASSIGNED})
_RUNNING: Final = frozenset({JobState.RUNNING, JobState.STOPPING})
_ASKED: Final = (
    "name", "tenant", "user", "pool", "gpus", "nodes", "gpu_type", "gpu_memory_gib", "priority", "time_limit_s", "retries",
    "kind", "within", "gpu_milli", "command", "script_bytes", "env_names", "workdir", "bundle", "entry", "checkpoint_dir",
)  # fmt: skip


def job_view(view: View, now: float) -> models.JobView:
    """Return a job as the API shows it. The job itself must be known."""
    asked: Mapping[str, Any] = view["asked"]
    state = JobState(view["state"])
    members = _members(view)
    reason, detail, reasoned = _reason(view, state)
    started_at = _started_at(view, members)
    assigned, last = _last(view, JobAssigned), _newest(view)
    return models.JobView.model_validate(
        {
            **{name: asked[name] for name in _ASKED if name in asked},
            **{name: assigned.get(name) for name in ("run_id", "why_there", "policy")},
            **{name: last.get(name) for name in ("not_before", "category", "proposed_change")},
            "job_id": view["job_id"],
            "state": state,
            "reason": reason,
            "detail": detail,
            "queue_position": reasoned.get("queue_position"),
            "unblocks": reasoned.get("unblocks"),
            "attempt": view["attempt"],
            "submitted_at": view["submitted_at"],
            "started_at": started_at,
            "ended_at": last["decided_at"] if state in TERMINAL else None,
            "wait_s": _wait_s(view, now),
            "run_s": _run_s(state, started_at, last, members, now),
            "gpus_total": asked["gpus"] * asked["nodes"],
            "placements": assigned.get("placements", []),
            "resume_from": last.get("resume_from", assigned.get("resume_from")),
            "predicted": _predicted(view, assigned),
            "foretold": view.get("foretold"),
            "progress": view.get("progress"),
            "diagnosis": view.get("diagnosis"),
            "analysis": view.get("analysis"),
            "cancel": view.get("cancel"),
            "ordered_estimate": _ordered_estimate(view),
            "pin": pin if (pin := view.get("pin")) is not None and pin["place"] != "none" else None,
            "members": members,
            "exit_codes": {str(m["member"]): m.get("exit_code") for m in members if m.get("ended_at") is not None},
            "trace_id": trace_id(view.get("traceparent")) or None,
        }
    )


def _newest(view: View) -> Mapping[str, Any]:
    """Return the newest decision; empty before the first."""
    decisions: Sequence[Mapping[str, Any]] = view.get("history", ())
    return decisions[-1] if decisions else {}


def _last(view: View, kind: type[JobDecision]) -> Mapping[str, Any]:
    """Return the newest decision of a kind; empty when there was none."""
    decisions: Sequence[Mapping[str, Any]] = view.get("history", ())
    return next((one for one in reversed(decisions) if one["type"] == kind.ce_type()), {})


def history(view: View) -> models.JobHistory:
    """Return a job's decisions."""
    return models.JobHistory(
        job_id=view["job_id"],
        decisions=[models.DecisionView.model_validate(d) for d in view.get("history", ())],
        calls=[models.Call.model_validate(c) for c in view.get("calls", ())],
    )


def why_recorded(view: View) -> models.Why:
    """Return why a job stands where it stands, as last recorded."""
    state = JobState(view["state"])
    reason, detail, reasoned = _reason(view, state)
    return models.Why(
        job_id=view["job_id"],
        pool=view["pool"],
        state=state,
        reason=reason,
        detail=detail,
        queue_position=reasoned.get("queue_position"),
        unblocks=reasoned.get("unblocks"),
        at=reasoned.get("at", _newest(view).get("decided_at", view["submitted_at"])),
        source="recorded",
    )


def why_from_leader(view: View, answer: Mapping[str, Json], now: float) -> models.Why:
    """Return why a job stands where it stands, as the leader says.

    Raises:
        ValueError: the answer is none.
    """
    reason = Reason(answer["reason"])
    return models.Why(
        job_id=view["job_id"],
        pool=view["pool"],
        state=JobState(answer.get("state") or view["state"]),
        reason=reason,
        detail=answer.get("detail") or EXPLANATIONS[reason],
        queue_position=answer.get("queue_position"),
        unblocks=answer.get("unblocks"),
        at=answer.get("at", now),
        source="leader",
    )


def _reason(view: View, state: JobState) -> tuple[Reason, str, Mapping[str, Any]]:
    """Return the newest reason: the leader's words count when they are about where the job stands now."""
    reasoned: Mapping[str, Any] | None = view.get("reasoned")
    lasting = state in (JobState.QUEUED, JobState.SUBMITTED, JobState.RUNNING)
    if reasoned is not None and lasting and reasoned["seq"] >= view["place"][0]:
        reason = Reason(reasoned["reason"])
        return reason, reasoned["detail"] or EXPLANATIONS[reason], reasoned
    reason = Reason(view["reason"]) if view["reason"] is not None else Reason.NOT_YET_CONSIDERED
    return reason, view["detail"] or EXPLANATIONS[reason], {}


def _members(view: View) -> list[dict[str, Any]]:
    runs: Mapping[str, Any] = view.get("runs", {})
    if not runs:
        return []
    newest = runs[max(runs, key=int)]["members"]
    return [
        {
            **told,
            "member": int(member),
            "started_at": told.get("started_at", told.get("exit_started_at")),
            "detail": told.get("exit_detail") or told.get("refused_detail") or "",
        }
        for member, told in sorted(newest.items(), key=lambda item: int(item[0]))
    ]


def _started_at(view: View, members: Sequence[Mapping[str, Any]]) -> float | None:
    """Return when the newest started attempt began: what its members say is nearer than when the log took note."""
    told = [m["started_at"] for m in members if m.get("started_at") is not None]
    runs: Mapping[str, Any] = view.get("runs", {})
    if told and str(view["attempt"]) in runs:
        return float(min(told))
    return _last(view, JobStarted).get("decided_at")


def _wait_s(view: View, now: float) -> float:
    """Return the seconds in which the job waited or was being started, over all attempts."""
    waited_s, state, since = 0.0, JobState.SUBMITTED, view["submitted_at"]
    for decision in view.get("history", ()):
        if state in _WAITING:
            waited_s += max(0.0, decision["decided_at"] - since)
        state, since = JobState(decision["state"]), decision["decided_at"]
    return waited_s + (max(0.0, now - since) if state in _WAITING else 0.0)


def _run_s(
    state: JobState, started_at: float | None, last: Mapping[str, Any], members: Sequence[Mapping[str, Any]], now: float
) -> float | None:
    if started_at is None:
        return None
    if state in _RUNNING:
        return max(0.0, now - started_at)
    ends = [m["ended_at"] for m in members if m.get("ended_at") is not None]
    ended_at = max(ends) if ends else last["decided_at"] if state in TERMINAL else None
    return max(0.0, ended_at - started_at) if ended_at is not None else None


def _ordered_estimate(view: View) -> Mapping[str, Any] | None:
    """Return the operator's estimate that stands, within the job's time limit."""
    ordered = view.get("ordered_estimate")
    if ordered is None or ordered["p50_s"] is None:
        return None
    limit_s = view["asked"].get("time_limit_s")
    if limit_s is None:
        return dict(ordered)
    bounded = {name: min(ordered[name], limit_s) for name in _QUANTILES if ordered[name] is not None}
    return {**ordered, **bounded}


def _predicted(view: View, assigned: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the operator's estimate, else the newest; without any, what the assignment was made on."""
    if (ordered := _ordered_estimate(view)) is not None:
        return {**{name: ordered[name] for name in _QUANTILES}, "basis": "operator", "revision": 0}
    if (estimate := view.get("estimate")) is not None:
        return dict(estimate)
    if assigned.get("predicted_basis") is None:
        return None
    return {"p50_s": assigned.get("predicted_p50_s"), "basis": assigned["predicted_basis"], "revision": 0}


# --- nodes, pools, dead letters ---------------------------------------------------------------------------------------


def node_view(node: View, now: float, sees: Mapping[str, bool]) -> models.NodeView:
    """Return a node as the API shows it; `sees` tells which jobs the principal may see."""
    report: Mapping[str, Any] | None = node.get("report")
    runs = [r for r in (report or {}).get("runs", ()) if r["state"] != "ended"]
    jobs_of = _jobs_on_gpus(runs)
    gpus = [
        {
            **gpu,
            "busy": gpu["index"] in jobs_of,
            "job_id": _seen(next(iter(jobs_of.get(gpu["index"], ())), None), sees),
            "jobs": [job for job in jobs_of.get(gpu["index"], ()) if _seen(job, sees) is not None],
        }
        for gpu in (report or {}).get("gpus", ())
    ]
    state, why = _node_state(node, report, now)
    applied = [report["applied_seq"], report["applied_index"]] if report else [-1, -1]
    return models.NodeView.model_validate(
        {
            "node": node["node"],
            "pool": node.get("pool", "default"),
            "state": state,
            "why": why,
            "gpus": gpus,
            "gpus_total": len(gpus),
            "gpus_busy": len(jobs_of),
            "runs": len(runs),
            "orders_behind": node.get("ordered", [-1, -1]) > applied,
            "faults": node.get("faults", []),
            "calls": node.get("calls", []),
            **(
                {name: report[name] for name in ("address", "session", "boot_id", "lease_s", "same_user")}
                | {name: report.get(name) for name in ("rack", "spine")}
                | {"reported_at": report["at"]}
                if report
                else {}
            ),
        }
    )


def _jobs_on_gpus(runs: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return the jobs on each GPU, in the order in which they were assigned: several where it is shared."""
    jobs: dict[int, list[str]] = {}
    for run in sorted(runs, key=lambda r: (r["seq"], r["index"], r["member"])):
        for gpu in run["gpus"]:
            jobs.setdefault(gpu, []).append(run["job_id"])
    return jobs


def _seen(job_id: str | None, sees: Mapping[str, bool]) -> str | None:
    return job_id if job_id is not None and sees.get(job_id, False) else None


def _node_state(node: View, report: Mapping[str, Any] | None, now: float) -> tuple[str, str]:
    away, mark, reservation = node.get("away", {}), node.get("mark", {}), node.get("reservation", {})
    if away.get("state") is not None and (report is None or report["at"] <= away["at"]):
        return away["state"], away["why"]
    for word in (mark, reservation):
        if word.get("state") is not None:
            return word["state"], word["why"]
    if report is None:
        return "unknown", "the node has never reported"
    if report["stopping"]:
        return "stopping", "its worker is going away"
    if now - report["at"] > report["lease_s"]:
        return "silent", f"no report for {now - report['at']:.0f} s"
    return "up", ""


def jobs_on(nodes: Sequence[View]) -> set[str]:
    """Return the jobs whose runs the nodes report."""
    return {r["job_id"] for node in nodes for r in (node.get("report") or {}).get("runs", ())}


def pool_view(
    pool: str,
    nodes: Sequence[models.NodeView],
    states: Sequence[str],
    lease: Mapping[str, Json] | None,
    config: Mapping[str, Json] | None,
) -> models.PoolView:
    """Return a pool at a glance. `states` are those of its jobs that have not ended."""
    types = [gpu.type for node in nodes for gpu in node.gpus]
    leader = None
    if lease is not None and lease.get("holder"):
        leader = models.Leader(
            holder=str(lease["holder"]), term=int(lease.get("term", 0)), address=lease.get("address")
        )
    return models.PoolView(
        pool=pool,
        leader=leader,
        nodes=len(nodes),
        nodes_by_state=_counted([node.state for node in nodes]),
        gpus_total=sum(node.gpus_total for node in nodes),
        gpus_busy=sum(node.gpus_busy for node in nodes),
        gpus_by_type=_counted(types),
        jobs_by_state=_counted(states),
        config=dict(config or {}),
    )


def _counted(values: Sequence[str]) -> dict[str, int]:
    return {value: values.count(value) for value in sorted(set(values))}


def dead_letter_view(document: Document) -> models.DeadLetterView:
    """Return a dead letter as the API shows it."""
    body = document.body
    value = urlsafe_b64decode(body["original_value"])
    return models.DeadLetterView.model_validate(
        {
            **body,
            "id": document.id,
            "value_bytes": len(value),
            "value_preview": value[:PREVIEW_BYTES].decode("utf-8", "replace"),
            "resends": resends(body),
        }
    )


def visible(view: View, principal: Principal) -> bool:
    """Tell whether a principal may see a job."""
    return principal.sees(view["asked"]["tenant"])
