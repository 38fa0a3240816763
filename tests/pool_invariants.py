"""What must hold of a pool after every step, whatever it was told; counted from scratch, not from the indexes under test."""

from __future__ import annotations

import json
from collections import Counter
from math import isfinite
from typing import Any

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS, TERMINAL, TRANSITIONS, JobEvent, JobState
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core.advice import lasts_s
from schedmate.services.dispatcher.core.fitting import fit
from schedmate.services.dispatcher.core.inputs import Tick
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.reasons import why
from schedmate.services.dispatcher.core.sharing import memory_of
from schedmate.services.dispatcher.core.state import ENDED, TOLD, PoolState
from schedmate.services.dispatcher.core.step import step
from schedmate.services.dispatcher.core.timers import deadline


def check(state: PoolState, decided: tuple[d.Decision, ...] = ()) -> None:
    """Raise AssertionError where an invariant is broken."""
    _owners(state)
    _jobs(state)
    _limits(state, decided)
    _reservations(state, decided)
    _index(state)
    _topology(state, decided)
    _round_trip(state)
    _at_rest(state)
    for job in state.jobs.values():
        found = why(state, job)
        assert isinstance(found.reason, Reason)
        assert found.reason != Reason.NOT_YET_CONSIDERED, f"{job.id} waits without a reason"


def check_held(state: PoolState, decided: tuple[d.Decision, ...]) -> None:
    """Raise AssertionError where GPUs, gangs, limits, quotas, reservations or the promise to conserve work are broken; in any pool."""
    _owners(state)
    _limits(state, decided)
    _reservations(state, decided)
    _index(state)
    _topology(state, decided)
    _conserved(state)


def _conserved(state: PoolState) -> None:
    """Where the policy promises it, whoever waits does not fit: looked at anew, once nobody is on the way out."""
    if not state.policy.work_conserving or state.more or any(j.state is JobState.STOPPING for j in state.jobs.values()):
        return
    waiting = [state.jobs[name] for kind in state.queue.kinds() for name in state.queue.first_of(kind, 1)]
    if not any(state.overdue(job) for job in waiting):
        for job in waiting:
            assert fit(state, job)[1] is None, f"{job.id} fits and waits"


def _owners(state: PoolState) -> None:
    """No GPU of two owners; gangs whole or nothing; what a node says and what a job says is the same."""
    guests = _pairs(state)
    by_members = Counter(
        (m.node, g)
        for j in state.jobs.values()
        if j.state in HOLDS_GPUS and j.holds_whole and j.id not in guests
        for m in j.members
        for g in m.gpus
    )
    _shares(state, set(by_members))
    assert all(count == 1 for count in by_members.values()), "a GPU has two owners"
    by_nodes = {(n.name, g) for n in state.nodes.values() for g in n.owner}
    assert set(by_members) == by_nodes
    for node in state.nodes.values():
        for gpu, owner in node.owner.items():
            assert any(m.node == node.name and gpu in m.gpus for m in state.jobs[owner].members)
        for port, owner in node.ports.items():
            assert state.jobs[owner].master_port == port
    for job in state.jobs.values():
        if job.state in HOLDS_GPUS:
            assert len({m.node for m in job.members}) == len(job.members), "two members on one node"
            assert all(len(m.gpus) == len(set(m.gpus)) for m in job.members)
            if job.nodes:
                assert len(job.members) == job.nodes
                assert all(len(m.gpus) == job.gpus for m in job.members)
            else:
                assert sum(len(m.gpus) for m in job.members) == job.gpus


