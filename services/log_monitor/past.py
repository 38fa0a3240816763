"""What past runs taught, kept in the store: a tenant's memory of its failures, and rules learned across tenants, in quarantine.

All of it is advice to the judge where the rules know no better; a store that does not answer costs the advice and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from schedmate.infra.store.port import DuplicateKeyError, Store, StoreError
from schedmate.schemas.events import RunDiagnosed
from schedmate.services.log_monitor.failures.judge import Similar
from schedmate.services.log_monitor.failures.learned import Learned
from schedmate.services.log_monitor.failures.rules import Rules
from schedmate.services.log_monitor.failures.similar import Library, Memory, load_library
from schedmate.services.log_monitor.tracks import MemberTrack

COLLECTION: Final = "past_failures"
LEARNED_ID: Final = "learned"
SURE: Final = 0.8
LINES_A_RUN_MAX: Final = 3
UPDATES_MAX: Final = 5
LEARNED_CONFIDENCE: Final = 0.7

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

M = TypeVar("M", bound=BaseModel)


class PastFailures:
    """Reads and adds to what past runs taught."""

    def __init__(self, store: Store, rules: Rules, redact: Callable[[str], str]) -> None:
        self._store = store
        self._rules = rules
        self._redact = redact

    async def similar(self, tenant: str | None) -> Similar:
        """Return how to find the cause of a line that resembles past ones: the rules' examples, learned rules, the tenant's own."""
        learned = await self._read(LEARNED_ID, Learned)
        memory = await self._read(_of_tenant(tenant), Memory) if tenant is not None else Memory()
        own = Library(memory.trusted())

        def nearest(text: str) -> tuple[str, float] | None:
            rule = learned.trusted(text)
            if rule is not None:
                return rule.category, LEARNED_CONFIDENCE
            return own.nearest(text) or load_library().nearest(text)

        return nearest

    async def failed(self, said: RunDiagnosed, tenant: str | None, members: Sequence[MemberTrack]) -> None:
        """Learn from a run whose cause is sure: the lines that spoke of errors and that no rule knew came with it."""
        if tenant is None or said.confidence < SURE or said.source != "rules":
            return
        texts = [self._redact(hit.text) for track in members for hit in track.digest.suspects[:LINES_A_RUN_MAX]][
            :LINES_A_RUN_MAX
        ]
        if not texts:
            return

        def remember(memory: Memory) -> bool:
            changed = [memory.remember(text, said.category, said.run_id) for text in texts]
            return any(changed)

        def propose(learned: Learned) -> bool:
            before = learned.model_copy(deep=True)
            for text in texts:
                learned.propose(text, said.category, run_id=said.run_id, tenant=tenant, known=self._rules)
            return learned != before

        await self._change(_of_tenant(tenant), Memory, remember)
        await self._change(LEARNED_ID, Learned, propose)

    async def ended_well(self, members: Sequence[MemberTrack]) -> None:
        """Put learned rules to the test of a run that ended well."""
        lines = [self._redact(hit.text) for track in members for hit in track.digest.suspects]

        def test(learned: Learned) -> bool:
            if not learned.rules:
                return False
            learned.ended_well(lines)
            return True

        await self._change(LEARNED_ID, Learned, test)

    async def _read(self, key: str, kind: type[M]) -> M:
        try:
            document = await self._store.get(COLLECTION, key)
            return kind.model_validate(document.body) if document is not None else kind()
        except (StoreError, ValidationError) as error:
            log.warning("nothing of the past", action="past.read", key=key, error=str(error))
            return kind()

    async def _change(self, key: str, kind: type[M], change: Callable[[M], bool]) -> None:
        """Change a document by compare-and-set: other instances add theirs."""
        try:
            for _ in range(UPDATES_MAX):
                document = await self._store.get(COLLECTION, key)
                value = kind.model_validate(document.body) if document is not None else kind()
                if not change(value):
                    return
                body = value.model_dump(mode="json")
                if document is not None:
                    if await self._store.replace(COLLECTION, key, body, version=document.version):
                        return
                    continue
                try:
                    await self._store.insert(COLLECTION, key, body)
                except DuplicateKeyError:
                    continue
                return
        except (StoreError, ValidationError) as error:
            log.warning("the past stays as it was", action="past.change", key=key, error=str(error))


def _of_tenant(tenant: str) -> str:
    return f"tenant:{tenant}"
