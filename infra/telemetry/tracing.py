"""Traces: W3C traceparents always, recorded spans only where somebody asked for them (OTEL_EXPORTER_OTLP_ENDPOINT).

One tracer provider per service, not one per process: in the single process each service still has its own
`service.name`. Which service code runs for is a context variable that the host sets (`Tracing.active`), so the functions
here need no tracer handed in. Without an exporter a span costs a microsecond or two: the caller's context passes through
unchanged, and a new trace id is made only at the root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from schedmate import __version__
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.redaction import redact
from schedmate.schemas.wire import HEADER_TRACEPARENT, Delivery, Envelope, Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
QUEUE_SPANS_MAX: Final = 8192
BATCH_SPANS_MAX: Final = 512
BATCH_DELAY_MS: Final = 500
EXPORT_TIMEOUT_S: Final = 3.0
LINKS_MAX: Final = 128
_SPAN_LIMITS: Final = {
    "max_span_attributes": 64,
    "max_events": 32,
    "max_links": LINKS_MAX,
    "max_span_attribute_length": 512,
}
_TRACEPARENT_LENGTH: Final = 55
_HEX: Final = frozenset("0123456789abcdef")
_new_ids: Final = RandomIdGenerator()


class Tracing:
    """The tracer of one service. Without an exporter it records nothing and only carries trace ids on."""

    def __init__(
        self,
        service: str,
        *,
        exporter: SpanExporter | None = None,
        batched: bool = True,
        sampler: Sampler | None = None,
    ) -> None:
        self.service = service
        self._provider: TracerProvider | None = None
        if exporter is None:
            return
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor  # noqa: PLC0415 - costs 50 ms

        from schedmate.infra.telemetry.redacting import redacting  # noqa: PLC0415 - imports the same

        self._provider = TracerProvider(
            sampler=sampler,  # None reads OTEL_TRACES_SAMPLER
            resource=Resource.create({SERVICE_NAME: service, SERVICE_VERSION: __version__}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(**_SPAN_LIMITS),
        )
        exporter = redacting(exporter)
        if batched:
            processor: BatchSpanProcessor | SimpleSpanProcessor = BatchSpanProcessor(
                exporter,
                max_queue_size=QUEUE_SPANS_MAX,
                schedule_delay_millis=BATCH_DELAY_MS,
                max_export_batch_size=BATCH_SPANS_MAX,
                export_timeout_millis=EXPORT_TIMEOUT_S * 1000,
            )
        else:
            processor = SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("schedmate", __version__)

    @property
    def recording(self) -> bool:
        """Whether spans are recorded at all (the sampler may still leave out some)."""
        return self._provider is not None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the tracing of whatever runs inside, tasks started there included."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def activate(self) -> None:
        """Make this the tracing of the current context, for good (a process with one service)."""
        _current.set(self)

    def start(
        self, name: str, parent: SpanContext | None, kind: SpanKind, links: Sequence[str], attributes: Mapping[str, Any]
    ) -> Span:
        """Return a started span; the caller ends it."""
        if self._provider is None:
            if parent is not None and parent.is_valid:
                return NonRecordingSpan(parent)
            return NonRecordingSpan(_root_context())
        context = trace.set_span_in_context(NonRecordingSpan(parent)) if parent is not None else _EMPTY
        return self._tracer.start_span(
            name,
            context=context,
            kind=kind,
            attributes={key: value for key, value in attributes.items() if value is not None},
            links=_links(links),
            record_exception=False,
            set_status_on_exception=False,
        )

    def flush(self) -> None:
        """Export what is queued; blocks for as long as the exporter takes."""
        if self._provider is not None:
            self._provider.force_flush()

    def shutdown(self) -> None:
        """Export what is queued and end; blocks for as long as the exporter takes, so call it off the loop."""
        if self._provider is not None:
            self._provider.shutdown()


_EMPTY: Final = trace.set_span_in_context(trace.INVALID_SPAN)
_SILENT: Final = Tracing("schedmate")
_current: ContextVar[Tracing] = ContextVar("schedmate_tracing", default=_SILENT)


def tracing_from_environment(service: str) -> Tracing:
    """Return the tracing of a service as OTEL_* says.

    It exports by OTLP over HTTP when OTEL_EXPORTER_OTLP_ENDPOINT is set (and OTEL_SDK_DISABLED is not), in the background,
    with a bounded queue: spans are dropped before anything waits.
    """
    return Tracing(service, exporter=_exporter_from_environment())


def _exporter_from_environment() -> SpanExporter | None:
    if (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none"
    ):
        return None
    if not any(os.environ.get(variable) for variable in ENDPOINT_VARIABLES):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - costs 100 ms

    return OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S)


# --- traceparents -----------------------------------------------------------------------------------------------------


def _root_context() -> SpanContext:
    return SpanContext(
        _new_ids.generate_trace_id(), _new_ids.generate_span_id(), is_remote=False, trace_flags=TraceFlags(1)
    )


def parse_traceparent(traceparent: str | None) -> SpanContext | None:
    """Return the context that a W3C traceparent names, or None when it is absent or malformed."""
    if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH:
        return None
    parts = traceparent.split("-", 4)
    if len(parts) < 4 or (len(parts) > 4 and parts[0] == "00"):  # noqa: PLR2004 - version, trace id, span id, flags
        return None
    version, trace_hex, span_hex, flags = parts[:4]
    if (len(version), len(trace_hex), len(span_hex), len(flags)) != (2, 32, 16, 2) or version == "ff":
        return None
    if not _HEX.issuperset(version + trace_hex + span_hex + flags):
        return None
    context = SpanContext(
        int(trace_hex, 16), int(span_hex, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1)
    )
    return context if context.is_valid else None


def format_traceparent(context: SpanContext) -> str:
    """Return the W3C traceparent of a context."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