def _topology(state: PoolState, decided: tuple[d.Decision, ...]) -> None:
    """The free GPUs of leaf groups are counted right, and who must share a rack or a spine was placed so."""
    free: Counter[str] = Counter()
    for group in state.capacity.groups():
        assert group.leaf == (state.topology.leaf(group.node) if state.topology.given else "")
        free[group.leaf] += len(group.free) if group.leaf else 0
    assert {leaf: count for leaf, count in state.capacity.leaf_free.items() if count} == {
        k: n for k, n in free.items() if n
    }
    for placed in (x for x in decided if isinstance(x, d.Placed)):
        job = state.jobs.get(placed.job)
        if job is not None and job.within is not None:
            shared = {state.topology.domain(seat.node, job.within) for seat in placed.seats}
            assert len(shared) == 1, f"{job.id} is in several of what it must share"
            assert None not in shared


def _pairs(state: PoolState) -> set[str]:
    """Two jobs on the same GPUs know of each other, hold the very same ones, and fit into their memory; return those that came second."""
    guests: dict[tuple[str, int], str] = {}
    second = set()
    for job in state.jobs.values():
        if job.beside is None or job.state not in HOLDS_GPUS:
            continue
        other = state.jobs[job.beside]
        assert other.beside == job.id
        assert job.neighbours
        first = min((job, other), key=lambda one: one.place)
        assert (first.sole, first.alone) == (False, False), "its worker lets nobody onto its GPUs"
        assert other.state in HOLDS_GPUS
        assert [(m.node, m.gpus) for m in job.members] == [(m.node, m.gpus) for m in other.members]
        if job.place > other.place:
            second.add(job.id)
            guests.update({(m.node, g): job.id for m in job.members for g in m.gpus})
    assert guests == {(n.name, g): name for n in state.nodes.values() for g, name in n.guests.items()}
    for name in second:
        job = state.jobs[name]
        both = (job, state.jobs[str(job.beside)])
        if all(one.reason != Reason.UNPACKED for one in both):
            assert sum(one.profile[2] for one in both if one.profile) <= memory_of(state, job), (
                "a pair does not fit into the memory"
            )
    return second


def _shares(state: PoolState, whole: set[tuple[str, int]]) -> None:
    """The shares of a GPU come to no more than the whole of it, and no whole job holds it; jobs and nodes say the same."""
    by_members: dict[tuple[str, int], dict[str, int]] = {}
    for job in state.jobs.values():
        if job.state in HOLDS_GPUS and not job.holds_whole:
            assert 0 < job.held_milli < 1000
            ((node, (gpu,)),) = [(m.node, m.gpus) for m in job.members]
            by_members.setdefault((node, gpu), {})[job.id] = job.held_milli
    assert all(sum(held.values()) <= 1000 for held in by_members.values()), "a GPU is given out more than once"
    assert not whole & set(by_members), "a GPU is held whole and in part"
    assert by_members == {(n.name, g): held for n in state.nodes.values() for g, held in n.shares.items()}
    for group in state.capacity.groups():
        node_ = state.nodes[group.node]
        counted = {
            g: 1000 - sum(by_members[group.node, g].values())
            for g, c in node_.gpus.items()
            if c == group.gpu_class and (group.node, g) in by_members
        }
        assert state.capacity.shares.left_of(group) == counted


