"""A recorded pool log: decided again through the core, measured with the figures of a simulation, and turned into a trace.

The entries are those of a live pool (`schedmate pool export`) or of a simulation (`schedmate simulate --log`): one JSON object a line,
as a pool's log has them. Nothing here asks a policy but `replayed`: what is measured is what was recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from schedmate.schemas.states import HOLDS_GPUS, TERMINAL, JobEvent, JobState, transition
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.decisions import Decision, Moved, Placed
from schedmate.services.dispatcher.core.decisions import from_json as decision_from_json
from schedmate.services.dispatcher.core.decisions import to_json as decision_to_json
from schedmate.services.dispatcher.core.inputs import (
    ConfigChanged,
    DiagnosisArrived,
    EstimateArrived,
    Input,
    JobArrived,
    MemberExited,
    MemberRefused,
    NodeCommanded,
    NodeReported,
    NodeSilent,
)
from schedmate.services.dispatcher.core.inputs import from_json as input_from_json
from schedmate.services.dispatcher.core.inputs import to_json as input_to_json
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.state import Node, PoolState
from schedmate.services.dispatcher.core.step import recover, step
from schedmate.simulator.cluster import Cluster, NodeSpec
from schedmate.simulator.engine import Outcome
from schedmate.simulator.integrals import Integrals
from schedmate.simulator.measures import measured
from schedmate.simulator.trace import Trace, TraceError, TraceJob

_INF: Final = float("inf")
_OF_NODES: Final = (
    NodeReported,
    NodeSilent,
    NodeCommanded,
    DiagnosisArrived,
    ConfigChanged,
    MemberExited,
    MemberRefused,
)
"""Inputs after which a node may stand otherwise: a bad end, and who says why, may cordon it."""


KIND: Final = "pool-log"
_STEPS_PER_S: Final = 2**21


class Entry(Protocol):
    """One entry of a pool's log, as far as it is looked at here."""

    @property
    def pool(self) -> str:
        """The pool's name."""

    @property
    def seq(self) -> int:
        """Its place in the pool's log."""

    @property
    def at(self) -> float:
        """The time that the core was told."""

    @property
    def inputs(self) -> Sequence[Input]:
        """What the core was told."""

    @property
    def refused(self) -> Collection[int]:
        """The places of inputs that were refused."""

    @property
    def decisions(self) -> Sequence[Decision]:
        """What it decided."""

    @property
    def trust(self) -> Mapping[str, float]:
        """The sources of advice whose weight changed, and what it is from then on."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """An entry as a line of a file. `config` stands in the first one of a pool whose settings were not told by an input."""

    pool: str
    seq: int
    at: float
    inputs: Sequence[Input]
    refused: Collection[int]
    decisions: Sequence[Decision]
    config: Mapping[str, Any] | None = None
    trust: Mapping[str, float] = field(default_factory=dict)


def line_of(entry: Entry, config: PoolConfig | None = None) -> str:
    """Return an entry as one line of a log file."""
    value = {
        "pool": entry.pool,
        "seq": entry.seq,
        "at": entry.at,
        "inputs": [input_to_json(i) for i in entry.inputs],
        "refused": sorted(entry.refused),
        "decisions": [decision_to_json(d) for d in entry.decisions],
    }
    if entry.trust:
        value["trust"] = dict(entry.trust)
    if config is not None:
        value["config"] = config.to_json()
    return json.dumps(value, separators=(",", ":")) + "\n"


def read_log(path: Path) -> Iterator[LogLine]:
    """Yield the entries of a log file.

    Raises:
        TraceError: a line is no entry.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _line(path.name, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error


def _line(name: str, number: int, text: str) -> LogLine:
    try:
        value = json.loads(text)
        return LogLine(
            str(value["pool"]), int(value["seq"]), float(value["at"]), tuple(input_from_json(i) for i in value["inputs"]),
            frozenset(int(n) for n in value["refused"]), tuple(decision_from_json(d) for d in value["decisions"]), value.get("config"),
            dict(value.get("trust", {})),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{name}, line {number}: no entry of a pool's log ({error!r})") from error


def _fresh(entry: Entry) -> PoolState:
    given = getattr(entry, "config", None)
    config = (
        PoolConfig.from_json(dict(given)) if entry.seq == 0 and isinstance(entry, LogLine) and given else PoolConfig()
    )
    return PoolState(entry.pool, config, policy_named(config.policy))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the core decided otherwise than was recorded; decisions as they are compared, None: none."""

    pool: str
    seq: int
    index: int
    recorded: str | None
    replayed: str | None


def replayed(entries: Iterable[Entry]) -> Difference | None:
    """Decide every entry again from its recorded inputs; return the first difference, byte for byte."""
    states: dict[str, PoolState] = {}
    for entry in entries:
        state = states.get(entry.pool)
        if state is None:
            state = states[entry.pool] = _fresh(entry)
        done = step(state, [value for n, value in enumerate(entry.inputs) if n not in entry.refused], entry.at)
        mine, theirs = [_text(d) for d in entry.decisions], [_text(d) for d in done.decisions]
        if entry.trust:  # an older core recorded no weights
            mine, theirs = [*mine, json.dumps(dict(entry.trust))], [*theirs, json.dumps(done.trust)]
        for index in range(max(len(mine), len(theirs))):
            here, there = (texts[index] if index < len(texts) else None for texts in (mine, theirs))
            if here != there:
                return Difference(entry.pool, entry.seq, index, here, there)
    return None


def _text(decision: Decision) -> str:
    return json.dumps(decision_to_json(decision), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(slots=True)
class _Known:
    """One job of the log."""

    job: TraceJob
    arrived_at: float
    nodes: int  # members that it asked for, 0 where the placer chooses
    resumable: bool
    asks: list[Input]
    state: JobState = JobState.SUBMITTED
    waits_since: float = 0.0
    held_since: float = 0.0
    start_s: float | None = None
    end_s: float | None = None
    wait_s: float = 0.0
    held_s: float = 0.0
    held_exact_s: float = 0.0
    placed: Placed | None = None
    last: Placed | None = None
    leaves_used: int = 0
    measured: set[tuple[int, int]] = field(default_factory=set)  # (attempt, member) whose GPU time is counted


@dataclass(slots=True)
class _Cluster:
    """The nodes of one pool as the log tells them: GPUs of each, and which of them count."""

    state: PoolState
    gpus: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    specs: dict[str, NodeSpec] = field(default_factory=dict)
    odd: bool = False  # some node takes no jobs

    def counted(self) -> tuple[int, int]:
        """Return the schedulable GPUs and nodes; where a node takes no jobs, what is held on it counts."""
        gpus = nodes = 0
        self.odd = not all(node.schedulable for node in self.state.nodes.values())
        for name, node in self.state.nodes.items():
            held = -(-self.used.get(name, 0) // WHOLE_MILLI)
            gpus += len(node.gpus) if node.schedulable else held
            nodes += node.schedulable or held > 0
        return gpus, nodes


class Recording:
    """What became of the jobs of a log.

    Read `add` by `add`; the time averages are over [first arrival, last arrival], so what happens after an arrival counts only when
    the next one comes.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Known] = {}
        self._pools: dict[str, _Cluster] = {}
        self._integrals: Integrals | None = None
        self._pending: list[tuple[float, Callable[[Integrals], None]]] = []
        self._counted = (0, 0)
        self._preemptions = 0
        self._lost_gpu_s = 0.0
        self._beside: dict[str, str] = {}  # two jobs on the same GPUs, both ways
        self._gpu_held_s = self._gpu_busy_s = 0.0  # as the workers measured them

    def add(self, entry: Entry) -> None:
        """Take the next entry of a pool; the entries of several pools come in the order of their times."""
        cluster = self._pools.get(entry.pool)
        if cluster is None:
            cluster = self._pools[entry.pool] = _Cluster(_fresh(entry))
        arrived = self._arrivals(entry)
        self._measurements(entry)
        recover(cluster.state, entry.inputs, set(entry.refused), entry.decisions, entry.at, entry.trust)
        if arrived:
            self._catch_up(entry.at)
        for decision in entry.decisions:
            if type(decision) is Moved:
                self._move(cluster, decision, entry.at)
            elif type(decision) is Placed:
                self._place(cluster, decision, entry.at)
        if cluster.odd or any(type(value) in _OF_NODES for value in entry.inputs):
            self._count(cluster, entry.at)

    def _arrivals(self, entry: Entry) -> bool:
        arrived = False
        for n, value in enumerate(entry.inputs):
            if n in entry.refused:
                continue
            if type(value) is JobArrived and value.job not in self._jobs:
                arrived = True
                job = TraceJob(
                    value.job, min(value.submitted_at, entry.at), value.gpus * (value.nodes or 1), 0.0, pool=entry.pool, tenant=value.tenant,
                    gpu_milli=value.gpu_milli, gpu_types=tuple((value.gpu_type or "").split("|")) if value.gpu_type else (),
                    inference=value.inference,
                )  # fmt: skip
                self._jobs[job.id] = _Known(
                    job, entry.at, value.nodes, value.resumable, [value], waits_since=job.submit_s
                )
            elif (
                type(value) is EstimateArrived
                and value.job in self._jobs
                and self._jobs[value.job].arrived_at == entry.at
            ):
                self._jobs[value.job].asks.append(value)
        return arrived

    def _measurements(self, entry: Entry) -> None:
        """Count what the workers measured of runs that have ended; what is told again is counted once."""
        for n, value in enumerate(entry.inputs):
            if type(value) is not MemberExited or value.gpu_held_s is None or n in entry.refused:
                continue
            known, which = self._jobs.get(value.job), (value.attempt, value.member)
            if known is not None and which not in known.measured:
                known.measured.add(which)
                self._gpu_held_s += value.gpu_held_s
                self._gpu_busy_s += value.gpu_busy_s

    def _later(self, at: float, change: Callable[[Integrals], None]) -> None:
        self._pending.append((at, change))

    def _catch_up(self, at: float) -> None:
        """A job has arrived: what happened up to now lies within the window."""
        if self._integrals is None:
            self._integrals = Integrals(0, 0, at, _INF, WHOLE_MILLI)
        self._apply(self._integrals)
        self._integrals.until(at)

    def _apply(self, integrals: Integrals) -> None:
        for at, change in self._pending:
            integrals.until(at)
            change(integrals)
        self._pending.clear()

    def _count(self, cluster: _Cluster, at: float) -> None:
        """Take over what the entry says of the nodes."""
        for node in cluster.state.nodes.values():
            self._set_gpus(cluster, node, at)
        counted = [pool.counted() for pool in self._pools.values()]
        gpus, nodes = sum(g for g, _ in counted), sum(n for _, n in counted)
        if (gpus, nodes) != self._counted:
            self._counted = (gpus, nodes)
            self._later(at, lambda integrals: integrals.resize(gpus, nodes))

    def _set_gpus(self, cluster: _Cluster, node: Node, at: float) -> None:
        before, now = cluster.gpus.get(node.name, 0), len(node.gpus)
        if now:
            (kind, memory), _ = Counter(node.gpus.values()).most_common(1)[0]
            cluster.specs[node.name] = NodeSpec(node.name, now, kind, node.rack, node.spine, memory)
        if before == now:
            return
        cluster.gpus[node.name] = now
        used = cluster.used.setdefault(node.name, 0)
        if used:
            self._later(at, lambda integrals: integrals.change(used, 0, before * WHOLE_MILLI))
            self._later(at, lambda integrals: integrals.change(0, used, now * WHOLE_MILLI))

    def _place(self, cluster: _Cluster, placed: Placed, at: float) -> None:
        known = self._jobs[placed.job]
        known.state = transition(known.state, JobEvent.PLACE)
        known.start_s = at if known.start_s is None else known.start_s
        known.wait_s += at - known.waits_since
        known.held_since, known.placed, known.last = at, placed, placed
        topology = cluster.state.topology
        if topology.given:
            known.leaves_used = len({topology.leaf(seat.node) for seat in placed.seats})
        if placed.beside is None:
            self._use(cluster, placed, 1, at)
        else:  # its GPUs are held already
            self._beside[placed.job], self._beside[placed.beside] = placed.beside, placed.job

    def _use(self, cluster: _Cluster, placed: Placed, sign: int, at: float) -> None:
        for seat in placed.seats:
            all_milli = cluster.gpus.get(seat.node, 0) * WHOLE_MILLI
            before = cluster.used.get(seat.node, 0)
            cluster.used[seat.node] = after = before + sign * len(seat.gpus) * placed.gpu_milli
            self._later(at, lambda integrals, b=before, a=after, m=all_milli: integrals.change(b, a, m))  # type: ignore[misc]

    def _move(self, cluster: _Cluster, moved: Moved, at: float) -> None:
        known = self._jobs[moved.job]
        before, known.state = known.state, transition(known.state, JobEvent(moved.event))
        if before in HOLDS_GPUS and known.state not in HOLDS_GPUS and known.placed is not None:
            other = self._beside.pop(moved.job, None)
            if other is None:
                self._use(cluster, known.placed, -1, at)
            else:  # the GPUs are the other one's alone
                del self._beside[other]
            known.held_s += at - known.held_since
            known.held_exact_s += _exact(at) - _exact(known.held_since)
            known.waits_since, known.placed = at, None
        if moved.event == JobEvent.REQUEUE:
            self._preemptions += moved.spends == "preempted"
            if not known.resumable and moved.resume_from is None:
                self._lost_gpu_s += known.held_s * known.job.gpus
                known.held_s = 0.0
        if known.state in TERMINAL:
            known.end_s = at

    @property
    def cluster(self) -> Cluster:
        """The nodes that were ever seen, in the order in which they joined."""
        pools = {
            name: tuple(pool.specs[node] for node in pool.state.nodes if node in pool.specs)
            for name, pool in self._pools.items()
        }
        return Cluster(pools, one_pool=len(pools) == 1)

    @property
    def jobs(self) -> list[TraceJob]:
        """The jobs in the order of their arrival; the run time of one is the time that it held its GPUs, lost attempts apart."""
        return [replace(known.job, duration_s=known.held_s) for known in self._jobs.values()]

    def trace(self, name: str) -> Trace:
        """Return the jobs that ended as a trace: each arrives when the pool was told of it, and runs for as long as it held its GPUs.

        Times are Unix seconds in steps of 2**-21 s: in these sums and differences are exact, so that what was one instant stays one.
        """
        ended = [known for known in self._jobs.values() if known.end_s is not None and known.last is not None]
        if not ended:
            raise TraceError(f"no job of {name} has ended")
        jobs = tuple(
            replace(
                known.job, submit_s=_exact(known.arrived_at), duration_s=known.held_exact_s, asks=tuple(known.asks)
            )
            for known in ended
        )  # fmt: skip
        return Trace(name, KIND, jobs, skipped=len(self._jobs) - len(ended))

    def measured(self) -> dict[str, Any]:
        """Return the figures, as those of a simulation; and `ended`, how many jobs ended how."""
        if not self._jobs:
            raise TraceError("the log has no job")
        cluster = self.cluster
        figures = measured(self.jobs, cluster, self._outcome(cluster))
        ended = Counter(known.state.value for known in self._jobs.values() if known.state in TERMINAL)
        return figures | {"ended": dict(sorted(ended.items())), "nodes": cluster.nodes, "gpus": cluster.gpus}

    def _outcome(self, cluster: Cluster) -> Outcome:
        known = list(self._jobs.values())
        largest = {name: max((n.gpus for n in nodes), default=1) for name, nodes in cluster.pools.items()}
        leaf_nodes = {name: _leaf_nodes(nodes) for name, nodes in cluster.pools.items()}
        least = [(k.nodes or -(-k.job.gpus // largest[k.job.pool])) if k.last is not None else 0 for k in known]
        leaves = [leaf_nodes[k.job.pool] if k.leaves_used else 0 for k in known]
        assert self._integrals is not None, "a job has arrived"
        self._integrals.end_s = max(k.arrived_at for k in known)
        self._apply(self._integrals)  # beyond the window: only the peak sees it
        return Outcome(
            [k.start_s for k in known],
            [k.end_s if k.start_s is not None else None for k in known],  # one that never started has no completion
            [k.wait_s for k in known],
            [len(k.last.seats) if k.last is not None else 0 for k in known],
            least,
            [k.leaves_used for k in known],
            [-(-n // size) if size else 0 for n, size in zip(least, leaves, strict=True)],
            self._integrals,
            [k.last.seats if k.last is not None else () for k in known],
            preemptions=self._preemptions,
            lost_gpu_s=self._lost_gpu_s,
            utilisation=self._gpu_busy_s / self._gpu_held_s if self._gpu_held_s else None,
        )


def _exact(at: float) -> float:
    return round(at * _STEPS_PER_S) / _STEPS_PER_S


def _leaf_nodes(nodes: Sequence[NodeSpec]) -> int:
    groups = Counter((n.spine, n.rack, n.name if n.rack is None and n.spine is None else "") for n in nodes)
    return max(groups.values(), default=1)


def recording_of(entries: Iterable[Entry]) -> Recording:
    """Return what became of the jobs of a log."""
    recording = Recording()
    for entry in entries:
        recording.add(entry)
    return recording
