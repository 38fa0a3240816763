"""The calls that become commands: their events, and their trace in the audit (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

from schedmate.schemas import ids
from schedmate.schemas.events import (
    CallAudited,
    Event,
    JobCancelRequested,
    JobEstimateOrdered,
    JobPinRequested,
    NodeCordonRequested,
    NodeDeathDeclared,
    NodeDrainRequested,
    NodeUndrainRequested,
    ReservationRequested,
    ReservationWithdrawalRequested,
)
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest.access import Principal, Scope
from schedmate.services.ingest.submission import SOURCE


class NodeCommand(StrEnum):
    """What an operator may ask of a node."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    CORDON = "cordon"
    DECLARE_DEAD = "declare-dead"


_EVENTS: Final = {
    NodeCommand.DRAIN: NodeDrainRequested,
    NodeCommand.UNDRAIN: NodeUndrainRequested,
    NodeCommand.CORDON: NodeCordonRequested,
    NodeCommand.DECLARE_DEAD: NodeDeathDeclared,
}


def node_command(
    command: NodeCommand, node: str, pool: str, by: Principal, why: str, *, event_id: str, at: float
) -> Envelope[Event]:
    """Return the event of an operator's call about a node. Each call is a cause of its own, so its id is given."""
    event = _EVENTS[command](node=node, pool=pool, requested_by=by.name, why=why)
    return Envelope(id=event_id, source=SOURCE, time=at, event=event)


def reservation(
    reservation_id: str,
    pool: str,
    nodes: Sequence[str],
    count: int,
    times: tuple[float, float],
    by: Principal,
    why: str,
    *,
    event_id: str,
    at: float,
) -> Envelope[Event]:
    """Return the event that asks for a reservation of nodes in [start, end), Unix seconds."""
    event = ReservationRequested(
        reservation_id=reservation_id, pool=pool, nodes=tuple(nodes), count=count, start_at=times[0], end_at=times[1],
        requested_by=by.name, why=why,
    )  # fmt: skip
    return Envelope(id=event_id, source=SOURCE, time=at, event=event)


def withdrawal(reservation_id: str, pool: str, by: Principal, why: str, *, event_id: str, at: float) -> Envelope[Event]:
    """Return the event that takes a reservation back."""
    event = ReservationWithdrawalRequested(reservation_id=reservation_id, pool=pool, requested_by=by.name, why=why)
    return Envelope(id=event_id, source=SOURCE, time=at, event=event)


def cancel(job_id: str, pool: str, by: Principal, why: str, *, at: float) -> Envelope[Event]:
    """Return the event that asks to cancel a job. Asking again is the same event."""
    event = JobCancelRequested(job_id=job_id, pool=pool, requested_by=by.name, why=why)
    return Envelope(id=ids.derived("cancel", job_id), source=SOURCE, time=at, event=event)


Quantiles = tuple[float | None, float | None, float | None]
"""p10, p50, p90, s; no p50 clears what was ordered."""
Place = Literal["first", "last", "none"]


def estimate(
    job_id: str, pool: str, quantiles: Quantiles, by: Principal, why: str, *, event_id: str, at: float
) -> Envelope[Event]:
    """Return the event that puts an operator's estimate in the place of all others, or clears it."""
    p10_s, p50_s, p90_s = quantiles
    event = JobEstimateOrdered(
        job_id=job_id, pool=pool, p10_s=p10_s, p50_s=p50_s, p90_s=p90_s, requested_by=by.name, why=why
    )
    return Envelope(id=event_id, source=SOURCE, time=at, event=event)


def pin(job_id: str, pool: str, place: Place, by: Principal, why: str, *, event_id: str, at: float) -> Envelope[Event]:
    """Return the event that pins a job in its class, or lets it go."""
    event = JobPinRequested(job_id=job_id, pool=pool, place=place, requested_by=by.name, why=why)
    return Envelope(id=event_id, source=SOURCE, time=at, event=event)


def audited(
    by: Principal,
    scope: Scope,
    call: str,
    target: str,
    outcome: Literal["accepted", "refused"],
    *,
    event_id: str,
    at: float,
) -> Envelope[Event]:
    """Return the event that says who called what. `target` is `node/NAME`, `pool/NAME`, `reservation/ID`, `job/ID` or `dead-letter/ID`."""
    event = CallAudited(
        principal=by.name, tenant=by.tenant, scope=scope.value, call=call, target=target, outcome=outcome, at=at
    )
    return Envelope(id=event_id, source=SOURCE, time=at, event=event)