def _jobs(state: PoolState) -> None:
    """Each live job is in exactly one place, and something can still move it."""
    queued = [job for job, _ in state.queue.in_order()]
    assert len(queued) == len(set(queued)) == len(state.queue)
    timers = {(due, job) for due, job in state.timers}
    for job in state.jobs.values():
        assert job.id not in state.ended
        assert job.state not in TERMINAL
        assert job.state is not JobState.SUBMITTED, "admission was not decided"
        competes = job.queue_key is not None
        assert competes == (job.id in queued)
        match job.state:
            case JobState.QUEUED:
                assert job.members == []
                assert competes or job.not_before > state.at
                assert job.intent == 0
            case JobState.ASSIGNED:
                assert not competes
                assert any(m.state == TOLD for m in job.members), "all have started, and nobody noticed"
                assert all(m.state != ENDED or m.done for m in job.members)
            case JobState.RUNNING:
                assert not competes
                assert job.started_at is not None
                assert all(m.state != ENDED or m.done for m in job.members)
                assert any(m.state != ENDED for m in job.members)
            case JobState.STOPPING:
                assert not competes
                assert job.intent > 0
                assert any(m.state != ENDED for m in job.members), "nothing is left to stop"
                assert all(m.stop_ordered for m in job.members if m.state != ENDED)
            case JobState.DIAGNOSING:
                assert not competes
            case _:
                raise AssertionError(job.state)
        due = deadline(state, job)
        if due is not None:
            assert (due, job.id) in timers, f"{job.id} has a deadline and no timer"
        else:
            moves_by_event = competes or job.state is JobState.RUNNING or job.reason == Reason.STOP_TIMEOUT
            assert moves_by_event, f"{job.id} is stuck: {job.state}, {job.reason}"
        assert all(name in state.nodes for name in job.suspects)
        for cause, times in job.spent.items():
            assert cause in ("user", "launch", "infrastructure", "preempted")
            assert times >= 1
    assert state.early_count == sum(len(held) for held in state.early.values()) <= state.config.early_max
    assert len(state.cancels) <= state.config.early_max


def _limits(state: PoolState, decided: tuple[d.Decision, ...]) -> None:
    held: Counter[str] = Counter()
    for job in state.jobs.values():
        if job.state in HOLDS_GPUS:
            held[job.tenant] += job.gpus_total
    assert dict(held) == state.tenant_gpus
    for tenant in {state.jobs[x.job].tenant for x in decided if isinstance(x, d.Placed) and x.job in state.jobs}:
        limit = state.config.tenant_limit(tenant)
        assert limit is None or held[tenant] <= limit, f"{tenant} holds {held[tenant]} of {limit}"
    _quotas(state, decided, held)


def _reservations(state: PoolState, decided: tuple[d.Decision, ...]) -> None:
    """Nobody starts on a node in maintenance, or where maintenance begins before it is expected to have ended."""
    for node in state.nodes.values():
        begun = [r.id for r in state.reservations.values() if node.name in r.nodes and r.start <= state.at < r.end]
        assert (node.reserved in begun) if begun else (node.reserved is None)
        assert node.reserved_told == bool(begun)
    for x in decided:
        job = state.jobs.get(x.job) if isinstance(x, d.Placed) else None
        if job is None or not isinstance(x, d.Placed) or job.attempt != x.attempt:
            continue
        for name in {m.node for m in job.members}:
            assert state.nodes[name].reserved is None
            for one in state.reservations.values():
                lasts = lasts_s(job, state) if job.time_limit_s is None else float(job.time_limit_s)
                length = lasts if isfinite(lasts) else None
                if name in one.nodes:
                    far = one.start - state.at > state.config.reservation_horizon_s
                    ends_before = length is not None and state.at + length <= one.start
                    assert ends_before or (length is None and (job.resumable or far)), (
                        f"{job.id} is in the way of {one}"
                    )


def _quotas(state: PoolState, decided: tuple[d.Decision, ...], held: Counter[str]) -> None:
    """Nobody borrows who may not; nothing is taken back from a tenant that has no more than its quota."""
    config = state.config
    if not config.tenant_quota:
        return
    for x in decided:
        job = state.jobs.get(getattr(x, "job", ""))
        if job is None:
            continue
        quota = config.tenant_quota.get(job.tenant, 0)
        if isinstance(x, d.Placed) and not (
            config.borrowers == "any" or (config.borrowers == "resumable" and job.resumable)
        ):
            others = sum(
                j.gpus_total
                for j in state.jobs.values()
                if j.tenant == job.tenant and j.state in HOLDS_GPUS and j.place > job.place
            )
            assert held[job.tenant] - others <= quota, f"{job.id} borrows"
        if isinstance(x, d.Moved) and x.event == JobEvent.STOP and x.reason == Reason.RECLAIMED:
            own = sum(
                j.gpus_total
                for j in state.jobs.values()
                if j.tenant == job.tenant and j.state in (JobState.ASSIGNED, JobState.RUNNING)
            )
            assert own + job.gpus_total > quota, f"{job.id} was within the quota of {job.tenant}"


