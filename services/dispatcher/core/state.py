"""The state of a pool: jobs, nodes and what follows from them. Changed by `fold` and by applied decisions only."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final

from schedmate.schemas.states import HOLDS_GPUS, JobState
from schedmate.services.dispatcher.core import reservations
from schedmate.services.dispatcher.core.ageing import Ageing
from schedmate.services.dispatcher.core.attained import Attained
from schedmate.services.dispatcher.core.beliefs import watch
from schedmate.services.dispatcher.core.capacity import Capacity
from schedmate.services.dispatcher.core.config import WITHHELD, PoolConfig
from schedmate.services.dispatcher.core.inputs import Input
from schedmate.services.dispatcher.core.inputs import from_json as input_from_json
from schedmate.services.dispatcher.core.inputs import to_json as input_to_json
from schedmate.services.dispatcher.core.job import (
    AVOID_MAX,
    ENDED,
    OPERATOR,
    RUNS,
    STARTED,
    TOLD,
    Job,
    Member,
    job_from_json,
    job_to_json,
    pinned_key,
)
from schedmate.services.dispatcher.core.node import Node, node_from_json, node_to_json
from schedmate.services.dispatcher.core.ownership import lease
from schedmate.services.dispatcher.core.placement import PLACERS, Placer
from schedmate.services.dispatcher.core.profiling import Profiler, sets_apart
from schedmate.services.dispatcher.core.queue import Key, Kind, WaitingQueue
from schedmate.services.dispatcher.core.ranking import hold, rank, rank_anew
from schedmate.services.dispatcher.core.reservations import Reservation
from schedmate.services.dispatcher.core.ripening import Ripening
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.sharing import Hosts
from schedmate.services.dispatcher.core.timers import next_timer, set_timer
from schedmate.services.dispatcher.core.topology import Topology
from schedmate.services.dispatcher.core.trust import Trust

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.policy import Policy

__all__ = ("AVOID_MAX", "CORE_VERSION", "ENDED", "STARTED", "TOLD", "Job", "Member", "Node", "PoolState")

CORE_VERSION: Final = "3"
Request = tuple[int, int, str | None]
"""GPUs per node, thousandths of each, GPU type."""


class PoolState:
    """Everything that the decisions of a pool follow from.

    `jobs`, `nodes`, `ended`, `early`, counters and `config` are the state; `capacity`, `queue`, `timers` and `suspecting` follow from
    them and are rebuilt on loading; `dirty_*` is empty between two entries.
    """

    def __init__(self, pool: str, config: PoolConfig, policy: Policy) -> None:
        self.pool = pool
        self.configure(config, policy)
        self.seq, self.at = -1, 0.0
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
        self.past_reservations: dict[str, None] = {}  # the newest that are over
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
        self.crossings: list[
            tuple[float, str, int]
        ] = []  # when a running job comes to another level, or is ranked anew
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
        self.by_quantiles = config.advice_rule == "quantiles" and config.advice != "raw" and not policy.backfills
        """Are jobs ordered by the quantiles of what is said, where it has them?"""
        self.held_by: tuple[Key, str] | None = None
        """Who held the others back in the last pass, and waits for nothing but GPUs."""
        self.packs_now = policy.packs and config.gpu_sharing
        """May two jobs be on the same GPUs?"""
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

    def next_timer(self, *, idle_rounds: bool = True) -> float | None:
        """Return when something is due that no event will tell: a job's deadline, or a round (also one that will decide nothing)."""
        return next_timer(self, idle_rounds=idle_rounds)

    def trust_in(self, basis: str | None) -> float:
        """Return the trust in a source of advice, 0 where nothing is known of it yet, or the pool does not act on advice.

        An operator's word is no advice: it is taken whole.
        """
        if basis == OPERATOR:
            return 1.0
        known = self.trust.get(basis or "") if self.acts_on_advice else None
        return known.weight if known is not None else 0.0

    def heeds(self) -> bool:
        """Is any source believed?"""
        return self.acts_on_advice and any(known.weight > 0.0 for known in self.trust.values())

    def place_anew(self, job: Job) -> None:
        """What is known of the job, or how far it is believed, has changed: it stands where it belongs now."""
        if job.queue_key is not None:
            self.dequeue(job)
            self.enqueue(job)
        elif job.id in self.held_keys:
            hold(self, job)
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

    @property
    def level_gpu_s(self) -> float | None:
        """The attained GPU time above which a job is of the second level, where the policy has levels."""
        own = self.policy.level_gpu_s
        return own if own is None else self.config.level_gpu_s or own

    # --- the queue ---

    def kind_of(self, job: Job) -> Kind:
        """Return what decides whether the job fits."""
        limited, resumable = None, None
        if self.limits_tenants:
            quotas = bool(self.config.tenant_quota)
            limited = job.tenant if quotas or self.config.tenant_limit(job.tenant) is not None else None
            resumable = job.resumable if quotas else None
        held = reservations.kind_of(self, job) if self.reservations else None
        packed = sets_apart(self, job) if self.policy.packs else None
        apart = (self.milli_of(job), job.inference, job.within, resumable, held, packed)
        return (job.gpus, job.nodes, job.gpu_type, job.gpu_memory_mib, limited, job.avoid, apart)

    def milli_of(self, job: Job) -> int:
        """Return the thousandths of its GPU that a waiting job gets."""
        return job.gpu_milli if self.config.gpu_sharing and not job.alone else WHOLE_MILLI

    def enqueue(self, job: Job) -> None:
        """Let the job compete for GPUs."""
        assert job.queue_key is None, "the job waits already"
        job.queue_kind = kind = self.kind_of(job)
        key = self.policy.key(job, self)
        if self.config.ageing_s:
            key = self.ageing.key(job, key, self)
        if job.pin:
            key = pinned_key(job, key)
        if self.bounds_wait:
            if self.overdue(job):
                key = (key[0], -inf, job.submitted_at, job.order)
            else:
                heappush(self.oldest, (job.since - job.waited_s, job.order, job.id))
        job.queue_key = key
        self.queue.add(kind, key, job.id)
        if self.policy.rounds_s is not None:
            rank(self, job, key)

    def dequeue(self, job: Job) -> None:
        """The job competes no more."""
        if job.queue_key is not None and job.queue_kind is not None:
            self.queue.remove(job.queue_kind, job.queue_key, job.id)
        job.queue_key = job.queue_kind = None

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
            **({"past_reservations": list(self.past_reservations)} if self.past_reservations else {}),
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
        state.past_reservations = dict.fromkeys(value.get("past_reservations", []))
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
                lease(state, job)
        for node in state.nodes.values():
            state.refresh_capacity(node)
        for job in state.jobs.values():
            if job.state is JobState.QUEUED and job.queue_key is not None:
                job.queue_key = None
                state.enqueue(job)
            set_timer(state, job)
            if job.suspects:
                state.suspecting[job.id] = None
            if job.state in RUNS:
                watch(state, job)
        rank_anew(state)
        return state
