"""The event loop: jobs of a trace through the dispatcher's own `step`, with a virtual clock.

At an instant a pool is told all that happens then in one batch: ends, then arrivals; then it decides. What is stopped for another
ends at the same instant, in a second batch. Nothing here knows a policy: it is the core's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from schedmate.services.dispatcher.core.config import Budget, PoolConfig
from schedmate.services.dispatcher.core.decisions import Placed, Seat, Stop
from schedmate.services.dispatcher.core.inputs import (
    EstimateArrived,
    Gpu,
    Input,
    JobArrived,
    MemberExited,
    NodeReported,
    Tick,
)
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step, step
from schedmate.simulator.cluster import Cluster, NodeSpec
from schedmate.simulator.integrals import Integrals
from schedmate.simulator.trace import TraceJob

NEVER = 1e15  # seconds; a bound that no trace reaches
RESTART_S, RESTART_LARGE_S, LARGE_GPUS = 40.0, 60.0, 8
STEPS_PER_INSTANT_MAX = 10_000
PROGRESS_JOBS = 1000


class SimulationError(RuntimeError):
    """The simulation cannot go on: the core refused an input, or an instant does not come to an end."""


class Advisor(Protocol):
    """A source of advice. `basis` is what the estimate is said to rest on."""

    basis: str

    def estimate_s(self, number: int, pool: str) -> float | None:
        """Return the estimated run time of the job at this place of the trace, asked once, as it arrives."""
        ...

    def finished(self, number: int, pool: str) -> None:
        """The job has ended: its run time is known from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Costs:
    """What a preemption costs: a restart, and the work since the last checkpoint (0: a checkpoint is made as it is stopped)."""

    restart_s: float = RESTART_S
    restart_large_s: float = RESTART_LARGE_S
    checkpoint_s: float = 0.0

    def restart(self, gpus: int) -> float:
        """Return the seconds that a restart adds."""
        return self.restart_large_s if gpus > LARGE_GPUS else self.restart_s


@dataclass(slots=True)
class Outcome:
    """What became of each job, by its place in the trace; None: not started, not ended."""

    start_s: list[float | None]
    end_s: list[float | None]
    wait_s: list[float]  # all the time that it held no GPU
    nodes_used: list[int]
    nodes_least: list[int]
    leaves_used: list[int]  # leaf groups of the last placement, 0 without a topology
    leaves_least: list[int]
    integrals: Integrals
    seats: list[tuple[Seat, ...]] | None  # the last ones of each job, where they were asked for
    runs: list[tuple[int, float, float, tuple[Seat, ...]]] | None = (
        None  # (job, from, until, seats) of each run, in the order of their ends
    )
    preemptions: int = 0
    lost_gpu_s: float = 0.0
    instants: int = 0


Recorder = Callable[[PoolState, Step], None]


@dataclass(slots=True)
class _Pool:
    name: str
    state: PoolState
    gpus_of: dict[str, int]
    used: dict[str, int]
    node_gpus: int
    uniform: bool
    leaf_nodes: int  # nodes of the largest leaf group, 0 without a topology
    inputs: list[Input] = field(default_factory=list)
    timer: float = inf


@dataclass(slots=True)
class _Run:
    """A job that holds GPUs."""

    placed: Placed
    since: float
    ends: float


