"""Maintenance reservations: nodes that are wanted free from one time to another, and what that means for jobs before, during and after.

Before it begins, no job is started on a reserved node that is expected to end after that: by its time limit, else by the upper quantile
of its estimate, as far as its source is believed (core/advice.py). Of which neither is known, a job that can resume is started (it is stopped and goes on later, which costs a restart), and
another only while the beginning is further away than `reservation_horizon_s`. A job that would fit but for that, or that no
other nodes could hold even if nothing ran, waits and holds nobody back: who ends early enough goes before it.

When it begins the node takes no more jobs, and those that run there are stopped with their grace: jobs that can resume, all of them or
none, as the setting `reservation_stops` says. It costs nobody a retry. When it ends, or is withdrawn, the node takes jobs again.

What holds of a node at a time follows from the reservations alone, so an entry's time decides it: deciding and recovering agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, log
from typing import TYPE_CHECKING, Any, Final

from schedmate.services.dispatcher.core.advice import lasts_s

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.inputs import ReservationMade, ReservationWithdrawn
    from schedmate.services.dispatcher.core.job import Job
    from schedmate.services.dispatcher.core.state import PoolState

RESERVATIONS_MAX: Final = 1000
_ROUND_UP: Final = 1.1
"""Estimates count rounded up to the next power of this, so that jobs of about the same length are of one kind."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that are wanted free in [start, end), Unix seconds."""

    id: str
    nodes: tuple[str, ...]
    start: float
    end: float
    by: str
    why: str

    def to_json(self) -> list[Any]:
        """Return it as a JSON list."""
        return [self.id, list(self.nodes), self.start, self.end, self.by, self.why]

    @classmethod
    def from_json(cls, value: list[Any]) -> Reservation:
        """Return the reservation of a JSON list."""
        ident, nodes, start, end, by, why = value
        return cls(ident, tuple(nodes), start, end, by, why)


def made(state: PoolState, value: ReservationMade) -> str | None:
    """Take a reservation into the pool; return why it makes no sense, None where it does. Told again it changes nothing, also when it is over."""
    if value.reservation in state.reservations or value.reservation in state.past_reservations:
        state.repeats += 1
        return None
    if not value.start < value.end or value.end <= state.at:
        return f"reservation {value.reservation}: its end must come after its start and after now"
    if len(state.reservations) >= RESERVATIONS_MAX:
        return f"the pool has {RESERVATIONS_MAX} reservations already"
    unknown = [name for name in value.nodes if name not in state.nodes]
    if unknown:
        return f"the pool has no node {unknown[0]}"
    nodes = tuple(dict.fromkeys(value.nodes)) or _least_used(state, value.count)
    if not nodes or len(nodes) < value.count:
        return f"reservation {value.reservation} asks for {value.count} nodes, the pool has {len(nodes)} that are not reserved then"
    state.reservations[value.reservation] = Reservation(
        value.reservation, nodes, value.start, value.end, value.by, value.why
    )
    _look_anew(state)
    return None


def _least_used(state: PoolState, count: int) -> tuple[str, ...]:
    """Choose nodes where a number is asked for: alive, without another reservation, the fewest held GPUs first, then the last to join."""
    taken = {name for one in state.reservations.values() for name in one.nodes}
    free = [node for node in state.nodes.values() if node.alive and node.name not in taken]
    free.sort(key=lambda node: (len(node.owner) + len(node.shares), -node.order))
    return tuple(node.name for node in free[:count])


def withdrawn(state: PoolState, value: ReservationWithdrawn) -> str | None:
    """Take a reservation back; return why that makes no sense, None where it does."""
    if value.reservation in state.past_reservations:
        state.repeats += 1
        return None
    if value.reservation not in state.reservations:
        return f"the pool has no reservation {value.reservation}"
    _over(state, value.reservation)
    _look_anew(state)
    return None


def _over(state: PoolState, name: str) -> None:
    """A reservation is over; its name is remembered, so that a repeat of what made it makes no other one."""
    del state.reservations[name]
    past = state.past_reservations
    past[name] = None
    if len(past) > RESERVATIONS_MAX:
        del past[next(iter(past))]


def _look_anew(state: PoolState) -> None:
    """The reservations have changed: where waiting jobs may go, and which nodes take any."""
    turn(state)
    _requeue(state)
    state.capacity.epoch += 1


def _requeue(state: PoolState) -> None:
    """Let every waiting job stand where it belongs now."""
    for job in [job for job in state.jobs.values() if job.queue_key is not None]:
        state.place_anew(job)


def turn(state: PoolState) -> None:
    """Let begin and end what does by now: nodes stop taking jobs, those that run there are looked at, nodes take jobs again."""
    ended = [one.id for one in state.reservations.values() if one.end <= state.at]
    for name in ended:
        _over(state, name)
        state.capacity.epoch += 1  # whoever it kept waiting may fit, though it ended before anybody saw it begin
    if ended and not state.reservations:
        _requeue(state)  # how long a job may run tells it apart from others no more
    held: dict[str, str] = {}
    for one in state.reservations.values():
        if one.start <= state.at:
            for name in one.nodes:
                held.setdefault(name, one.id)
    for node in state.nodes.values():
        before, node.reserved = node.reserved, held.get(node.name)
        if (before is None) != (node.reserved is None):
            state.refresh_capacity(node)
            state.dirty_nodes[node.name] = None
            for job_id in node.owners:
                state.touch(state.jobs[job_id])


def next_turn(state: PoolState) -> float | None:
    """Return when the next reservation begins or ends."""
    edges = [edge for one in state.reservations.values() for edge in (one.start, one.end) if edge > state.at]
    return min(edges, default=None)


def length_s(state: PoolState, job: Job) -> float | None:
    """Return how long the job may run, once started: its time limit, else what is believed that it lasts, rounded up; None where nothing is."""
    if job.time_limit_s is not None:
        return float(job.time_limit_s)
    lasts = lasts_s(job, state)
    return float(_ROUND_UP ** ceil(log(max(lasts, 1.0)) / log(_ROUND_UP))) if isfinite(lasts) else None


def kind_of(state: PoolState, job: Job) -> tuple[float | None, bool]:
    """Return what of a job decides whether reservations let it start."""
    return (length_s(state, job), job.resumable)


def closed_to(state: PoolState, job: Job) -> frozenset[str]:
    """Return the nodes on which the job is not started for the sake of reservations to come."""
    length, at = length_s(state, job), state.at
    closed: set[str] = set()
    for one in state.reservations.values():
        if length is not None:
            passes = at + length > one.start
        else:
            passes = not job.resumable and one.start - at <= state.config.reservation_horizon_s
        if passes:
            closed.update(one.nodes)
    return frozenset(closed)


def gives_way(state: PoolState, job: Job) -> str | None:
    """Return the node for whose maintenance the job is to stop, if it is."""
    stops = state.config.reservation_stops
    if stops == "none" or (stops == "resumable" and not job.resumable):
        return None
    return next((m.node for m in job.members if state.nodes[m.node].reserved is not None), None)


def about(state: PoolState, node: str) -> str:
    """Return what the reservation that holds a node says, for people."""
    one = state.reservations.get(state.nodes[node].reserved or "")
    if one is None:
        return ""
    return f"reservation {one.id} by {one.by}" + (f": {one.why}" if one.why else "")
