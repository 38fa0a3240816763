"""The agent beside the service's stream: takes analyses with open fields, asks, and publishes what holds. No job waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.schemas import ids
from schedmate.schemas.events import Event, JobAnalyzed, WorkloadField
from schedmate.schemas.wire import Envelope
from schedmate.services.code_analyzer.agent import Agent
from schedmate.services.code_analyzer.suggestions import merged, open_fields

PENDING_MAX: Final = 64
POLL_S: Final = 0.2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Keep = Callable[["Pending", Mapping[str, WorkloadField]], Awaitable[None]]
Publish = Callable[[Envelope[Event]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pending:
    """An analysis whose open fields a model may be asked for, with the (redacted) texts it may read."""

    envelope: Envelope[Event]
    texts: Mapping[str, str]
    lineage: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    """The job's line of resubmissions, and the content of its files: what a model says holds as long as the file that it quotes."""


class Suggester:
    """Asks about one analysis after another; what does not fit into its bound is left out."""

    def __init__(self, agent: Agent, keep: Keep, publish: Publish, metrics: Metrics) -> None:
        self._agent = agent
        self._keep = keep
        self._publish = publish
        self._metrics = metrics
        self._pending: deque[Pending] = deque(maxlen=PENDING_MAX)
        self._came = asyncio.Event()

    async def wanted(self, fields: Mapping[str, WorkloadField]) -> bool:
        """Tell whether asking about an analysis makes sense now."""
        return bool(open_fields(fields)) and await self._agent.available()

    def offer(self, pending: Pending) -> None:
        """Take an analysis; the oldest gives way when there are too many."""
        self._pending.append(pending)
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
                asking = asyncio.ensure_future(self._one(self._pending.popleft()))
                await asyncio.wait({stopping, asking}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
        finally:
            stopping.cancel()

    async def _one(self, pending: Pending) -> None:
        event = pending.envelope.event
        assert isinstance(event, JobAnalyzed)
        try:
            outcome = await self._agent.ask(pending.texts, open_fields(event.fields))
            self._metrics.count(names.ANALYSIS_MODEL_CALLS, outcome.calls)
            self._metrics.count(names.ANALYSIS_MODEL_TOKENS, outcome.tokens)
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