def trace_id(traceparent: str | None) -> str:
    """Return the trace id of a traceparent, 32 hex digits; empty when it is absent or malformed."""
    context = parse_traceparent(traceparent)
    return "" if context is None else f"{context.trace_id:032x}"


def new_traceparent() -> str:
    """Return the traceparent of a new trace."""
    return format_traceparent(_root_context())


def current_traceparent() -> str:
    """Return the traceparent of the current span, for a record or a request that is about to go out; of a new trace outside of one."""
    context = trace.get_current_span().get_span_context()
    return format_traceparent(context) if context.is_valid else new_traceparent()


def current_service() -> str:
    """Return the name of the service that the current context runs for."""
    return _current.get().service


def current_trace_id() -> str:
    """Return the trace id of the current span, 32 hex digits; empty outside of one."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def traceparent_of(carrier: Delivery | Record | Envelope[Any]) -> str | None:
    """Return the traceparent that a record or an envelope carries."""
    if isinstance(carrier, Envelope):
        return carrier.traceparent
    record = carrier.record if isinstance(carrier, Delivery) else carrier
    value = record.header(HEADER_TRACEPARENT)
    return None if value is None else value.decode("ascii", "replace")


def _links(traceparents: Sequence[str]) -> list[Link]:
    contexts = (parse_traceparent(one) for one in traceparents[:LINKS_MAX])
    return [Link(context) for context in contexts if context is not None]


# --- spans ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _running(started: Span) -> Iterator[Span]:
    """Make a span current; on an error mark it with the error's class and redacted message, and end it in any case."""
    try:
        with trace.use_span(started, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield started
    except Exception as error:
        if started.is_recording():
            started.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
            started.set_status(Status(StatusCode.ERROR, redact(str(error))[:256]))
        raise
    finally:
        started.end()


def span(
    name: str, /, *, kind: SpanKind = SpanKind.INTERNAL, **attributes: Any
) -> contextlib.AbstractContextManager[Span]:
    """Return a span under the current one (a new trace where there is none).

    Attributes are written with underscores for the dots of their keys in the registry (`messaging_system=…`), or set on
    the span with `set_attribute(names.KEY, value)`.
    """
    parent = trace.get_current_span().get_span_context()
    return _running(_current.get().start(name, parent if parent.is_valid else None, kind, (), _keyed(attributes)))


def span_from(
    traceparent: str | None,
    name: str,
    /,
    *,
    links: Sequence[str] = (),
    kind: SpanKind = SpanKind.INTERNAL,
    **attributes: Any,
) -> contextlib.AbstractContextManager[Span]:
    """Return a span whose parent is the given traceparent, or the root of a new trace; `links` are traceparents too."""
    return _running(_current.get().start(name, parse_traceparent(traceparent), kind, links, _keyed(attributes)))


def consumer_span(
    carrier: Delivery | Record | Envelope[Any],
    name: str = names.PROCESS,
    /,
    *,
    group: str | None = None,
    **attributes: Any,
) -> contextlib.AbstractContextManager[Span]:
    """Return the span in which one record is handled, named `process TOPIC`; its parent is the record's traceparent."""
    tracing = _current.get()
    parent = parse_traceparent(traceparent_of(carrier))
    if not tracing.recording:
        return _running(tracing.start(name, parent, SpanKind.CONSUMER, (), {}))
    described = _messaging(carrier) | _keyed(attributes)
    described[names.MESSAGING_OPERATION_TYPE] = "process"
    described[names.MESSAGING_OPERATION_NAME] = "process"
    if group is not None:
        described[names.MESSAGING_CONSUMER_GROUP_NAME] = group
    topic = described[names.MESSAGING_DESTINATION_NAME]
    return _running(tracing.start(f"{name} {topic}", parent, SpanKind.CONSUMER, (), described))


def producer_span(
    topic: str, name: str = names.PUBLISH, /, **attributes: Any
) -> contextlib.AbstractContextManager[Span]:
    """Return the span in which records are published, named `publish TOPIC`; what goes out carries its traceparent."""
    described = _keyed(attributes) | {
        names.MESSAGING_SYSTEM: "kafka",
        names.MESSAGING_DESTINATION_NAME: topic,
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_OPERATION_NAME: "publish",
    }
    parent = trace.get_current_span().get_span_context()
    return _running(
        _current.get().start(f"{name} {topic}", parent if parent.is_valid else None, SpanKind.PRODUCER, (), described)
    )


def _messaging(carrier: Delivery | Record | Envelope[Any]) -> dict[str, Any]:
    if isinstance(carrier, Envelope):
        event = carrier.event
        found: dict[str, Any] = {
            names.MESSAGING_DESTINATION_NAME: event.TOPIC,
            names.MESSAGING_MESSAGE_ID: carrier.id,
            names.EVENT_TYPE: event.ce_type(),
            names.JOB_ID: getattr(event, "job_id", None),
            names.POOL: getattr(event, "pool", None),
        }
    elif isinstance(carrier, Delivery):
        found = {
            names.MESSAGING_DESTINATION_NAME: carrier.topic,
            names.MESSAGING_DESTINATION_PARTITION_ID: str(carrier.partition),
            names.MESSAGING_KAFKA_OFFSET: carrier.offset,
            names.MESSAGING_KAFKA_MESSAGE_KEY: carrier.record.key.decode("utf-8", "replace"),
        }
    else:
        found = {
            names.MESSAGING_DESTINATION_NAME: carrier.topic,
            names.MESSAGING_KAFKA_MESSAGE_KEY: carrier.key.decode("utf-8", "replace"),
        }
    found[names.MESSAGING_SYSTEM] = "kafka"
    return found


def _keyed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes by their keys in the registry."""
    return {names.ATTRIBUTE_OF_KEYWORD.get(written, f"schedmate.{written}"): v for written, v in attributes.items()}
