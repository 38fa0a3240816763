"""From the read model's documents to what the API answers (pure; the time is told)."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from schedmate.infra.store.port import Document, Json
from schedmate.infra.telemetry.tracing import trace_id
from schedmate.schemas.reasons import EXPLANATIONS, Reason
from schedmate.schemas.states import JobState
from schedmate.services.ingest import models
from schedmate.services.ingest.access import Principal
from schedmate.services.ingest.node_projection import resends
from schedmate.services.ingest.projection import View

PREVIEW_BYTES: Final = 400
_WAITING: Final = frozenset({JobState.SUBMITTED, JobState.QUEUED, JobState.ASSIGNED})
_RUNNING: Final = frozenset({JobState.RUNNING, JobState.STOPPING})
_ASKED: Final = (
    "name", "tenant", "user", "pool", "gpus", "nodes", "gpu_type", "gpu_memory_gib", "priority", "time_limit_s", "retries",
    "command", "script_bytes", "env_names", "workdir", "bundle", "entry", "checkpoint_dir",
)  # fmt: skip
_SAME: Final = ("run_id", "not_before", "why_there", "policy", "resume_from", "category", "proposed_change", "cancel")


def job_view(view: View, now: float) -> models.JobView:
    """Return a job as the API shows it. The job itself must be known."""
    asked: Mapping[str, Any] = view["asked"]
    state = JobState(view["state"])
    members = _members(view)
    reason, detail, reasoned = _reason(view, state)
    started_at = _started_at(view, members)
    return models.JobView.model_validate(
        {
            **{name: asked[name] for name in _ASKED if name in asked},
            **{name: view[name] for name in _SAME if view.get(name) is not None},
            "job_id": view["job_id"],
            "state": state,
            "reason": reason,
            "detail": detail,
            "queue_position": reasoned.get("queue_position"),
            "unblocks": reasoned.get("unblocks"),
            "attempt": view["attempt"],
            "submitted_at": view["submitted_at"],
            "started_at": started_at,
            "ended_at": view.get("ended_at"),
            "wait_s": _wait_s(view, state, now),
            "run_s": _run_s(view, state, started_at, members, now),
            "gpus_total": asked["gpus"] * asked["nodes"],
            "placements": view.get("placements", []),
            "predicted": _predicted(view),
            "foretold": dict(view["foretold"]) if view.get("foretold") is not None else None,
            "progress": view.get("progress"),
            "diagnosis": view.get("diagnosis"),
            "analysis": view.get("analysis"),
            "members": members,
            "exit_codes": {str(m["member"]): m.get("exit_code") for m in members if m.get("ended_at") is not None},
            "trace_id": trace_id(view.get("traceparent")) or None,
        }
    )


def history(view: View) -> models.JobHistory:
    """Return a job's decisions."""
    return models.JobHistory(
        job_id=view["job_id"],
        decisions=[models.DecisionView.model_validate(d) for d in view.get("history", ())],
        calls=[models.Call.model_validate(c) for c in view.get("calls", ())],
    )


def why_recorded(view: View, now: float) -> models.Why:
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
        at=reasoned.get("at", view.get("since", now)),
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
    decided = view.get("started_at")
    told = [m["started_at"] for m in members if m.get("started_at") is not None]
    runs: Mapping[str, Any] = view.get("runs", {})
    if told and str(view["attempt"]) in runs:
        return float(min(told))
    return decided


def _wait_s(view: View, state: JobState, now: float) -> float:
    waited_s = float(view.get("waited_s", 0.0))
    return waited_s + (max(0.0, now - view["since"]) if state in _WAITING and "since" in view else 0.0)


def _run_s(
    view: View, state: JobState, started_at: float | None, members: Sequence[Mapping[str, Any]], now: float
) -> float | None:
    if started_at is None:
        return None
    if state in _RUNNING:
        return max(0.0, now - started_at)
    ends = [m["ended_at"] for m in members if m.get("ended_at") is not None]
    ended_at = max(ends) if ends else view.get("ended_at")
    return max(0.0, ended_at - started_at) if ended_at is not None else None


def _predicted(view: View) -> Mapping[str, Any] | None:
    """Return the newest estimate; without any, what the assignment was made on."""
    if (estimate := view.get("estimate")) is not None:
        return dict(estimate)
    if view.get("assigned_basis") is None:
        return None
    return {"p50_s": view.get("assigned_p50_s"), "basis": view["assigned_basis"], "revision": 0}


# --- nodes, pools, dead letters ---------------------------------------------------------------------------------------


def node_view(node: View, now: float, sees: Mapping[str, bool]) -> models.NodeView:
    """Return a node as the API shows it; `sees` tells which jobs the principal may see."""
    report: Mapping[str, Any] | None = node.get("report")
    runs = [r for r in (report or {}).get("runs", ()) if r["state"] != "ended"]
    job_of = {index: r["job_id"] for r in runs for index in r["gpus"]}
    gpus = [
        {**gpu, "busy": gpu["index"] in job_of, "job_id": _seen(job_of.get(gpu["index"]), sees)}
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
            "gpus_busy": len(job_of),
            "runs": len(runs),
            "orders_behind": node.get("ordered", [-1, -1]) > applied,
            "faults": node.get("faults", []),
            "calls": node.get("calls", []),
            **(
                {name: report[name] for name in ("address", "session", "boot_id", "lease_s", "same_user")}
                | {"reported_at": report["at"]}
                if report
                else {}
            ),
        }
    )


def _seen(job_id: str | None, sees: Mapping[str, bool]) -> str | None:
    return job_id if job_id is not None and sees.get(job_id, False) else None


def _node_state(node: View, report: Mapping[str, Any] | None, now: float) -> tuple[str, str]:
    if node.get("away") is not None and (report is None or report["at"] <= node["away_at"]):
        return node["away"], node.get("away_why", "")
    if node.get("mark") is not None:
        return node["mark"], node.get("mark_why", "")
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
