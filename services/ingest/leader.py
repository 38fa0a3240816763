"""Asking a pool's leader what only it knows now: why a job waits, which nodes are reserved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import httpx
import structlog

from schedmate.infra.store.port import Json, Store
from schedmate.infra.telemetry.tracing import current_traceparent

POOL_LEASES: Final = "pool_leases"
_ADDRESS: Final = re.compile(r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]{1,253}):\d{1,5}$")
_ANSWER_BYTES_MAX: Final = 64 * 1024
_LIST_BYTES_MAX: Final = 16 * 1024 * 1024

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Leaders:
    """Knows where a pool's leader listens, and asks it within a second."""

    def __init__(self, store: Store, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._store = store
        self._http = httpx.AsyncClient(timeout=timeout_s, transport=transport, trust_env=False)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def lease(self, pool: str) -> Mapping[str, Json] | None:
        """Return the pool's lease document, or None."""
        document = await self._store.get(POOL_LEASES, pool)
        return document.body if document is not None else None

    async def why(self, pool: str, job_id: str) -> Mapping[str, Any] | None:
        """Return the leader's answer, or None when there is no leader, or it does not answer in time or sense."""
        told = await self._ask(pool, f"why/{job_id}", _ANSWER_BYTES_MAX)
        return told if isinstance(told, dict) and "reason" in told else None

    async def reservations(self, pool: str) -> list[Any] | None:
        """Return the pool's reservations as the leader knows them, or None when it does not answer in time or sense."""
        told = await self._ask(pool, f"reservations/{pool}", _LIST_BYTES_MAX)
        return told if isinstance(told, list) else None

    async def _ask(self, pool: str, path: str, bytes_max: int) -> Any:
        lease = await self.lease(pool)
        address = str((lease or {}).get("address") or "")
        if not _ADDRESS.match(address):
            return None
        try:
            answer = await self._http.get(f"http://{address}/v1/{path}", headers={"traceparent": current_traceparent()})
            if answer.status_code != httpx.codes.OK or len(answer.content) > bytes_max:
                return None
            return answer.json()
        except (httpx.HTTPError, ValueError):
            return None  # the caller has another answer, or says that there is none

    def note_senseless(self, pool: str) -> None:
        """Put down that a leader's answer made no sense; what was recorded is told instead."""
        log.warning("a leader's answer made no sense", action="ingest.why", pool=pool)
