"""Answers about nodes and pools, and about reservations of nodes."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from schedmate.services.ingest.models.answer import Answer, Call


class GpuView(Answer):
    """One GPU as its worker sees it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    index: int
    type: str
    memory_mib: int | None = None
    healthy: bool
    busy_external: bool
    held: bool
    utilisation: float | None = None
    memory_used_mib: int | None = None
    job_id: str | None = Field(
        default=None, description="The job that was first on it; null also when it is another tenant's."
    )
    jobs: list[str] = Field(
        default_factory=list, description="The jobs on it, the first one first, without those of other tenants."
    )
    busy: bool = Field(description="A run of ours is on it.")


class FaultView(Answer):
    """Something that the node's own side said about its hardware."""

    at: float
    origin: str
    text: str
    gpu: int | None = None
    xid: int | None = None


class NodeView(Answer):
    """One node. `state`: up, silent (no report for its lease), stopping, drained, cordoned, reserved (in maintenance), lost, unknown."""

    node: str
    pool: str
    state: str
    why: str = ""
    gpus: list[GpuView] = Field(default_factory=list)
    gpus_total: int
    gpus_busy: int
    runs: int
    rack: str | None = Field(default=None, description="The nodes under one leaf switch, where it says so.")
    spine: str | None = None
    address: str | None = None
    session: int | None = None
    boot_id: str | None = None
    lease_s: float | None = None
    same_user: bool | None = None
    reported_at: float | None = None
    orders_behind: bool = Field(description="The worker has not yet confirmed the newest order of the pool's log.")
    faults: list[FaultView] = Field(default_factory=list)
    calls: list[Call] = Field(default_factory=list)


class NodeList(Answer):
    """All nodes by name."""

    nodes: list[NodeView]


class CommandAnswer(Answer):
    """An operator's call was put on the bus; the pool's log decides."""

    node: str
    pool: str
    command: str
    requested: bool = True


class ReservationView(Answer):
    """A reservation that has not ended. Times in Unix seconds."""

    reservation_id: str
    pool: str
    nodes: list[str]
    start_at: float
    end_at: float
    requested_by: str
    why: str = ""
    begun: bool


class ReservationList(Answer):
    """The reservations of a pool that have not ended, in the order of their beginnings."""

    reservations: list[ReservationView]


class ReservationAnswer(Answer):
    """A reservation was asked for (or taken back); the pool's log decides."""

    reservation_id: str
    pool: str
    requested: bool = True


class Leader(Answer):
    """Who leads a pool."""

    holder: str
    term: int
    address: str | None = None


class PoolView(Answer):
    """A pool at a glance."""

    pool: str
    leader: Leader | None = None
    nodes: int
    nodes_by_state: dict[str, int]
    gpus_total: int
    gpus_busy: int
    gpus_by_type: dict[str, int]
    jobs_by_state: dict[str, int] = Field(description="Jobs that have not ended.")
    config: dict[str, Any] = Field(default_factory=dict, description="The pool's limits and settings, as configured.")
