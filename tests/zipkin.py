"""The real tracing backend as tests ask it: Zipkin's query API, one trace as a tree of (service, span).

    zipkin = Zipkin()                                              # SCHEDMATE_TEST_ZIPKIN
    spans = await zipkin.trace(trace_id, until=lambda spans: Edge("ingest", "publish schedmate.jobs", "code-analyzer", "process schedmate.jobs") in edges(spans))
    print(zipkin.picture(spans))

Zipkin lower-cases the names of spans and services; ours are lower-case but for HTTP methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from schedmate.infra.telemetry.recorded import SpanNode, edges, roots
from tests.servers import shared
from tests.waiting import eventually

__all__ = ["Zipkin"]


class Zipkin:
    """Asks Zipkin for traces."""

    def __init__(self, address: str | None = None) -> None:
        self.address = (address or shared("SCHEDMATE_TEST_ZIPKIN")).rstrip("/")

    async def spans(self, trace_id: str) -> list[SpanNode]:
        """Return the spans of a trace that have arrived, none when it is not known yet."""
        async with httpx.AsyncClient(timeout=5) as client:
            answer = await client.get(f"{self.address}/api/v2/trace/{trace_id}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return []
        answer.raise_for_status()
        return [_node(span) for span in answer.json()]

    async def trace(
        self, trace_id: str, *, until: Callable[[Sequence[SpanNode]], object], timeout_s: float = 20.0
    ) -> list[SpanNode]:
        """Return the trace's spans as soon as they satisfy `until`; the failure shows the tree that was there."""
        seen: list[SpanNode] = []

        async def complete() -> bool:
            seen[:] = await self.spans(trace_id)
            return bool(until(seen))

        try:
            await eventually(complete, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"trace {trace_id} has in Zipkin only:\n{self.picture(seen) or 'nothing'}") from error
        return seen

    @staticmethod
    def picture(spans: Sequence[SpanNode]) -> str:
        """Return the tree in lines, children indented under their parents."""
        lines: list[str] = []

        def draw(span: SpanNode, depth: int) -> None:
            lines.append(f"{'  ' * depth}{span.service}: {span.name}")
            for child in sorted((s for s in spans if s.parent_id == span.span_id), key=lambda s: (s.service, s.name)):
                draw(child, depth + 1)

        for root in roots(spans):
            draw(root, 0)
        return "\n".join(lines)

    @staticmethod
    def services(spans: Sequence[SpanNode]) -> set[tuple[str, str]]:
        """Return the edges between services: (parent service, child service), without those inside one."""
        return {(e.parent_service, e.service) for e in edges(spans) if e.parent_service != e.service}


def _node(span: dict) -> SpanNode:
    tags = span.get("tags", {})
    return SpanNode(
        trace_id=span["traceId"].rjust(32, "0"),
        span_id=span["id"],
        parent_id=span.get("parentId"),
        service=span.get("localEndpoint", {}).get("serviceName", ""),
        name=span.get("name", ""),
        attributes=tuple(tags.items()),
        failed="error" in tags or tags.get("otel.status_code") == "ERROR",
    )
