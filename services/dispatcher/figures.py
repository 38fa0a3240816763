"""The dispatcher's metrics, from entries and from the pool's state."""

from __future__ import annotations

from collections import Counter

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas.events import NodeReported
from schedmate.schemas.states import TERMINAL, JobEvent, JobState
from schedmate.services.dispatcher.core.decisions import Moved
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.log import Entry


class Figures:
    """Metrics of one pool."""

    def __init__(self, metrics: Metrics, pool: str) -> None:
        self._metrics = metrics
        self._pool = pool
        self._used: dict[str, dict[int, float]] = {}  # by node: of each GPU that is measured, its use as last reported

    def decided(self, entry: Entry, state: PoolState, seconds: float) -> None:
        """A batch was decided."""
        self._metrics.observe(names.DECIDE_S, seconds, pool=self._pool)
        self._metrics.observe(names.BATCH_INPUTS, len(entry.inputs), pool=self._pool)
        kinds = Counter(d.event.lower() if isinstance(d, Moved) else d.KIND for d in entry.decisions)
        for kind, count in kinds.items():
            self._metrics.count(names.DECISIONS_TOTAL, count, pool=self._pool, kind=kind)
        for decision in entry.decisions:
            if isinstance(decision, Moved):
                self._job(decision, state)
        if state.repeats:
            self._metrics.count(names.REPEATED_INPUTS, state.repeats, pool=self._pool)
        if entry.refused:
            self._metrics.count(names.REFUSED_INPUTS, len(entry.refused), pool=self._pool)

    def _job(self, decision: Moved, state: PoolState) -> None:
        job = state.jobs.get(decision.job) or state.ended_now.get(decision.job)
        if job is None:
            return
        if decision.event == JobEvent.START:
            self._metrics.observe(names.JOB_WAIT_S, max(0.0, state.at - job.submitted_at), pool=self._pool)
        elif job.id in state.ended_now and job.started_at is not None:
            ran_s = max(0.0, state.at - job.started_at)
            self._metrics.observe(names.JOB_RUN_S, ran_s, pool=self._pool, state=state.ended[job.id])

    def appended(self, entry: Entry, seconds: float) -> None:
        """An entry is durable."""
        self._metrics.observe(names.APPEND_S, seconds, pool=self._pool)
        self._metrics.set(names.LOG_SEQ, entry.seq, pool=self._pool)
        self._metrics.set(names.TERM_NUMBER, entry.term, pool=self._pool)

    def poisoned(self, count: int) -> None:
        """Records were no events of ours."""
        self._metrics.count(names.REFUSED_INPUTS, count, pool=self._pool)

    def leading(self, value: bool) -> None:
        """This instance leads the pool, or does not."""
        self._metrics.set(names.LEADING, float(value), pool=self._pool)

    def reported(self, report: NodeReported) -> None:
        """A node said how much its GPUs are used."""
        used = {gpu.index: gpu.utilisation for gpu in report.gpus if gpu.utilisation is not None and gpu.healthy}
        if used:
            self._used[report.node] = used
        else:
            self._used.pop(report.node, None)

    def utilisation(self, state: PoolState) -> float | None:
        """Return the mean busy share of the leased GPUs that are measured, None without any."""
        used = [
            share
            for name, of_node in self._used.items()
            if (node := state.nodes.get(name)) is not None and node.alive
            for gpu, share in of_node.items()
            if gpu in node.owner or gpu in node.shares
        ]
        return sum(used) / len(used) if used else None

    def pool(self, state: PoolState) -> None:
        """Queue depth, jobs by state, GPUs and nodes."""
        self._metrics.set(names.QUEUE_DEPTH, len(state.queue), pool=self._pool)
        states = Counter(job.state for job in state.jobs.values())
        for known in (s for s in JobState if s not in TERMINAL):
            self._metrics.set(names.JOBS, states.get(known, 0), pool=self._pool, state=known.value)
        gpus: Counter[str] = Counter()
        nodes: Counter[str] = Counter()
        for node in state.nodes.values():
            leased = len(node.owner) + len(node.shares)
            gpus["leased"] += leased
            free = sum(1 for g in node.gpus if g not in node.owner and g not in node.shares)
            gpus["free" if node.schedulable else "cordoned"] += free
            gpus["unhealthy"] += max(0, node.gpus_reported - len(node.gpus))
            if node.cordoned is not None:
                nodes["cordoned"] += 1
            elif node.draining:
                nodes["drained"] += 1
            else:
                nodes["up" if node.alive and not node.unreachable else "silent"] += 1
        for kind in ("free", "leased", "cordoned", "unhealthy"):
            self._metrics.set(names.GPUS, gpus[kind], pool=self._pool, state=kind)
        for kind in ("up", "silent", "drained", "cordoned"):
            self._metrics.set(names.NODES, nodes[kind], pool=self._pool, state=kind)
