"""One step of a pool: inputs in, decisions out; the same for the dispatcher, the simulator, the replayer and the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core.apply import HANDLERS, apply
from schedmate.services.dispatcher.core.beliefs import trust_is
from schedmate.services.dispatcher.core.decisions import Decision, NodeMarked, Placed, Release, Stop
from schedmate.services.dispatcher.core.fold import fold
from schedmate.services.dispatcher.core.inputs import FoldError, Input
from schedmate.services.dispatcher.core.lifecycle import Emit, advance
from schedmate.services.dispatcher.core.reservations import about, turn
from schedmate.services.dispatcher.core.schedule import schedule
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.timers import set_timer, take_due, turn_round


class CorePoisonedError(Exception):
    """Folding or deciding broke on something that is no refusal. The state is unusable: recover it, then refuse the input."""

    def __init__(self, index: int | None, error: Exception) -> None:
        super().__init__(f"the core broke {'while deciding' if index is None else f'on input {index}'}: {error!r}")
        self.index = index
        self.error = error


@dataclass(slots=True)
class Step:
    """What a step came to: inputs in their canonical order, which of them were refused (place → error), and the decisions.

    `trust` has the sources of advice whose weight changed, and what it is now.
    Where nobody keeps what is decided (`PoolState.keeps_decisions`), the decisions are those that somebody must carry out or that are out
    of the plain course; releases, and moves by which jobs are admitted, start and complete, are made and not told.
    """

    inputs: tuple[Input, ...]
    refused: dict[int, str]
    decisions: tuple[Decision, ...]
    trust: dict[str, float] = field(default_factory=dict)


def canonical(inputs: Sequence[Input]) -> list[Input]:
    """Order a batch: starts, ends, node changes, cancels, arrivals, estimates; ties as they came."""
    many = len(inputs)
    if many == 1 or (many == 2 and inputs[0].RANK <= inputs[1].RANK):  # noqa: PLR2004 - a pair needs no sorting
        return list(inputs)
    return sorted(inputs, key=_RANK)


_RANK: Final = attrgetter("RANK")


def step(state: PoolState, inputs: Sequence[Input], at: float) -> Step:
    """Advance the pool by one entry.

    Args:
        state: the pool; changed in place.
        inputs: everything that has arrived, in the order of its offsets.
        at: the time the core is told, Unix seconds; an earlier one than before counts as before.

    Raises:
        CorePoisonedError: see there.
    """
    ordered = canonical(inputs)
    begin(state, at)
    refused: dict[int, str] = {}
    for index, value in enumerate(ordered):
        try:
            fold(state, value)
        except FoldError as error:
            refused[index] = str(error)
        except Exception as error:
            raise CorePoisonedError(index, error) from error
    try:
        decisions = decide(state)
    except Exception as error:
        raise CorePoisonedError(None, error) from error
    return Step(tuple(ordered), refused, tuple(decisions), dict(state.trust_moved))


def begin(state: PoolState, at: float) -> None:
    """Open the next entry at this time."""
    state.seq += 1
    state.at = max(state.at, at)
    state.repeats = 0
    state.ended_now.clear()
    state.trust_moved.clear()
    state.before.clear()
    if state.ripens and state.ripening.take_due(state):
        state.queue.changed = True
    if state.reservations:
        turn(state)


def recover(
    state: PoolState,
    inputs: Sequence[Input],
    refused: set[int],
    decisions: Sequence[Decision],
    at: float,
    trust: Mapping[str, float] | None = None,
) -> None:
    """Fold a recorded entry: its inputs, its decisions and the weights it recorded; the policy is not asked."""
    begin(state, at)
    for index, value in enumerate(inputs):
        if index not in refused:
            fold(state, value)
    for index, decision in enumerate(decisions):
        apply(state, decision, index)
    for basis, weight in (trust or {}).items():
        trust_is(state, basis, weight)
    _admit_due(state)
    close(state)


def close(state: PoolState) -> None:
    """Between two entries nothing is half done."""
    if state.policy.rounds_s is not None or state.round_at is not None:
        turn_round(state)
    state.round_goes_on = False
    state.dirty_jobs.clear()
    state.dirty_nodes.clear()
    state.releases.clear()
    state.stops.clear()


def _admit_due(state: PoolState) -> None:
    """Jobs whose back-off has run out compete again. Deciding does the same in `advance`; it is no decision of its own."""
    for job in take_due(state):
        if job.state is JobState.QUEUED and job.queue_key is None:
            state.enqueue(job)
        else:
            set_timer(state, job)


def decide(state: PoolState) -> list[Decision]:
    """Decide what follows from what was folded."""
    out: list[Decision] = []
    seats = 0

    def emit(decision: Decision) -> None:
        nonlocal seats
        kind = type(decision)
        HANDLERS[kind](state, decision, len(out))
        out.append(decision)
        if kind is Placed:
            seats += len(decision.seats)  # type: ignore[attr-defined]

    state.more = False
    if state.dirty_nodes:
        _mark_nodes(state, emit)
    if state.timers:
        for job in take_due(state):
            state.touch(job)
    if state.dirty_jobs:
        _advance_all(state, emit)
    if state.dirty_nodes:
        _mark_nodes(state, emit)  # a start that never came may have been one too many
    if state.stops or (state.releases and state.keeps_decisions):
        _answer(state, emit)
    schedule(state, emit, lambda: len(out) + seats >= state.config.decisions_max)
    close(state)
    return out


def _advance_all(state: PoolState, emit: Emit) -> None:
    dirty, jobs = state.dirty_jobs, state.jobs
    while dirty:
        job_id = next(iter(dirty))
        del dirty[job_id]
        job = jobs.get(job_id)
        if job is not None:
            advance(state, job, emit)


def _answer(state: PoolState, emit: Emit) -> None:
    """Tell the nodes that what has ended is recorded, and to stop what nobody wants."""
    for release in dict.fromkeys(state.releases) if state.keeps_decisions else ():
        emit(Release(*release))
    for node, job_id, attempt, member in dict.fromkeys(state.stops):
        emit(Stop(node, job_id, attempt, member, state.config.stop_grace_s))


def _mark_nodes(state: PoolState, emit: Emit) -> None:
    for name in state.dirty_nodes:
        node = state.nodes[name]
        (alive, draining, cordoned, unreachable), reserved = node.told, node.reserved_told  # a mark tells all of it
        if node.cordon_wanted is not None:
            emit(NodeMarked(name, "cordoned", node.cordon_wanted))
        elif (draining or cordoned) and not node.draining and node.cordoned is None:
            emit(NodeMarked(name, "uncordoned"))
        if node.draining and not draining:
            emit(NodeMarked(name, "drained"))
        if (node.reserved is not None) != reserved:
            emit(NodeMarked(name, "unreserved" if node.reserved is None else "reserved", about(state, name)))
        if alive and not node.alive:
            emit(NodeMarked(name, "lost"))
        elif node.unreachable and not unreachable:
            emit(NodeMarked(name, "unreachable"))
        elif (node.alive and not alive) or (unreachable and not node.unreachable):
            emit(NodeMarked(name, "joined"))