class Simulation:
    """One policy with one source of advice over one trace.

    Args:
        jobs: in the order in which those of the same instant arrive.
        cluster: the pools; jobs of other pools are left out by the caller.
        policy: a policy's name.
        advisor: where estimates come from.
        config: settings of every pool; the policy's name and the bounds that have no meaning here are set over it.
        costs: what a preemption costs.
        recorder: called with every step, for a log.
        keep_seats: remember where each job ran last.
        keep_runs: remember when and where every job ran, for plots.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        cluster: Cluster,
        policy: str,
        advisor: Advisor | None = None,
        *,
        config: PoolConfig | None = None,
        costs: Costs | None = None,
        recorder: Recorder | None = None,
        keep_seats: bool = False,
        keep_runs: bool = False,
    ) -> None:
        self._jobs = jobs
        self._advisor = advisor
        self._costs = costs or Costs()
        self._recorder = recorder
        # GPUs are counted in thousandths where a job asks for a share, else whole: sums stay exact
        self._unit = WHOLE_MILLI if any(job.share_milli < WHOLE_MILLI for job in jobs) else 1
        settings = simulated(config or PoolConfig(), policy)
        self._pools = {name: self._pool(name, nodes, settings) for name, nodes in cluster.pools.items()}
        only = next(iter(self._pools.values())) if cluster.one_pool else None
        self._pool_of = [only or self._pools[job.pool] for job in jobs]
        self._arrivals = sorted(range(len(jobs)), key=lambda n: jobs[n].submit_s)
        self._arrived = 0
        self._timed = [pool for pool in self._pools.values() if pool.state.policy.rounds_s is not None]
        self._number = {job.id: n for n, job in enumerate(jobs)}
        self._runs: dict[int, _Run] = {}
        self._left = [job.duration_s for job in jobs]
        self._ends: list[tuple[float, int]] = []
        first, last = (jobs[self._arrivals[0]].submit_s, jobs[self._arrivals[-1]].submit_s) if jobs else (0.0, 0.0)
        self._stopped_at: dict[int, float] = {}
        self.outcome = Outcome(
            [None] * len(jobs), [None] * len(jobs), [0.0] * len(jobs), [0] * len(jobs), [0] * len(jobs), [0] * len(jobs), [0] * len(jobs),
            Integrals(cluster.gpus, cluster.nodes, first, last, self._unit), [()] * len(jobs) if keep_seats else None,
            [] if keep_runs else None,
        )  # fmt: skip

    def _pool(self, name: str, nodes: tuple[NodeSpec, ...], config: PoolConfig) -> _Pool:
        state = PoolState(name, config, policy_named(config.policy))
        sizes = {node.gpus for node in nodes}
        pool = _Pool(
            name,
            state,
            {n.name: n.gpus * self._unit for n in nodes},
            {n.name: 0 for n in nodes},
            max(sizes),
            len(sizes) == 1,
            _leaf_nodes(nodes),
        )
        done = step(state, [_report(node) for node in nodes], 0.0)
        if self._recorder is not None:
            self._recorder(state, done)
        return pool

    def run(self, progress: Callable[[int], None] | None = None) -> Outcome:
        """Run until nothing can happen any more. `progress` is told the jobs that have ended, now and then."""
        outcome, runs, arrivals = self.outcome, self._runs, self._arrivals
        told = 0
        last = 0.0
        while (now := self._next_instant()) < inf:
            last = now
            outcome.integrals.until(now)
            idle = not runs and self._arrived == len(arrivals)
            touched, ended = self._take(now)
            for pool in touched:
                self._instant(pool, now)
            outcome.instants += len(touched)
            self._forget_stopped()
            if idle and not runs:
                break  # nothing runs, nothing comes, and a round of its own started nothing: it never will
            told += ended
            if progress is not None and told >= PROGRESS_JOBS:
                progress(told)
                told = 0
        if outcome.runs is not None:
            outcome.runs += [(number, run.since, last, run.placed.seats) for number, run in runs.items()]
        return outcome

    def _next_instant(self) -> float:
        """Return when something happens next: an arrival, an end, a round."""
        arrived, ends = self._arrived, self._ends
        now = self._jobs[self._arrivals[arrived]].submit_s if arrived < len(self._arrivals) else inf
        if ends and ends[0][0] < now:
            now = ends[0][0]
        for pool in self._timed:
            now = min(now, pool.timer)
        return now

    def _take(self, now: float) -> tuple[list[_Pool], int]:
        """Put what happens now before the pools, ends first; return those that it concerns, and how many jobs have ended."""
        jobs, arrivals, ends, pool_of = self._jobs, self._arrivals, self._ends, self._pool_of
        touched: dict[str, _Pool] = {}
        ended = 0
        while ends and ends[0][0] == now:
            number = heappop(ends)[1]
            pool = pool_of[number]
            touched[pool.name] = pool
            self._end(pool, number, self._runs[number], now, "exited")
            self.outcome.end_s[number] = now
            ended += 1
            self._forget_stopped()
        while self._arrived < len(arrivals) and jobs[arrivals[self._arrived]].submit_s == now:
            number = arrivals[self._arrived]
            pool = pool_of[number]
            touched[pool.name] = pool
            self._arrive(pool, number)
            self._arrived += 1
        for pool in self._timed:
            if pool.timer <= now:
                touched[pool.name] = pool
        return list(touched.values()), ended

    def _forget_stopped(self) -> None:
        """See that the first of the ends is one that comes: of a job that was stopped and runs again, only the latest does."""
        ends, runs = self._ends, self._runs
        while ends:
            at, number = ends[0]
            run = runs.get(number)
            if run is not None and run.ends == at:
                return
            heappop(ends)

    def _instant(self, pool: _Pool, now: float) -> None:
        """Tell the pool what has happened and carry out what it decides, until it decides nothing more at this instant."""
        state = pool.state
        for _ in range(STEPS_PER_INSTANT_MAX):
            inputs = pool.inputs or [Tick()]
            pool.inputs = []
            done = step(state, inputs, now)
            if done.refused:
                raise SimulationError(f"pool {pool.name} refused an input at {now}: {done.refused}")
            if self._recorder is not None:
                self._recorder(state, done)
            stopped: dict[int, None] = {}
            for decision in done.decisions:
                kind = type(decision)
                if kind is Placed:
                    self._start(pool, decision, now)  # type: ignore[arg-type]
                elif kind is Stop:
                    stopped[self._number[decision.job]] = None  # type: ignore[attr-defined]
            for number in stopped:
                self._stop(pool, number, now)
            state.ended.clear()  # nobody tells anything twice here: what has ended may be forgotten
            if not pool.inputs and not state.more:
                pool.timer = state.round_at if state.round_at is not None else inf
                return
        raise SimulationError(f"pool {pool.name} does not come to rest at {now}: its policy stops and starts for ever")

    def _arrive(self, pool: _Pool, number: int) -> None:
        job = self._jobs[number]
        gpus, nodes = job.gpus, 1
        if gpus > pool.node_gpus:
            nodes, rest = divmod(gpus, pool.node_gpus)
            gpus = pool.node_gpus
            if rest or not pool.uniform:
                gpus, nodes = job.gpus, 0
        pool.inputs.append(
            JobArrived(
                job.id, job.tenant, job.tenant, 1, gpus, nodes, "|".join(job.gpu_types) or None, 0, None, 0,
                job.submit_s, "", None, resumable=True, gpu_milli=job.share_milli, inference=job.inference,
            )
        )  # fmt: skip
        if self._advisor is not None:
            estimate = self._advisor.estimate_s(number, pool.name)
            if estimate is not None:
                pool.inputs.append(EstimateArrived(job.id, 1, None, estimate, None, self._advisor.basis))

    def _start(self, pool: _Pool, placed: Placed, now: float) -> None:
        number = self._number[placed.job]
        outcome = self.outcome
        if outcome.start_s[number] is None:
            outcome.start_s[number] = now
            outcome.nodes_least[number] = -(-self._jobs[number].gpus // pool.node_gpus)
            outcome.wait_s[number] = now - self._jobs[number].submit_s
        else:
            outcome.wait_s[number] += now - self._stopped_at.pop(number)
        outcome.nodes_used[number] = len(placed.seats)
        if pool.leaf_nodes:
            outcome.leaves_used[number] = len({pool.state.topology.leaf(seat.node) for seat in placed.seats})
            outcome.leaves_least[number] = -(-outcome.nodes_least[number] // pool.leaf_nodes)
        if outcome.seats is not None:
            outcome.seats[number] = placed.seats
        used, change = pool.used, outcome.integrals.change
        for seat in placed.seats:
            name, before = seat.node, used[seat.node]
            after = before + self._taken(placed, seat)
            if after > pool.gpus_of[name]:
                raise SimulationError(f"node {name} is over-allocated at {now}")
            used[name] = after
            change(before, after, pool.gpus_of[name])
        ends = now + self._left[number]
        self._runs[number] = _Run(placed, now, ends)
        heappush(self._ends, (ends, number))

    def _taken(self, placed: Placed, seat: Seat) -> int:
        """Return what a seat takes of its node, in the unit in which GPUs are counted."""
        return len(seat.gpus) if self._unit == 1 else len(seat.gpus) * placed.gpu_milli

    def _end(self, pool: _Pool, number: int, run: _Run, now: float, cause: str) -> None:
        """The job's members are gone: their GPUs are free, and the pool is told."""
        placed = run.placed
        used, change, inputs = pool.used, self.outcome.integrals.change, pool.inputs
        code = 0 if cause == "exited" else None
        for member, seat in enumerate(placed.seats):
            before = used[seat.node]
            used[seat.node] = after = before - self._taken(placed, seat)
            change(before, after, pool.gpus_of[seat.node])
            inputs.append(
                MemberExited(
                    placed.job, placed.attempt, member, seat.node, seat.session, cause, code, None, run.since, now
                )
            )
        if self.outcome.runs is not None:
            self.outcome.runs.append((number, run.since, now, placed.seats))
        del self._runs[number]
        if code == 0 and self._advisor is not None:
            self._advisor.finished(number, pool.name)

    def _stop(self, pool: _Pool, number: int, now: float) -> None:
        """The job gives way: what it has done since its last checkpoint is lost, and its next start costs a restart."""
        run = self._runs[number]
        job, costs = self._jobs[number], self._costs
        ran = now - run.since
        lost = ran % costs.checkpoint_s if costs.checkpoint_s > 0 else 0.0
        self._left[number] += lost - ran + costs.restart(job.gpus)
        self._stopped_at[number] = now
        self.outcome.preemptions += 1
        self.outcome.lost_gpu_s += (lost + costs.restart(job.gpus)) * job.gpus
        self._end(pool, number, run, now, "stopped")


