"""Orders to a worker, and members and fences as they stand: what tables of the worker's domain are made of."""

from __future__ import annotations

from typing import Any

from schedmate.schemas.events import ExitCause, MemberAssigned, MemberReleased, MemberStopOrdered
from schedmate.schemas.job import JobSpec
from schedmate.services.worker.fence import NOWHERE, Place, Standing
from schedmate.services.worker.member import Member

SPEC = JobSpec(name="x", command=("true",), tenant="t", user="u", pool="p")
SESSION = 5


def assigned(seq: int, run: str = "r1", **fields: Any) -> MemberAssigned:
    values: dict[str, Any] = {
        "pool": "p", "seq": seq, "index": 0, "term": 1, "node": "n1", "session": SESSION, "job_id": "j", "run_id": run, "attempt": 1,
        "member": 0, "members": 1, "gpus": (0,), "spec": SPEC, "master_addr": "127.0.0.1", "master_port": 20000,
    }  # fmt: skip
    return MemberAssigned(**{**values, **fields})


def stop(seq: int, run: str = "r1", grace_s: float = 10.0) -> MemberStopOrdered:
    return MemberStopOrdered(
        pool="p", seq=seq, index=0, term=1, node="n1", job_id="j", run_id=run, attempt=1, member=0, grace_s=grace_s
    )


def release(seq: int, run: str = "r1") -> MemberReleased:
    return MemberReleased(pool="p", seq=seq, index=0, term=1, node="n1", job_id="j", run_id=run, attempt=1, member=0)


def living(run: str = "r1", **fields: Any) -> Member:
    return Member(assigned=assigned(1, run, **fields), traceparent=None).started(pid=7, session=SESSION)


def ended(run: str = "r1") -> Member:
    return living(run).ended_before_start(ExitCause.STOPPED, session=SESSION, at=1.0, detail="")


def standing(*members: Member, applied: Place = NOWHERE, **fields: Any) -> Standing:
    values: dict[str, Any] = {
        "applied": applied,
        "session": SESSION,
        "members": {m.key: m for m in members},
        "ever_started": frozenset(m.key for m in members),
        "gpus_present": frozenset(range(4)),
    }
    return Standing(**{**values, **fields})
