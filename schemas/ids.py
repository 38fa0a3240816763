"""Ids derived from causes (protocol §5): a repeat of the cause gives the same id, so it is recognised."""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid5

NAMESPACE: Final = UUID("6f0a5c1e-3f63-5d0b-9a52-5c6d9b3f7a10")


def derived(*parts: str | int) -> str:
    """Return the id that follows from `parts`; the separator cannot occur in any of them."""
    return str(uuid5(NAMESPACE, "\x1f".join(str(p) for p in parts)))


def job_id(tenant: str, idempotency_key: str) -> str:
    """Id of the job that this tenant submits under this key."""
    return derived("job", tenant, idempotency_key)


def run_id(job: str, attempt: int) -> str:
    """Id of one attempt of a job."""
    return derived("run", job, attempt)


def decision_id(pool: str, seq: int, index: int) -> str:
    """Id of a decision: its place in the pool's log."""
    return derived("decision", pool, seq, index)


def member_event_id(run: str, member: int, kind: str) -> str:
    """Id of an event that a worker says once about a member (`started`, `exited`, `refused`)."""
    return derived("member", run, member, kind)


def log_chunk_id(run: str, member: int, start: int, end: int) -> str:
    """Id of a chunk of a member's output: its byte range [start, end)."""
    return derived("log", run, member, start, end)