def _leaf_nodes(nodes: Sequence[NodeSpec]) -> int:
    """Return the nodes of the largest leaf group, 0 where no node says where it stands."""
    if all(node.rack is None and node.spine is None for node in nodes):
        return 0
    return max(Counter((n.spine, n.rack, n.name if n.rack is None and n.spine is None else "") for n in nodes).values())


def _report(node: NodeSpec) -> NodeReported:
    gpus = tuple(Gpu(n, node.gpu_type, 0, usable=True) for n in range(node.gpus))
    return NodeReported(
        node.name, 1, "simulated", -1, -1, "127.0.0.1", 20_000, 29_999, gpus, (), stopping=False, lease_s=NEVER,
        rack=node.rack, spine=node.spine,
    )  # fmt: skip


def simulated(config: PoolConfig, policy: str) -> PoolConfig:
    """Return the settings with which a pool is simulated: this policy, and no bound on what does not fail here."""
    given = config.to_json()
    given |= {
        "policy": policy, "start_timeout_s": NEVER, "stop_timeout_s": NEVER, "diagnosis_wait_s": NEVER,
        "preempted": Budget(cap=10**9, base_s=0.0, cap_s=0.0), "decisions_max": 10**9, "preemption_min_run_s": 0.0, "gpu_sharing": True,
    }  # fmt: skip
    return PoolConfig.from_json(given)
