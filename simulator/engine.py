"""The event loop: jobs of a trace through the dispatcher's own `step`, with a virtual clock.

At an instant a pool is told all that happens then in one batch: ends, then arrivals; then it decides. What is stopped for another
ends at the same instant, in a second batch. Nothing here knows a policy: it is the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import JobEvent
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import Decision, Moved, NodeMarked, Placed, Seat, Stop
from schedmate.services.dispatcher.core.inputs import (
    EstimateArrived,
    JobArrived,
    MemberExited,
    MemberStarted,
    NodeSilent,
    ProfileArrived,
    Tick,
)
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step, step
from schedmate.simulator.cluster import Cluster, NodeSpec
from schedmate.simulator.faults import Faults, Outages
from schedmate.simulator.integrals import Integrals
from schedmate.simulator.maintenance import Reservations
from schedmate.simulator.outcome import Advisor, Costs, Outcome
from schedmate.simulator.pools import Pool, leaf_nodes, report_of, simulated
from schedmate.simulator.residents import Residents
from schedmate.simulator.trace import Pace, TraceJob

__all__ = ("Advisor", "Costs", "Outcome", "Simulation", "SimulationError", "simulated")

STEPS_PER_INSTANT_MAX = 10_000
_AWAY = {"reserved": 1, "unreserved": -1}
PROGRESS_JOBS = 1000


class SimulationError(RuntimeError):
    """The simulation cannot go on: the core refused an input, or an instant does not come to an end."""


Recorder = Callable[[PoolState, Step], None]


@dataclass(slots=True)
class _Run:
    """A job that holds GPUs."""

    placed: Placed
    since: float
    ends: float
    at: float  # up to when its progress is counted
    speed: float = 1.0


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
        self._jobs = jobs
        self._advisor = advisor
        self._costs = costs or Costs()
        self._recorder = recorder
        # GPUs are counted in thousandths where a job asks for a share, else whole: sums stay exact
        self._unit = WHOLE_MILLI if any(job.share_milli < WHOLE_MILLI for job in jobs) else 1
        settings = simulated(config or PoolConfig(), policy, min_run_s)
        self._reservations = reservations or {}
        self._pools = {name: self._pool(name, nodes, settings) for name, nodes in cluster.pools.items()}
        only = next(iter(self._pools.values())) if cluster.one_pool else None
        self._pool_of = [only or self._pools[job.pool] for job in jobs]
        self._arrivals = sorted(range(len(jobs)), key=lambda n: jobs[n].submit_s)
        self._arrived = 0
        self._number: dict[str, int] = {}  # of live jobs: id → place in the trace
        self._runs: dict[int, _Run] = {}
        self._left = [job.duration_s for job in jobs]
        self._ends: list[tuple[float, int]] = []
        self._stale = 0  # ends that do not come: of jobs that were stopped or lost before
        first, last = (jobs[self._arrivals[0]].submit_s, jobs[self._arrivals[-1]].submit_s) if jobs else (0.0, 0.0)
        self._stopped_at: dict[int, float] = {}
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
        self._residents = residents
        self._beside: dict[int, int] = {}  # two jobs on the same GPUs, both ways

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
        arrived, ends = self._arrived, self._ends
        now = self._jobs[self._arrivals[arrived]].submit_s if arrived < len(self._arrivals) else inf
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
        jobs, arrivals, ends, pool_of = self._jobs, self._arrivals, self._ends, self._pool_of
        touched: list[Pool] = []  # those that are told something: a pool's inputs are empty between two instants
        ended = 0
        while ends and ends[0][0] == now:
            number = heappop(ends)[1]
            pool = pool_of[number]
            if not pool.inputs:
                touched.append(pool)
            self._end(pool, number, self._runs[number], now, "exited")
            self.outcome.end_s[number] = now
            ended += 1
            if self._stale:
                self._forget_stopped()
        for change in self._outages.take(now, idle=idle) if self._fails else ():
            pool = self._pools[change.node[0]]
            if not pool.inputs:
                touched.append(pool)
            (self._lose if change.lost else self._return)(pool, change.node[1], now)
        while self._arrived < len(arrivals) and jobs[arrivals[self._arrived]].submit_s == now:
            number = arrivals[self._arrived]
            pool = pool_of[number]
            if not pool.inputs:
                touched.append(pool)
            self._arrive(pool, number)
            self._arrived += 1
        touched += [pool for pool in self._timed if pool.timer <= now and not pool.inputs]
        return touched, ended

    def _forget_stopped(self) -> None:
        """See that the first of the ends is one that comes: of a job that was stopped and runs again, only the latest does."""
        ends, runs = self._ends, self._runs
        while ends:
            at, number = ends[0]
            run = runs.get(number)
            if run is not None and run.ends == at:
                return
            heappop(ends)
            self._stale -= 1

    def _instant(self, pool: Pool, now: float) -> None:
        """Tell the pool what has happened and carry out what it decides, until it decides nothing more at this instant."""
        state = pool.state
        if not state.keeps_decisions:
            state.skip_idle_rounds(now)
        for _ in range(STEPS_PER_INSTANT_MAX):
            inputs = pool.inputs or [Tick()]
            pool.inputs = []
            done = step(state, inputs, now)
            if done.refused:
                raise SimulationError(f"pool {pool.name} refused an input at {now}: {done.refused}")
            if self._recorder is not None:
                self._recorder(state, done)
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
            job.id, job.tenant, job.tenant, 1, gpus, nodes, "|".join(job.gpu_types) or None, 0, None, 0,
            job.submit_s, "", None, resumable=True, gpu_milli=job.share_milli, inference=job.inference,
        )  # fmt: skip

    def _start(self, pool: Pool, placed: Placed, now: float) -> None:
        number = self._number[placed.job]
        outcome = self.outcome
        if outcome.start_s[number] is None:
            outcome.start_s[number] = now
            if self._advisor is not None:
                self._advisor.started(number, now)
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
        for seat in placed.seats if placed.beside is None else ():
            name, before = seat.node, used[seat.node]
            after = before + self._taken(placed, seat)
            if after > pool.gpus_of[name]:
                raise SimulationError(f"node {name} is over-allocated at {now}")
            used[name] = after
            change(before, after, pool.gpus_of[name])
        pace, ends = self._jobs[number].pace, now + self._left[number]
        if pace is not None:
            ends = now + pace.start_s + self._left[number] * pace.slowdown([len(seat.gpus) for seat in placed.seats])
        self._runs[number] = _Run(placed, now, ends, now)
        heappush(self._ends, (ends, number))
        if placed.profiling:
            pool.inputs += [
                MemberStarted(placed.job, placed.attempt, member, seat.node, seat.session, now)
                for member, seat in enumerate(placed.seats)
            ]
        if placed.beside is not None:
            self._join(number, self._number[placed.beside], now)

    def _join(self, number: int, other: int, now: float) -> None:
        """The two run on the same GPUs from now on."""
        assert self._residents is not None, "jobs are packed by their profiles"
        self._beside[number], self._beside[other] = other, number
        speed = self._residents.joined(number, other)
        self._pace(number, speed, now)
        self._pace(other, speed, now)

    def _settle(self, number: int, now: float) -> _Run:
        """Count the job's progress up to now; from now on it runs at its own speed."""
        run = self._runs[number]
        if run.speed != 1.0 and self._residents is not None:
            self._residents.shared(self._jobs[number].gpus, now - run.at, run.speed)
        self._left[number] -= (now - run.at) * run.speed
        run.at, run.speed = now, 1.0
        return run

    def _pace(self, number: int, speed: float, now: float) -> None:
        """The job runs at another speed from now on."""
        run = self._settle(number, now)
        run.speed, run.ends = speed, now + max(self._left[number], 0.0) / speed
        heappush(self._ends, (run.ends, number))
        self._stale += 1

    def _part(self, number: int, now: float) -> bool:
        """The job leaves the GPUs that it shared to the other one; tell whether it shared any."""
        other = self._beside.pop(number, None)
        if other is None:
            return False
        del self._beside[other]
        self._settle(number, now)
        self._pace(other, 1.0, now)
        return True

    def _taken(self, placed: Placed, seat: Seat) -> int:
        """Return what a seat takes of its node, in the unit in which GPUs are counted."""
        return len(seat.gpus) if self._unit == 1 else len(seat.gpus) * placed.gpu_milli

    def _end(self, pool: Pool, number: int, run: _Run, now: float, cause: str) -> None:
        """The job's members are gone: their GPUs are free, and the pool is told."""
        placed = run.placed
        shared = bool(self._beside) and self._part(number, now)
        used, change, inputs = pool.used, self.outcome.integrals.change, pool.inputs
        code = 0 if cause == "exited" else None
        for member, seat in enumerate(placed.seats):
            if not shared:
                before = used[seat.node]
                used[seat.node] = after = before - self._taken(placed, seat)
                change(before, after, pool.gpus_of[seat.node])
            inputs.append(
                MemberExited(
                    placed.job, placed.attempt, member, seat.node, seat.session, cause, code, None, run.since, now
                )
            )
        if placed.profiling and self._residents is not None:
            waited = run.since - self._jobs[number].submit_s
            self._residents.left_profiler(self._jobs[number].gpus, now - run.since, waited, ended=code == 0)
        if self.outcome.runs is not None:
            self.outcome.runs.append((number, run.since, now, placed.seats))
        del self._runs[number]
        if code == 0:
            del self._number[placed.job]
        else:
            self._stale += 1
        if code == 0 and self._advisor is not None:
            self._advisor.finished(number, pool.name, now)

    def _stop(self, pool: Pool, number: int, now: float, *, maintenance: bool) -> None:
        """The job gives way: what it has done since its last checkpoint is lost, and its next start costs a restart."""
        run = self._runs[number]
        self._charge(number, self._ran(number, run, now))
        self._stopped_at[number] = now
        if maintenance:
            self.outcome.maintenance_stops += 1
        elif run.placed.profiling:
            self.outcome.profiled += 1
            self._tell_profile(pool, number)
        else:
            self.outcome.preemptions += 1
        self._end(pool, number, run, now, "stopped")

    def _ran(self, number: int, run: _Run, now: float) -> float:
        """Return how long the job has run since its progress was counted last; as one of a pair it is counted up to now."""
        if number in self._beside:
            self._settle(number, now)
        return now - run.at

    def _tell_profile(self, pool: Pool, number: int) -> None:
        """Tell what the profiler has seen; a job whose run time follows its placement has no profile, so that nobody joins it."""
        job = self._jobs[number]
        if self._residents is not None and job.pace is None:
            seen = self._residents.profiles[number]
            pool.inputs.append(ProfileArrived(job.id, seen.utilisation, seen.memory_utilisation, seen.memory_mib))

    def _charge(self, number: int, ran_s: float) -> float:
        """A run has ended before its time: return the GPU seconds that it costs."""
        job, costs = self._jobs[number], self._costs
        if job.pace is not None:
            return self._charge_paced(number, job.pace, ran_s)
        lost = ran_s % costs.checkpoint_s if costs.checkpoint_s > 0 else 0.0
        self._left[number] += lost - ran_s + costs.restart(job.gpus)
        charged = (lost + costs.restart(job.gpus)) * job.gpus
        self.outcome.lost_gpu_s += charged
        return charged

    def _charge_paced(self, number: int, pace: Pace, ran_s: float) -> float:
        """The same of a job whose run time follows its placement: it keeps what it has done, and its next start costs what every one does."""
        gpus = self._jobs[number].gpus
        worked_s = max(ran_s - pace.start_s, 0.0)
        slowdown = pace.slowdown([len(seat.gpus) for seat in self._runs[number].placed.seats])
        self._left[number] = max(self._left[number] - worked_s / slowdown, 0.0)
        self.outcome.lost_gpu_s += pace.start_s * gpus
        return pace.start_s * gpus

    def _lose(self, pool: Pool, node: str, now: float) -> None:
        """The node is gone with all that ran on it; what is left of its gangs ends when the pool says so."""
        outcome = self.outcome
        outcome.node_failures += 1
        lost = [
            n
            for n, run in self._runs.items()
            if self._pool_of[n] is pool and any(s.node == node for s in run.placed.seats)
        ]
        for number in lost:
            run = self._runs[number]
            outcome.failures += 1
            outcome.lost_to_failures_gpu_s += self._charge(number, self._ran(number, run, now))
            self._stopped_at[number] = now
            told = len(pool.inputs)
            self._end(pool, number, run, now, "lost")
            del pool.inputs[told:]  # nobody tells the pool: it hears that the node is silent
        self._forget_stopped()
        self._away(pool, node, 1)
        pool.inputs.append(NodeSilent(node, pool.sessions[node]))

    def _away(self, pool: Pool, node: str, more: int) -> None:
        """There is one reason more (or less, -1) why the node's GPUs cannot be scheduled."""
        before = pool.away.get(node, 0)
        pool.away[node] = before + more
        if 0 in (before, before + more):
            self.outcome.integrals.lose(more * pool.gpus_of[node])

    def _end_survivor(self, pool: Pool, order: Stop, now: float) -> None:
        """A member whose gang has lost another one ends."""
        session = pool.sessions[order.node]
        pool.inputs.append(
            MemberExited(order.job, order.attempt, order.member, order.node, session, "stopped", None, None, None, now)
        )

    def _return(self, pool: Pool, node: str, now: float) -> None:  # noqa: ARG002 - as `_lose`
        pool.sessions[node] += 1
        self._away(pool, node, -1)
        pool.inputs.append(report_of(pool.specs[node], pool.sessions[node]))

    def _fail(self, number: int) -> None:
        """The job's budget is spent: all that it did was for nothing; a restart that was charged and never came is given back."""
        job, outcome = self._jobs[number], self.outcome
        outcome.failed += 1
        in_vain = (job.duration_s - self._left[number]) * job.gpus
        outcome.lost_gpu_s += in_vain
        outcome.lost_to_failures_gpu_s += in_vain
