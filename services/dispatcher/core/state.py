"""The state of a pool: jobs, nodes and what follows from them. Changed by `fold` and by applied decisions only."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, Final

from schedmate.schemas.reasons import Reason
from schedmate.schemas.states import HOLDS_GPUS, JobState
from schedmate.services.dispatcher.core import reservations
from schedmate.services.dispatcher.core.ageing import Ageing
from schedmate.services.dispatcher.core.attained import Attained
from schedmate.services.dispatcher.core.capacity import Capacity
from schedmate.services.dispatcher.core.config import UNSCORED, WITHHELD, PoolConfig
from schedmate.services.dispatcher.core.inputs import Input
from schedmate.services.dispatcher.core.inputs import from_json as input_from_json
from schedmate.services.dispatcher.core.inputs import to_json as input_to_json
from schedmate.services.dispatcher.core.job import (
    AVOID_MAX,
    ENDED,
    STARTED,
    TOLD,
    Job,
    Member,
    began_at,
    job_from_json,
    job_to_json,
    ran_s,
)
from schedmate.services.dispatcher.core.node import Node, node_from_json, node_to_json
from schedmate.services.dispatcher.core.placement import PLACERS, Placer
from schedmate.services.dispatcher.core.profiling import Profiler, sets_apart
from schedmate.services.dispatcher.core.queue import Key, Kind, WaitingQueue
from schedmate.services.dispatcher.core.reservations import Reservation
from schedmate.services.dispatcher.core.ripening import Ripening
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.sharing import Hosts
from schedmate.services.dispatcher.core.topology import Topology
from schedmate.services.dispatcher.core.trust import Trust

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.policy import Policy

__all__ = ("AVOID_MAX", "CORE_VERSION", "ENDED", "STARTED", "TOLD", "Job", "Member", "Node", "PoolState")

CORE_VERSION: Final = "2"
Request = tuple[int, int, str | None]
"""GPUs per node, thousandths of each, GPU type."""

_NEVER: Final = 1e14  # seconds; a deadline so far away is none
_BEYOND: Final = 1.0 + 1e-9  # past an edge, whatever the rounding
_RUNS: Final = (JobState.ASSIGNED, JobState.RUNNING)


class PoolState:
    """Everything that the decisions of a pool follow from.

    `jobs`, `nodes`, `ended`, `early`, counters and `config` are the state; `capacity`, `queue`, `timers` and `suspecting` follow from
    them and are rebuilt on loading; `dirty_*` is empty between two entries.
    """

    def __init__(self, pool: str, config: PoolConfig, policy: Policy) -> None:
        self.pool = pool
        self.configure(config, policy)
        self.seq = -1
        self.at = 0.0
        self.keeps_decisions = True  # does somebody keep what is decided (see `Step`)?
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.ended: dict[str, str] = {}  # tombstones: job id -> terminal state, for ever
        self.early: dict[str, list[Input]] = {}  # events for jobs not seen yet
        self.early_count = 0
        self.cancels: dict[str, str] = {}  # cancels for jobs not seen yet: job id -> who
        self.arrivals = self.joins = 0
        self.tenant_gpus: dict[str, int] = {}
        self.demand: dict[Request, int] = {}  # how many jobs have asked for what (core/fragmentation.py)
        self.round_at: float | None = None  # when a policy of rounds decides next
        self.trust: dict[str, Trust] = {}  # how far each source of advice is believed
        self.reservations: dict[str, Reservation] = {}  # of nodes for maintenance
        self.attained = Attained()  # how much GPU time the finished jobs took, where the policy asks
        self.trust_moved: dict[str, float] = {}  # the weights that changed in the current entry
        self.trust_due: list[tuple[float, int, str, str]] = []  # when a running job is known to outlast its partner
        self.oldest: list[
            tuple[float, int, str]
        ] = []  # waiting jobs by when they came to wait, where advice may move them
        self.round_goes_on = False  # the last of those that the round stopped has gone in this entry
        self.leaving: dict[str, None] = {}  # jobs that were stopped for others and hold their GPUs still
        self.holders: list[tuple[Key, str]] = []  # (rank, job) of those that hold GPUs, where the policy preempts
        self.held_keys: dict[str, Key] = {}
        self.holding: dict[str, None] = {}  # jobs that run, where the policy decides in rounds
        self.held_gpus = 0  # their GPUs
        self.ranks: dict[int, list[tuple[Key, str]]] = {}  # (rank, job) of all live jobs by GPUs, likewise
        self.rank_of: dict[str, Key] = {}
        self.crossings: list[tuple[float, str, int]] = []  # when a running job comes to the second level
        self.more = False  # the last step stopped at its bound
        self.ripening = Ripening(config, policy)
        self.ripens = bool(self.ripening)
        self.ageing = Ageing()
        self.capacity = Capacity()
        self.hosts = Hosts()
        self.profiler = Profiler()
        self.topology = Topology()
        self.queue = WaitingQueue()
        self.blocked: dict[Kind, tuple[int, str]] = {}
        self.pass_epoch = -1
        self.timers: list[tuple[float, str]] = []
        self.suspecting: dict[str, None] = {}  # jobs that may have suspects: few, where `jobs` may be many
        self.repeats = 0  # inputs of the current entry that said nothing new: repeats, or too late
        self.ended_now: dict[str, Job] = {}  # jobs that ended in the current entry
        self.before: dict[int, str] = {}  # place of a decision in the current entry -> the job's state before it
        self.dirty_jobs: dict[str, None] = {}
        self.dirty_nodes: dict[str, None] = {}
        self.releases: list[tuple[str, str, int, int]] = []
        self.stops: list[tuple[str, str, int, int]] = []

    def configure(self, config: PoolConfig, policy: Policy) -> None:
        """Take these settings and this policy, and what is asked of them at every step."""
        self.config = config
        self.policy = policy
        self.placer: Placer = PLACERS.get(config.placer, policy.placer)
        self.acts_on_advice = config.advice not in WITHHELD
        """Does what is said of jobs move them? Else it is scored only (`shadow`), or not even that (`off`)."""
        by_advice = policy.uses_estimates and config.advice != "raw"
        self.wait_max_s = min(config.advice_wait_max_s if by_advice else inf, config.wait_max_s or inf)
        """How long a job may wait because of advice, or for others that the policy puts first; whoever has waited so long goes first."""
        self.bounds_wait = self.wait_max_s < inf
        self.held_by: tuple[Key, str] | None = None
        """Who held the others back in the last pass, and waits for nothing but GPUs."""
        self.limits_tenants = bool(config.tenant_gpus or config.tenant_quota) or config.tenant_gpus_max is not None
        """May a tenant be at a limit, or its quota be used up?"""

    def touch(self, job: Job) -> None:
        """The job must be looked at before the entry closes."""
        self.dirty_jobs[job.id] = None

    def refresh_capacity(self, node: Node) -> None:
        """Tell the capacity index what the node offers now."""
        if node.schedulable:
            free = {i for i in node.gpus if i not in node.owner and i not in node.shares}
            left = {i: WHOLE_MILLI - sum(held.values()) for i, held in node.shares.items()}
            leaf = self.topology.leaf(node.name) if self.topology.given else ""
            self.capacity.set_node(node.name, node.order, node.gpus, free, left, leaf)
        else:
            self.capacity.set_node(node.name, node.order, {}, set())

    def trust_in(self, basis: str | None) -> float:
        """Return the trust in a source of advice, 0 where nothing is known of it yet, or the pool does not act on advice."""
        known = self.trust.get(basis or "") if self.acts_on_advice else None
        return known.weight if known is not None else 0.0

    def heed(self, job: Job) -> None:
        """The job's source has spoken: its word counts for or against it, unless the job has started before."""
        if self.config.advice not in UNSCORED and job.attempt == 0:
            self.trust.setdefault(job.basis or "", Trust()).said(job.id, job.p50_s, job.p10_s, job.p90_s)

    def watch(self, job: Job) -> None:
        """The job runs: remember when it will have outlasted a partner that has ended (core/trust.py)."""
        for basis, known in self.trust.items():
            runs_s = known.outlasts(job.id)
            if runs_s is not None:
                heappush(self.trust_due, (began_at(job) + runs_s - job.served_s, job.order, job.id, basis))

    def learn(self, job: Job, *, whole: bool) -> None:
        """A job has ended (`whole`: of itself, well): its sources are believed more, or less."""
        before = {basis: known.weight for basis, known in self.trust.items()}
        self._settle()
        run_s = ran_s(job) if whole else job.served_s
        for known in self.trust.values():
            partner = self.jobs.get(known.partner(job.id))
            known.ended(job.id, run_s, whole=whole)
            if partner is not None and partner.state in _RUNS:
                self.watch(partner)
        for basis, known in self.trust.items():
            if known.weight != before[basis]:
                self._weight_moved(basis)

    def _settle(self) -> None:
        """Decide the pairs of which the running job has lasted for long enough by now."""
        while self.trust_due and self.trust_due[0][0] <= self.at:
            due, order, job_id, basis = heappop(self.trust_due)
            job, known = self.jobs.get(job_id), self.trust[basis]
            runs_s = known.outlasts(job_id)
            if job is None or runs_s is None or job.state not in _RUNS:
                continue
            holds = began_at(job) + runs_s - job.served_s
            if holds > due:  # it was stopped meanwhile, or its processes came up later
                heappush(self.trust_due, (holds, order, job_id, basis))
            else:
                known.outlasted(job_id)

    def trust_is(self, basis: str, weight: float) -> None:
        """The log says how far the source was believed from then on."""
        known = self.trust.setdefault(basis, Trust())
        if known.weight != weight:
            known.weight = weight
            self._weight_moved(basis)

    def _weight_moved(self, basis: str) -> None:
        """Whoever the weight moves stands elsewhere from now on."""
        self.trust_moved[basis] = self.trust[basis].weight
        if self.policy.uses_estimates:
            for other in self.jobs.values():
                if other.p50_s is not None and other.basis == basis:
                    self.place_anew(other)

    def place_anew(self, job: Job) -> None:
        """What is known of the job, or how far it is believed, has changed: it stands where it belongs now."""
        if job.queue_key is not None:
            self.dequeue(job)
            self.enqueue(job)
        elif job.id in self.held_keys:
            self.hold(job)
        if job.id in self.hosts:
            self.hosts.note(job, self)

    def overdue(self, job: Job) -> bool:
        """Has the job waited so long that it goes first (core/advice.py)?"""
        return self.bounds_wait and self.at - job.since + job.waited_s >= self.wait_max_s

    def waited_enough(self, job: Job) -> bool:
        """Did the running job wait for so long that nobody takes its GPUs for the order's sake?"""
        return self.bounds_wait and job.waited_s >= self.wait_max_s

    def promote_overdue(self) -> None:
        """Whoever has waited for too long goes first."""
        while self.oldest and self.at - self.oldest[0][0] >= self.wait_max_s:
            since, _, job_id = heappop(self.oldest)
            job = self.jobs.get(job_id)
            waits = job is not None and job.queue_key is not None and job.queue_key[1] != -inf
            if job is not None and waits and job.since - job.waited_s == since:
                self.dequeue(job)
                self.enqueue(job)

    # --- the queue ---

    def kind_of(self, job: Job) -> Kind:
        """Return what decides whether the job fits."""
        limited, resumable = None, None
        if self.limits_tenants:
            quotas = bool(self.config.tenant_quota)
            limited = job.tenant if quotas or self.config.tenant_limit(job.tenant) is not None else None
            resumable = job.resumable if quotas else None
        held = reservations.kind_of(job) if self.reservations else None
        packed = sets_apart(self, job) if self.policy.packs else None
        apart = (self.milli_of(job), job.inference, job.within, resumable, held, packed)
        return (job.gpus, job.nodes, job.gpu_type, job.gpu_memory_mib, limited, job.avoid, apart)

    def milli_of(self, job: Job) -> int:
        """Return the thousandths of its GPU that a waiting job gets."""
        return job.gpu_milli if self.config.gpu_sharing else WHOLE_MILLI

    def enqueue(self, job: Job) -> None:
        """Let the job compete for GPUs."""
        assert job.queue_key is None, "the job waits already"
        job.queue_kind = kind = self.kind_of(job)
        key = self.policy.key(job, self)
        if self.config.ageing_s:
            key = self.ageing.key(job, key, self)
        if self.bounds_wait:
            if self.overdue(job):
                key = (key[0], -inf, job.submitted_at, job.order)
            else:
                heappush(self.oldest, (job.since - job.waited_s, job.order, job.id))
        job.queue_key = key
        self.queue.add(kind, key, job.id)
        if self.policy.rounds_s is not None:
            self.rank(job, key)

    # --- the order of those that hold GPUs ---

    def waits_for_leaving(self) -> bool:
        """Is somebody on the way out for others, whose stop has not outlasted its bound?"""
        return any(self.jobs[job_id].reason != Reason.STOP_TIMEOUT for job_id in self.leaving)

    def rank_anew(self) -> None:
        """Another policy: its structures are built from the jobs."""
        self.holders, self.held_keys, self.holding, self.held_gpus, self.ranks, self.rank_of = [], {}, {}, 0, {}, {}
        self.crossings = []
        self.hosts, self.profiler = Hosts(), Profiler()
        self.ripening = Ripening(self.config, self.policy)
        self.ripens = bool(self.ripening)
        self.leaving = {
            j.id: None for j in self.jobs.values() if j.state is JobState.STOPPING and j.requeue_cause == "preempted"
        }
        for job in sorted(self.jobs.values(), key=lambda one: one.place):  # those that run as they were placed
            if job.state in _RUNS:
                self.hold(job)
            elif job.queue_key is not None:
                self.rank(job, job.queue_key)

    def hold(self, job: Job) -> None:
        """The job runs (or what is known of it has changed): it stands where the policy ranks it."""
        if self.ripens:
            self.ripening.runs(job, self.at)
        if self.policy.packs:
            self.hosts.note(job, self)
        if self.policy.preempts or self.policy.backfills:
            self.let_go(job)
            key = self.policy.held_key(job, self)
            self.held_keys[job.id] = key
            insort(self.holders, (key, job.id))
        elif self.policy.rounds_s is not None:
            if job.id not in self.holding:
                self.holding[job.id] = None
                self.held_gpus += job.gpus_total
            if (
                job.id not in self.rank_of or self.config.ageing_s
            ):  # the rank of a job that runs is not that of its wait
                self.rank(job, self.policy.key(job, self))
            self._set_crossing(job, job.served_s * job.gpus_total)

    def let_go(self, job: Job) -> None:
        """The job runs no more, or is on its way out."""
        self.hosts.forget(job.id)
        key = self.held_keys.pop(job.id, None)
        if key is not None:
            del self.holders[bisect_left(self.holders, (key, job.id))]
        if job.id in self.holding:
            del self.holding[job.id]
            self.held_gpus -= job.gpus_total

    def rank(self, job: Job, key: Key) -> None:
        """A live job stands in the order of the rounds."""
        self.unrank(job)
        self.rank_of[job.id] = key
        insort(self.ranks.setdefault(job.gpus_total, []), (key, job.id))

    def unrank(self, job: Job) -> None:
        """The job stands there no more."""
        key = self.rank_of.pop(job.id, None)
        if key is not None:
            entries = self.ranks[job.gpus_total]
            del entries[bisect_left(entries, (key, job.id))]
            if not entries:
                del self.ranks[job.gpus_total]

    def next_crossing(self) -> float | None:
        """Return when the next running job will have had more than its first level gives."""
        while self.crossings:
            at, job_id, attempt = self.crossings[0]
            job = self.jobs.get(job_id)
            if job is not None and job_id in self.holding and job.attempt == attempt:
                return at
            heappop(self.crossings)
        return None

    @property
    def level_gpu_s(self) -> float | None:
        """The attained GPU time above which a job is of the second level, where the policy has levels."""
        own = self.policy.level_gpu_s
        return own if own is None else self.config.level_gpu_s or own

    def cross_levels(self) -> None:
        """Whoever has had more than its level gives stands in the next one."""
        while (at := self.next_crossing()) is not None and at < self.at:
            job = self.jobs[heappop(self.crossings)[1]]
            if self.rank_of[job.id][1] == -inf:
                continue  # it has waited enough: it stays where it stands
            crossed = (job.served_s + at - job.since) * job.gpus_total
            gpu_s = max((job.served_s + self.at - job.since) * job.gpus_total, crossed * _BEYOND)
            self._rank_with(job, gpu_s)
            self._set_crossing(job, gpu_s)

    def _set_crossing(self, job: Job, gpu_s: float) -> None:
        """The job runs and has had so much: remember when it comes to the next level."""
        ends = self.policy.next_level(gpu_s, self)
        if ends is not None:
            heappush(self.crossings, (job.since + ends / job.gpus_total - job.served_s, job.id, job.attempt))

    def _rank_with(self, job: Job, gpu_s: float) -> None:
        """The running job stands where one stands that has had so much GPU time."""
        served, job.served_s = job.served_s, gpu_s / job.gpus_total
        self.rank(job, self.policy.key(job, self))
        job.served_s = served

    def learn_service(self, job: Job) -> None:
        """A job has finished: where that moves the others, they stand elsewhere from now on."""
        level = self.level_gpu_s
        if level is None or not self.attained.learn(ran_s(job) * job.gpus_total, level):
            return
        for other in self.jobs.values():
            if other is job:
                continue
            if other.queue_key is not None:
                self.place_anew(other)
            elif other.id in self.rank_of:
                self._rank_with(other, (other.served_s + self.at - other.since) * other.gpus_total)

    def rank_outlasted(self) -> None:
        """Holders that have run for longer than was expected stand where they are expected to end now."""
        at = 0
        while at < len(self.holders) and self.policy.outlasted(self.holders[at][0], self):
            first = self.holders[at]
            self.hold(self.jobs[first[1]])
            at += self.holders[at] == first  # nothing else is known of it

    def nothing_gives_way(self, job: Job) -> bool:
        """Tell whether not even the last of the holders gives way to the job."""
        return not self.holders or not self.policy.gives_way(self.holders[-1][0], job, self)

    def dequeue(self, job: Job) -> None:
        """The job competes no more."""
        if job.queue_key is not None and job.queue_kind is not None:
            self.queue.remove(job.queue_kind, job.queue_key, job.id)
        job.queue_key = job.queue_kind = None

    # --- timers ---

    def deadline(self, job: Job) -> float | None:
        """Return when the job must be looked at if nothing happens before."""
        state = job.state
        if state is JobState.QUEUED:
            return job.not_before if job.queue_key is None else None
        if state is JobState.RUNNING:
            due = self.limit_of(job)
            if job.profiling and job.started_at is not None:
                due = min(due, job.started_at + self.config.profiler_s)
            return due if due < _NEVER else None
        if state is JobState.ASSIGNED:
            return job.since + self.config.start_timeout_s
        if state is JobState.STOPPING:
            return job.since + self.config.stop_timeout_s if job.reason != Reason.STOP_TIMEOUT else None
        return job.since + self.config.diagnosis_wait_s if state is JobState.DIAGNOSING else None

    def limit_of(self, job: Job) -> float:
        """Return when a running job comes to its own time limit."""
        if job.time_limit_s is None or job.started_at is None:
            return inf
        return job.started_at + job.time_limit_s

    def set_timer(self, job: Job) -> None:
        """Remember the job's deadline."""
        due = self.deadline(job)
        if due is not None and due < _NEVER:
            heappush(self.timers, (due, job.id))

    def next_timer(self, *, idle_rounds: bool = True) -> float | None:
        """Return when something is due that no event will tell: a job's deadline, or a round (also one that will decide nothing)."""
        due = self._next_deadline()
        round_at = self.round_at if idle_rounds else self.deciding_round()
        if round_at is not None:
            due = round_at if due is None else min(due, round_at)
        if self.ripens and len(self.queue) and (ripe := self.ripening.next_at(self)) is not None:
            due = ripe if due is None else min(due, ripe)
        if self.reservations and (turns := reservations.next_turn(self)) is not None:
            due = turns if due is None else min(due, turns)
        if self.config.ageing_s and (rises := self.ageing.next_at(self)) is not None:
            due = rises if due is None else min(due, rises)
        return due

    def _next_deadline(self) -> float | None:
        """Return the earliest deadline that still holds, dropping those that do not."""
        while self.timers:
            due, job_id = self.timers[0]
            job = self.jobs.get(job_id)
            if job is not None and self.deadline(job) == due:
                return due
            heappop(self.timers)
        return None

    def turn_round(self) -> None:
        """Set when the next round is, as an entry closes: at the next multiple of the policy's period, as long as jobs wait."""
        every = self.policy.rounds_s
        if every is None or not len(self.queue):
            self.round_at = None
        elif self.round_at is None or self.round_at <= self.at:
            self.round_at = (floor(self.at / every) + 1) * every

    def deciding_round(self) -> float | None:
        """Return when the next round is that may decide something, as things stand.

        A round decides what the one before it has decided until a job comes or goes, GPUs are freed, or a job crosses a level.
        """
        every = self.policy.rounds_s
        if every is None or self.round_at is None or self.queue.changed or self.pass_epoch != self.capacity.epoch:
            return self.round_at
        crossing = self.next_crossing()
        return None if crossing is None else max(self.round_at, (floor(crossing / every) + 1) * every)

    def skip_idle_rounds(self, now: float) -> None:
        """Nobody has told the pool of the rounds before `now`, which would have decided nothing: the next one is due from now on."""
        every = self.policy.rounds_s
        if every is not None and self.round_at is not None and self.round_at < now:
            self.round_at = ceil(now / every) * every

    def take_due(self) -> list[Job]:
        """Return the jobs whose deadline has come, in the order of (deadline, id)."""
        due: list[Job] = []
        while (first := self._next_deadline()) is not None and first <= self.at:
            due.append(self.jobs[heappop(self.timers)[1]])
        return due

    # --- ownership ---

    def holders_of_gpus(self) -> set[str]:
        """Return the jobs that hold GPUs, alone, beside another or in part."""
        names: set[str] = set()
        for node in self.nodes.values():
            names.update(node.owner.values())
            names.update(node.guests.values())
            for held in node.shares.values():
                names.update(held)
        return names

    def lease(self, job: Job) -> None:
        """The job's members hold their GPUs (and the first one its master port)."""
        host = self.jobs[job.beside] if job.beside is not None else None
        for member in job.members:
            node = self.nodes[member.node]
            if host is not None and host.place < job.place:
                node.guests.update(dict.fromkeys(member.gpus, job.id))
                continue
            for gpu in member.gpus:
                assert gpu not in node.owner, f"GPU {gpu} of {node.name} has an owner"
                if job.holds_whole:
                    assert gpu not in node.shares, f"GPU {gpu} of {node.name} is held in part"
                    node.owner[gpu] = job.id
                else:
                    held = node.shares.setdefault(gpu, {})
                    held[job.id] = job.held_milli
                    assert sum(held.values()) <= WHOLE_MILLI, f"GPU {gpu} of {node.name} is given out more than once"
        self.nodes[job.members[0].node].ports[job.master_port] = job.id
        self.tenant_gpus[job.tenant] = self.tenant_gpus.get(job.tenant, 0) + job.gpus_total

    def unlease(self, job: Job) -> None:
        """The gang's last member has ended: all of its GPUs are free, or those of the job that shares them alone."""
        if job.beside is not None:
            self._leave_to(self.jobs[job.beside], job)
        else:
            for member in job.members:
                self._give_back(job, member)
        self.nodes[job.members[0].node].ports.pop(job.master_port, None)
        left = self.tenant_gpus[job.tenant] - job.gpus_total
        if left:
            self.tenant_gpus[job.tenant] = left
        else:
            del self.tenant_gpus[job.tenant]
        self.capacity.epoch += 1

    def _give_back(self, job: Job, member: Member) -> None:
        node, gpus = self.nodes[member.node], member.gpus
        if not job.holds_whole:
            del node.shares[gpus[0]][job.id]
            if not node.shares[gpus[0]]:
                del node.shares[gpus[0]]
            if node.schedulable:
                self.capacity.give_share(node.name, gpus[0], job.held_milli)
            return
        for gpu in gpus:
            del node.owner[gpu]
        if node.schedulable:
            self.capacity.give(node.name, gpus)

    def _leave_to(self, partner: Job, job: Job) -> None:
        """The job's GPUs are those of the other job alone."""
        for member in job.members:
            node = self.nodes[member.node]
            for gpu in member.gpus:
                node.owner[gpu] = partner.id
                del node.guests[gpu]
        job.beside = partner.beside = None
        if self.policy.packs and partner.state in _RUNS:
            self.hosts.note(partner, self)

    # --- snapshots ---

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object; what follows from it is left out."""
        assert not self.dirty_jobs, "a snapshot stands between two entries"
        return {
            "core_version": CORE_VERSION,
            "pool": self.pool,
            "config": self.config.to_json(),
            "seq": self.seq,
            "at": self.at,
            "jobs": [job_to_json(j) for j in self.jobs.values()],
            "nodes": [node_to_json(n) for n in self.nodes.values()],
            "ended": dict(self.ended),
            "early": {k: [input_to_json(i) for i in v] for k, v in self.early.items()},
            "cancels": dict(self.cancels),
            "round_at": self.round_at,
            "reservations": [one.to_json() for one in self.reservations.values()],
            **({"attained": self.attained.to_json()} if self.attained.finished else {}),
            "trust": {basis: known.to_json() for basis, known in self.trust.items()},
            "demand": [[*request, jobs] for request, jobs in self.demand.items()],
            "arrivals": self.arrivals,
            "joins": self.joins,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], policy_of: Any) -> PoolState:
        """Return the state of a JSON object; `policy_of` maps a policy's name to the policy."""
        config = PoolConfig.from_json(value["config"])
        state = cls(value["pool"], config, policy_of(config.policy))
        state.seq, state.at = value["seq"], value["at"]
        state.ended, state.cancels = dict(value["ended"]), dict(value["cancels"])
        state.early = {k: [input_from_json(i) for i in v] for k, v in value["early"].items()}
        state.early_count = sum(len(v) for v in state.early.values())
        state.round_at = value.get("round_at")
        state.reservations = {one[0]: Reservation.from_json(one) for one in value.get("reservations", [])}
        if "attained" in value:
            state.attained = Attained.from_json(value["attained"])
        state.trust = {basis: Trust.from_json(known) for basis, known in value.get("trust", {}).items()}
        state.demand = {(gpus, milli, kind): jobs for gpus, milli, kind, jobs in value.get("demand", [])}
        state.arrivals, state.joins = value["arrivals"], value["joins"]
        state.nodes = {n["name"]: node_from_json(n) for n in value["nodes"]}
        state.jobs = {j["id"]: job_from_json(j) for j in value["jobs"]}
        for node in state.nodes.values():
            node.owner.clear()
            node.guests.clear()
            node.shares.clear()
            node.ports.clear()
            state.topology.set_node(node.name, node.rack, node.spine)
        for job in state.jobs.values():
            if job.state in HOLDS_GPUS:
                state.lease(job)
        for node in state.nodes.values():
            state.refresh_capacity(node)
        for job in state.jobs.values():
            if job.state is JobState.QUEUED and job.queue_key is not None:
                job.queue_key = None
                state.enqueue(job)
            state.set_timer(job)
            if job.suspects:
                state.suspecting[job.id] = None
            if job.state in _RUNS:
                state.watch(job)
        state.rank_anew()
        return state
