"""The jobs that run: where, how fast and until when; what their ends free, and what an end before its time costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from schedmate.services.dispatcher.core.decisions import Placed, Seat, Stop
from schedmate.services.dispatcher.core.inputs import MemberExited, MemberStarted, NodeSilent, ProfileArrived
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.simulator.outcome import Advisor, Costs, Outcome
from schedmate.simulator.pools import Pool, report_of
from schedmate.simulator.residents import Residents
from schedmate.simulator.trace import Pace, TraceJob


class SimulationError(RuntimeError):
    """The simulation cannot go on: the core refused an input, or an instant does not come to an end."""


@dataclass(slots=True)
class Run:
    """A job that holds GPUs."""

    placed: Placed
    since: float
    ends: float
    at: float  # up to when its progress is counted
    speed: float = 1.0


class Running:
    """The running jobs of a simulation, and its outcome. What happens when is the event loop's (`engine`), who runs the core's.

    Args:
        jobs: those of the trace.
        advisor: who is told of starts and ends.
        costs: of an end before its time.
        residents: how jobs use their GPUs, where they are packed.
    """

    outcome: Outcome
    _pool_of: list[Pool]
    """Of each job."""

    def __init__(
        self, jobs: Sequence[TraceJob], advisor: Advisor | None, costs: Costs, residents: Residents | None
    ) -> None:
        self._jobs = jobs
        self._advisor = advisor
        self._costs = costs
        self._residents = residents
        # GPUs are counted in thousandths where a job asks for a share, else whole: sums stay exact
        self._unit = WHOLE_MILLI if any(job.share_milli < WHOLE_MILLI for job in jobs) else 1
        self._number: dict[str, int] = {}  # of live jobs: id → place in the trace
        self._runs: dict[int, Run] = {}
        self._left = [job.duration_s for job in jobs]
        self._ends: list[tuple[float, int]] = []
        self._stale = 0  # ends that do not come: of jobs that were stopped or lost before
        self._stopped_at: dict[int, float] = {}
        self._beside: dict[int, int] = {}  # two jobs on the same GPUs, both ways

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

    def _start(self, pool: Pool, placed: Placed, now: float) -> None:
        number = self._number[placed.job]
        outcome, job = self.outcome, self._jobs[number]
        if outcome.start_s[number] is None:
            outcome.start_s[number] = now
            if self._advisor is not None:
                self._advisor.started(number, now)
            outcome.nodes_least[number] = -(-job.gpus // pool.node_gpus)
            outcome.wait_s[number] = now - job.submit_s
        else:
            outcome.wait_s[number] += now - self._stopped_at.pop(number)
        outcome.nodes_used[number] = len(placed.seats)
        if pool.leaf_nodes:
            outcome.leaves_used[number] = len({pool.state.topology.leaf(seat.node) for seat in placed.seats})
            outcome.leaves_least[number] = -(-outcome.nodes_least[number] // pool.leaf_nodes)
        if outcome.seats is not None:
            outcome.seats[number] = placed.seats
        used, gpus_of, change = pool.used, pool.gpus_of, outcome.integrals.change
        for seat in placed.seats if placed.beside is None else ():
            name = seat.node
            before, most = used[name], gpus_of[name]
            after = before + self._taken(placed, seat)
            if after > most:
                raise SimulationError(f"node {name} is over-allocated at {now}")
            used[name] = after
            change(before, after, most)
        pace, ends = job.pace, now + self._left[number]
        if pace is not None:
            ends = now + pace.start_s + self._left[number] * pace.slowdown([len(seat.gpus) for seat in placed.seats])
        self._runs[number] = Run(placed, now, ends, now)
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

    def _settle(self, number: int, now: float) -> Run:
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

    def _end(self, pool: Pool, number: int, run: Run, now: float, cause: str) -> None:
        """The job's members are gone: their GPUs are free, and the pool is told."""
        placed = run.placed
        shared = bool(self._beside) and self._part(number, now)
        used, change, inputs = pool.used, self.outcome.integrals.change, pool.inputs
        code = 0 if cause == "exited" else None
        for member, seat in enumerate(placed.seats):
            node = seat.node
            if not shared:
                before = used[node]
                used[node] = after = before - self._taken(placed, seat)
                change(before, after, pool.gpus_of[node])
            inputs.append(
                MemberExited(placed.job, placed.attempt, member, node, seat.session, cause, code, None, run.since, now)
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

    def _ran(self, number: int, run: Run, now: float) -> float:
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
        if job.resumable:
            lost = ran_s % costs.checkpoint_s if costs.checkpoint_s > 0 else 0.0
            self._left[number] += lost - ran_s + costs.restart(job.gpus)
        else:  # it begins anew; of what this attempt ran, a restart before it has been charged already
            lost = max(ran_s - (self._left[number] - job.duration_s), 0.0)
            self._left[number] = job.duration_s + costs.restart(job.gpus)
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
