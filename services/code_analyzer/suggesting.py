"""The agent beside the service's stream: takes analyses with open fields, asks, and publishes what holds. No job waits for it.

Asking is slow, so who is asked about is paced (infra/pacing.py): by cluster, which is a user's jobs of one plain name; how uncertain is how many
fields are open, and what was learned is the share of them that the model filled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from schedmate.infra.clock import Clock
from schedmate.infra.pacing import Cluster, Pacing
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas import ids
from schedmate.schemas.events import Event, JobAnalyzed, WorkloadField
from schedmate.schemas.job import JobSpec
from schedmate.schemas.wire import Envelope
from schedmate.services.code_analyzer.agent import Agent
from schedmate.services.code_analyzer.suggestions import merged, open_fields

PENDING_MAX: Final = 64
_NUMBER: Final = re.compile(r"[\W\d_]+$")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Keep = Callable[["Pending", Mapping[str, WorkloadField]], Awaitable[None]]
Publish = Callable[[Envelope[Event]], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """An analysis whose open fields a model may be asked for, with the (redacted) texts it may read."""

    envelope: Envelope[Event]
    texts: Mapping[str, str]
    lineage: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    """The job's line of resubmissions, and the content of its files: what a model says holds as long as the file that it quotes."""
    cluster: Cluster = ("",)


def cluster_of(spec: JobSpec) -> Cluster:
    """Return the cluster of a job: its tenant and user, and its name without what numbers it."""
    name = spec.name.lower()
    return (spec.tenant, spec.user or "", _NUMBER.sub("", name) or name)


class Suggester:
    """Asks about one analysis after another, the most worthwhile first; what does not fit into its bounds is left out."""

    def __init__(
        self, agent: Agent, keep: Keep, publish: Publish, metrics: Metrics, pacing: Pacing, clock: Clock
    ) -> None:
        self._agent = agent
        self._keep = keep
        self._publish = publish
        self._metrics = metrics
        self._pacing = pacing
        self._clock = clock
        self._pending: list[Pending] = []
        self._came = asyncio.Event()

    async def wanted(self, fields: Mapping[str, WorkloadField]) -> bool:
        """Tell whether asking about an analysis makes sense now."""
        return bool(open_fields(fields)) and await self._agent.available()

    def offer(self, pending: Pending) -> None:
        """Take an analysis; the least worthwhile gives way when there are too many, the oldest of equals."""
        self._pending.append(pending)
        if len(self._pending) > PENDING_MAX:
            self._pending.remove(min(self._pending, key=self._rank))
        self._came.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop` is set."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                if not self._pending:
                    self._came.clear()
                    coming = asyncio.ensure_future(self._came.wait())
                    await asyncio.wait({stopping, coming}, return_when=asyncio.FIRST_COMPLETED)
                    coming.cancel()
                    continue
                first = self._next()
                if first is None:
                    continue
                asking = asyncio.ensure_future(self._one(first))
                await asyncio.wait({stopping, asking}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
        finally:
            stopping.cancel()

    def _next(self) -> Pending | None:
        """Take the most worthwhile of those that wait; None where the budget is not to be spent on it."""
        first = max(self._pending, key=self._rank)
        self._pending.remove(first)
        if self._pacing.ask(first.cluster, _open(first), self._clock.now()):
            return first
        self._metrics.count(names.ANALYSES, outcome="not_asked")
        return None

    def _rank(self, pending: Pending) -> tuple[bool, float]:
        return self._pacing.rank(pending.cluster, _open(pending), self._clock.now())

    async def _one(self, pending: Pending) -> None:
        event = pending.envelope.event
        assert isinstance(event, JobAnalyzed)
        try:
            outcome = await self._agent.ask(pending.texts, open_fields(event.fields))
            self._metrics.count(names.ANALYSIS_MODEL_CALLS, outcome.calls)
            self._metrics.count(names.ANALYSIS_MODEL_TOKENS, outcome.tokens)
            if outcome.answered:
                told = len(outcome.suggested) / max(_open(pending), 1.0)
                self._pacing.learned(pending.cluster, told, self._clock.now())
            if not outcome.suggested:
                return
            fields = merged(event.fields, outcome.suggested)
            await self._keep(pending, fields)
            said = event.model_copy(update={"fields": fields})
            identity = ids.derived("analysis", event.job_id, event.content_hash, "suggested")
            await self._publish(replace(pending.envelope, id=identity, event=said))
            self._metrics.count(names.ANALYSES, outcome="suggested")
        except Exception as error:  # noqa: BLE001 - advice that fails is none: it must not end what goes on beside it
            log.warning(
                "a model's suggestions failed", action="analysis.suggestions_failed", error=type(error).__name__
            )


def _open(pending: Pending) -> float:
    """Return how many fields are open."""
    event = pending.envelope.event
    assert isinstance(event, JobAnalyzed)
    return float(len(open_fields(event.fields)))
