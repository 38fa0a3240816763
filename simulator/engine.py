"""The event loop: jobs of a trace through the dispatcher's own `step`, with a virtual clock.

At an instant a pool is told all that happens then in one batch: ends, then arrivals; then it decides. What is stopped for another
ends at the same instant, in a second batch. Nothing here knows a policy: it is the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop
from math import inf

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobEvent
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import Decision, Moved, NodeMarked, Placed, Stop
from schedmate.services.dispatcher.core.inputs import (
    EstimateArrived,
    JobArrived,
    Tick,
)
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step, step
from schedmate.services.dispatcher.core.timers import skip_idle_rounds
from schedmate.simulator.cluster import Cluster, NodeSpec
from schedmate.simulator.faults import Faults, Outages
from schedmate.simulator.integrals import Integrals
from schedmate.simulator.maintenance import Reservations
from schedmate.simulator.outcome import Advisor, Costs, Outcome
from schedmate.simulator.pools import Pool, leaf_nodes, report_of, simulated
from schedmate.simulator.residents import Residents
from schedmate.simulator.running import Running, SimulationError
from schedmate.simulator.trace import TraceJob

__all__ = ("Advisor", "Costs", "Outcome", "Simulation", "SimulationError", "simulated")

STEPS_PER_INSTANT_MAX = 10_000
_AWAY = {"reserved": 1, "unreserved": -1}
PROGRESS_JOBS = 1000


Recorder = Callable[[PoolState, Step], None]


class Simulation(Running):
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
        residents: how jobs use their GPUs, for a policy that packs them.
        keep_runs: remember when and where every job ran, for plots.
        faults: where node failures come from.
        min_run_s: so long runs whoever may be stopped for another job, by class or for order.
        reservations: of nodes for maintenance, by pool.
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
        residents: Residents | None = None,
        keep_seats: bool = False,
        keep_runs: bool = False,
        faults: Faults | None = None,
        min_run_s: float = 0.0,
        reservations: Reservations | None = None,
    ) -> None:
        super().__init__(jobs, advisor, costs or Costs(), residents)
        self._recorder = recorder
        settings = simulated(config or PoolConfig(), policy, min_run_s)
        self._reservations = reservations or {}
        self._pools = {name: self._pool(name, nodes, settings) for name, nodes in cluster.pools.items()}
        only = next(iter(self._pools.values())) if cluster.one_pool else None
        self._pool_of = [only or self._pools[job.pool] for job in jobs]
        self._arrivals = sorted(range(len(jobs)), key=lambda n: jobs[n].submit_s)
        self._arrived = 0
        self._submits = [*(jobs[n].submit_s for n in self._arrivals), inf]  # in their order; after the last, never
        first, last = (jobs[self._arrivals[0]].submit_s, jobs[self._arrivals[-1]].submit_s) if jobs else (0.0, 0.0)
        nodes = [(name, node.name) for name, pool in cluster.pools.items() for node in pool]
        self._outages = Outages(faults or Faults(), nodes, first)
        self._fails = bool(self._outages)
        waits = bool(self._fails or self._reservations) or settings.ageing_s > 0
        for pool in self._pools.values():
            profiles = pool.state.policy.packs and bool(settings.profiler_nodes)
            pool.timed = waits or profiles or pool.state.policy.rounds_s is not None or bool(pool.state.ripening)
        self._timed = [pool for pool in self._pools.values() if pool.timed]
        for pool in self._timed:
            pool.timer = pool.state.next_timer() or inf
        self.outcome = Outcome(
            [None] * len(jobs), [None] * len(jobs), [0.0] * len(jobs), [0] * len(jobs), [0] * len(jobs), [0] * len(jobs), [0] * len(jobs),
            Integrals(cluster.gpus, cluster.nodes, first, last, self._unit), [()] * len(jobs) if keep_seats else None,
            [] if keep_runs else None, residents=residents,
        )  # fmt: skip

    def _pool(self, name: str, nodes: tuple[NodeSpec, ...], config: PoolConfig) -> Pool:
        state = PoolState(name, config, policy_named(config.policy))
        state.keeps_decisions = self._recorder is not None
        sizes = {node.gpus for node in nodes}
        pool = Pool(
            name, state, {n.name: n.gpus * self._unit for n in nodes}, {n.name: 0 for n in nodes}, max(sizes),
            len(sizes) == 1, leaf_nodes(nodes), {n.name: n for n in nodes}, {n.name: 1 for n in nodes},
        )  # fmt: skip
        done = step(state, [*map(report_of, nodes), *self._reservations.get(name, ())], 0.0)
        if done.refused:
            raise SimulationError(f"pool {name} refuses a reservation: {'; '.join(done.refused.values())}")
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
            touched, ended = self._take(now, idle=idle)
            for pool in touched:
                self._instant(pool, now)
            outcome.instants += len(touched)
            if self._stale:
                self._forget_stopped()
            if idle and not runs and not self._may_still_start():
                break  # nothing runs, nothing comes, and a round of its own started nothing: it never will
            told += ended
            if progress is not None and told >= PROGRESS_JOBS:
                progress(told)
                told = 0
        if progress is not None and told:
            progress(told)
        if outcome.runs is not None:
            outcome.runs += [(number, run.since, last, run.placed.seats) for number, run in runs.items()]
        return outcome

    def _next_instant(self) -> float:
        """Return when something happens next: an arrival, an end, a round."""
        ends = self._ends
        now = self._submits[self._arrived]
        if ends and ends[0][0] < now:
            now = ends[0][0]
        for pool in self._timed:
            now = min(now, pool.timer)
        return min(now, self._outages.next_at()) if self._fails else now

    def _may_still_start(self) -> bool:
        """Tell whether a waiting job may be placed though nothing runs and nothing comes.

        After a failure or for a reservation: a node returns, a job backs off, or a round to come has something new to look at.
        """
        if not (self._outages or self._reservations):
            return False
        states = [pool.state for pool in self._pools.values()]
        return (
            self._outages.returns
            or any(state.reservations for state in states)
            or any(job.queue_key is None for state in states for job in state.jobs.values())
            or any(s.round_at is not None and (s.queue.changed or s.pass_epoch != s.capacity.epoch) for s in states)
        )

    def _take(self, now: float, *, idle: bool) -> tuple[list[Pool], int]:
        """Put what happens now before the pools, ends first; return those that it concerns, and how many jobs have ended."""
        runs, ends, pool_of = self._runs, self._ends, self._pool_of
        touched: list[Pool] = []  # those that are told something: a pool's inputs are empty between two instants
        ended = 0
        while ends and ends[0][0] == now:
            number = heappop(ends)[1]
            pool = pool_of[number]
            if not pool.inputs:
                touched.append(pool)
            self._end(pool, number, runs[number], now, "exited")
            self.outcome.end_s[number] = now
            ended += 1
            if self._stale:
                self._forget_stopped()
        for change in self._outages.take(now, idle=idle) if self._fails else ():
            pool = self._pools[change.node[0]]
            if not pool.inputs:
                touched.append(pool)
            (self._lose if change.lost else self._return)(pool, change.node[1], now)
        while self._submits[self._arrived] == now:
            number = self._arrivals[self._arrived]
            pool = pool_of[number]
            if not pool.inputs:
                touched.append(pool)
            self._arrive(pool, number)
            self._arrived += 1
        if self._timed:
            touched += [pool for pool in self._timed if pool.timer <= now and not pool.inputs]
        return touched, ended

    def _instant(self, pool: Pool, now: float) -> None:
        """Tell the pool what has happened and carry out what it decides, until it decides nothing more at this instant."""
        state = pool.state
        if not state.keeps_decisions:
            skip_idle_rounds(state, now)
        for _ in range(STEPS_PER_INSTANT_MAX):
            inputs = pool.inputs or [Tick()]
            pool.inputs = []
            done = step(state, inputs, now)
            if done.refused:
                raise SimulationError(f"pool {pool.name} refused an input at {now}: {done.refused}")
            if self._recorder is not None:
                self._recorder(state, done)
            if done.decisions:
                self._carry_out(pool, done.decisions, now)
            state.ended.clear()  # nobody tells anything twice here: what has ended may be forgotten
            if not pool.inputs and not state.more:
                if pool.timed:
                    due = state.next_timer(idle_rounds=state.keeps_decisions)
                    pool.timer = inf if due is None else due
                return
        raise SimulationError(f"pool {pool.name} does not come to rest at {now}: its policy stops and starts for ever")

    def _carry_out(self, pool: Pool, decisions: Sequence[Decision], now: float) -> None:
        """Do what the pool has decided: what is stopped ends at this instant."""
        stopped: dict[int, None] = {}
        maintained: set[int] = set()
        for decision in decisions:
            kind = type(decision)
            if kind is Placed:
                self._start(pool, decision, now)  # type: ignore[arg-type]
            elif kind is Stop:
                number = self._number[decision.job]  # type: ignore[attr-defined]
                if number in self._runs:
                    stopped[number] = None
                else:
                    self._end_survivor(pool, decision, now)  # type: ignore[arg-type]
            elif kind is Moved and decision.event == JobEvent.FAIL:  # type: ignore[attr-defined]
                self._fail(self._number[decision.job])  # type: ignore[attr-defined]
            elif kind is Moved and decision.reason == Reason.MAINTENANCE:  # type: ignore[attr-defined]
                maintained.add(self._number[decision.job])  # type: ignore[attr-defined]
            elif kind is NodeMarked and decision.mark in _AWAY:  # type: ignore[attr-defined]
                self._away(pool, decision.node, _AWAY[decision.mark])  # type: ignore[attr-defined]
        for number in stopped:
            self._stop(pool, number, now, maintenance=number in maintained)

    def _arrive(self, pool: Pool, number: int) -> None:
        job = self._jobs[number]
        self._number[job.id] = number
        if job.asks:
            pool.inputs += job.asks if self._advisor is None else job.asks[:1]
        else:
            pool.inputs.append(self._request(pool, job))
        if self._advisor is not None:
            estimate = self._advisor.estimate_s(number, pool.name)
            if estimate is not None:
                low, high, basis = self._advisor.quantiles(number)
                pool.inputs.append(EstimateArrived(job.id, 1, low, estimate, high, basis))

    @staticmethod
    def _request(pool: Pool, job: TraceJob) -> JobArrived:
        """Return what the pool is told of a job: one node where one is large enough, else whole nodes, else as few as hold it."""
        gpus, nodes = job.gpus, 1
        if gpus > pool.node_gpus:
            nodes, rest = divmod(gpus, pool.node_gpus)
            gpus = pool.node_gpus
            if rest or not pool.uniform:
                gpus, nodes = job.gpus, 0
        return JobArrived(
            job.id, job.tenant, job.tenant, job.priority, gpus, nodes, "|".join(job.gpu_types) or None, 0, None, 0,
            job.submit_s, "", None, resumable=job.resumable, gpu_milli=job.share_milli, inference=job.inference,
        )  # fmt: skip
