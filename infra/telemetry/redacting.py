"""The last step before spans leave: text that users may have written is redacted, off the path of the work."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.redaction import redact


def redacting(exporter: SpanExporter) -> SpanExporter:
    """Return an exporter that redacts the free text of spans and hands them on."""
    return _Redacting(exporter)


class _Redacting(SpanExporter):
    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_redacted(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _redacted(span: ReadableSpan) -> ReadableSpan:
    attributes = span.attributes or {}
    if names.FREE_TEXT.isdisjoint(attributes):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes={key: redact(str(value)) if key in names.FREE_TEXT else value for key, value in attributes.items()},
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
