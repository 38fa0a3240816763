"""Spans in memory, for tests that assert the edges of a trace: parent (service, span) → child (service, span).

spans = RecordedSpans()
await serve(components, settings, span_exporter=spans)
assert Edge("ingest", "publish schedmate.jobs", "code-analyzer", "process schedmate.jobs") in spans.edges(trace_id)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

SPANS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """A parent and its child, by service and span name."""

    parent_service: str
    parent: str
    service: str
    name: str


@dataclass(frozen=True, slots=True)
class SpanNode:
    """One span of a trace as any backend knows it. Ids are lower-case hex; a root has no parent."""

    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    name: str
    attributes: tuple[tuple[str, Any], ...] = ()
    links: tuple[str, ...] = ()
    failed: bool = False


class RecordedSpans(SpanExporter):
    """Keeps the newest SPANS_MAX spans; one instance may serve several services."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._spans: deque[SpanNode] = deque(maxlen=SPANS_MAX)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep the spans."""
        with self._lock:
            self._spans.extend(_node(span) for span in spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing: what was recorded stays readable."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - the base's signature
        """Do nothing: export keeps at once."""
        return True

    def spans(self, trace_id: str | None = None) -> list[SpanNode]:
        """Return the spans (of one trace) in the order of their ends."""
        with self._lock:
            return [span for span in self._spans if trace_id is None or span.trace_id == trace_id]

    def edges(self, trace_id: str | None = None) -> set[Edge]:
        """Return all edges (of one trace)."""
        return edges(self.spans(trace_id))


def edges(spans: Sequence[SpanNode]) -> set[Edge]:
    """Return every pair of a span and its parent, where both are there."""
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    found = set()
    for span in spans:
        parent = by_id.get((span.trace_id, span.parent_id or ""))
        if parent is not None:
            found.add(Edge(parent.service, parent.name, span.service, span.name))
    return found


def roots(spans: Sequence[SpanNode]) -> list[SpanNode]:
    """Return the spans whose parent is not among them: exactly one in a whole tree."""
    ids = {(span.trace_id, span.span_id) for span in spans}
    return [span for span in spans if (span.trace_id, span.parent_id or "") not in ids]


def _node(span: ReadableSpan) -> SpanNode:
    context = span.get_span_context()
    assert context is not None
    return SpanNode(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=None if span.parent is None else f"{span.parent.span_id:016x}",
        service=str(span.resource.attributes.get(SERVICE_NAME, "")),
        name=span.name,
        attributes=tuple((span.attributes or {}).items()),
        links=tuple(f"{link.context.trace_id:032x}" for link in span.links),
        failed=not span.status.is_ok,
    )