def _index(state: PoolState) -> None:
    """The capacity index says what a recount says."""
    counted: dict[tuple[str, tuple[str, int]], tuple[int, list[int]]] = {}
    for node in state.nodes.values():
        if not node.schedulable:
            continue
        for gpu_class in sorted(set(node.gpus.values())):
            indices = sorted(i for i, c in node.gpus.items() if c == gpu_class)
            counted[node.name, gpu_class] = (
                len(indices),
                [i for i in indices if i not in node.owner and i not in node.shares],
            )
    kept = {(g.node, g.gpu_class): (g.usable, g.free) for g in state.capacity.groups()}
    assert kept == counted
    assert state.capacity.free_gpus == sum(len(free) for _, free in counted.values()) >= 0
    for gpu_class in {c for _, c in counted}:
        listed = list(state.capacity.groups_with(gpu_class, 0))
        assert [len(g.free) for g in listed] == sorted(len(g.free) for g in listed)
        assert len(listed) == sum(1 for _, c in counted if c == gpu_class)


def _round_trip(state: PoolState) -> None:
    body = state.to_json()
    again = PoolState.from_json(json.loads(json.dumps(body)), policy_named)
    assert again.to_json() == body
    assert [job for job, _ in again.queue.in_order()] == [job for job, _ in state.queue.in_order()]
    assert again.next_timer() == state.next_timer()
    assert again.tenant_gpus == state.tenant_gpus
    assert [dict(sorted(n.owner.items())) for n in again.nodes.values()] == [
        dict(sorted(n.owner.items())) for n in state.nodes.values()
    ]


def _at_rest(state: PoolState) -> None:
    """Told nothing more at the same time, a pool decides nothing more; whoever recovered it sees that too."""
    if not state.more:
        again = PoolState.from_json(state.to_json(), policy_named)
        assert step(again, [Tick()], state.at).decisions == (), "something was left to decide"


class Watcher:
    """Watches a pool from decision to decision: only legal moves, intents that only rise, attempts that only grow, one end a job."""

    def __init__(self) -> None:
        self._states: dict[str, JobState] = {}
        self._intents: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self.ends: Counter[str] = Counter()

    def saw(self, decisions: tuple[d.Decision, ...]) -> None:
        for decision in decisions:
            if isinstance(decision, d.Placed):
                self._move(decision.job, JobEvent.PLACE)
                assert decision.attempt == self._attempts.get(decision.job, 0) + 1
                self._attempts[decision.job] = decision.attempt
            elif isinstance(decision, d.Moved):
                assert isinstance(Reason(decision.reason), Reason)
                self._move(decision.job, JobEvent(decision.event))
                if decision.event == JobEvent.STOP:
                    self._intents[decision.job] = decision.intent
                else:
                    self._intents.pop(decision.job, None)
            elif isinstance(decision, d.Noted) and decision.intent:
                assert decision.intent > self._intents[decision.job], "an intent fell"
                self._intents[decision.job] = decision.intent

    def _move(self, job: str, event: JobEvent) -> None:
        before = self._states.get(job, JobState.SUBMITTED)
        assert (before, event) in TRANSITIONS, f"{job}: {before} cannot {event}"
        self._states[job] = TRANSITIONS[before, event]
        if self._states[job] in TERMINAL:
            self.ends[job] += 1
            assert self.ends[job] == 1, f"{job} ended twice"

    def agrees_with(self, state: PoolState) -> None:
        for job, seen in self._states.items():
            known: Any = state.jobs[job].state if job in state.jobs else JobState(state.ended[job])
            assert seen is known
