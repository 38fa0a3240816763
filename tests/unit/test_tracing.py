"""Traces: ids always exist, contexts pass through unchanged where nothing records, each service has its own name."""

from __future__ import annotations

import asyncio
import re
import threading
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from schedmate.infra.telemetry import names, tracing
from schedmate.infra.telemetry.recorded import Edge, RecordedSpans, roots
from schedmate.infra.telemetry.redaction import REDACTED
from schedmate.infra.telemetry.tracing import (
    Tracing,
    consumer_span,
    current_service,
    current_trace_id,
    current_traceparent,
    new_traceparent,
    parse_traceparent,
    producer_span,
    span,
    span_from,
    trace_id,
    tracing_from_environment,
)
from schedmate.schemas.events import MemberReleased
from schedmate.schemas.wire import Delivery, Envelope, Record

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")

VALID = [
    (PARENT, TRACE),
    (f"00-{TRACE}-b7ad6b7169203331-00", TRACE),
    (f"cc-{TRACE}-b7ad6b7169203331-01-what-the-future-holds", TRACE),
    (f"00-{TRACE}-b7ad6b7169203331-ff", TRACE),
]
MALFORMED = [
    None,
    "",
    "garbage",
    PARENT[:-1],
    PARENT.upper(),
    PARENT + "-more",
    f"ff-{TRACE}-b7ad6b7169203331-01",
    f"00-{'0' * 32}-b7ad6b7169203331-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE[:-1]}g-b7ad6b7169203331-01",
    f"00-{TRACE}-b7ad6b7169203331-0\uff11",
    f"00 {TRACE} b7ad6b7169203331 01",
    "-" * 55,
]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch):
    for variable in (
        *tracing.ENDPOINT_VARIABLES,
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_EXPORTER",
        "OTEL_TRACES_SAMPLER",
        "OTEL_RESOURCE_ATTRIBUTES",
    ):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def spans() -> RecordedSpans:
    return RecordedSpans()


def recording(service: str, spans: RecordedSpans, **further) -> Tracing:
    return Tracing(service, exporter=spans, batched=False, **further)


def record(traceparent: str | None = PARENT) -> Record:
    headers = (("traceparent", traceparent.encode()),) if traceparent is not None else ()
    return Record("schedmate.jobs", b"job-1", b"{}", headers)


def envelope(traceparent: str | None) -> Envelope[MemberReleased]:
    event = MemberReleased(pool="p", seq=1, index=0, term=1, node="n1", job_id="j", run_id="r", attempt=1, member=0)
    return Envelope("id-1", "schedmate/dispatcher", 1.0, event, traceparent)


@pytest.mark.parametrize(("traceparent", "wanted"), VALID)
def test_a_valid_traceparent_gives_its_trace_id(traceparent, wanted):
    assert trace_id(traceparent) == wanted


@pytest.mark.parametrize("traceparent", MALFORMED)
def test_a_malformed_traceparent_is_none_and_begins_a_new_trace(traceparent):
    assert parse_traceparent(traceparent) is None
    assert trace_id(traceparent) == ""
    with span_from(traceparent, names.PROCESS):
        assert TRACEPARENT.fullmatch(current_traceparent())


def test_trace_ids_exist_without_an_exporter_and_last_for_the_span():
    assert current_trace_id() == ""
    assert TRACEPARENT.fullmatch(new_traceparent())
    with span(names.ANALYZE):
        first = current_traceparent()
        with span(names.LLM_CALL):
            assert current_traceparent() == first
        assert current_trace_id() == trace_id(first)
    with span(names.ANALYZE):
        assert current_trace_id() != trace_id(first)
    assert current_trace_id() == ""


@pytest.mark.parametrize(
    "carrier", [record(), Delivery(record(), 3, 7), envelope(PARENT)], ids=["record", "delivery", "envelope"]
)
def test_a_service_that_records_nothing_passes_the_context_on_unchanged(carrier):
    with consumer_span(carrier):
        assert current_traceparent() == PARENT


def test_an_unsampled_trace_stays_unsampled_through_a_service_that_records_nothing():
    unsampled = f"00-{TRACE}-b7ad6b7169203331-00"
    with consumer_span(record(unsampled)):
        assert current_traceparent() == unsampled


def test_a_record_without_a_traceparent_begins_a_trace():
    with consumer_span(record(None)):
        assert TRACEPARENT.fullmatch(current_traceparent())


def test_the_edges_of_a_trace_over_two_services_in_one_process(spans):
    with recording("ingest", spans).active(), span(names.HTTP_SERVER), producer_span("schedmate.jobs"):
        sent = current_traceparent()
    with (
        recording("dispatcher", spans).active(),
        consumer_span(record(sent), group="schedmate.dispatcher"),
        span(names.STORE_CALL),
    ):
        pass
    assert spans.edges(trace_id(sent)) == {
        Edge("ingest", "http", "ingest", "publish schedmate.jobs"),
        Edge("ingest", "publish schedmate.jobs", "dispatcher", "process schedmate.jobs"),
        Edge("dispatcher", "process schedmate.jobs", "dispatcher", "store"),
    }
    assert [root.name for root in roots(spans.spans(trace_id(sent)))] == ["http"]


def test_a_consumer_span_follows_the_conventions_for_messaging(spans):
    with (
        recording("worker", spans).active(),
        consumer_span(Delivery(record(), 3, 7), group="schedmate.worker", node="n1"),
    ):
        pass
    (found,) = spans.spans()
    assert found.parent_id == "b7ad6b7169203331"
    assert dict(found.attributes) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "schedmate.jobs",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 7,
        "messaging.kafka.message.key": "job-1",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": "schedmate.worker",
        "schedmate.node": "n1",
    }


def test_an_envelope_tells_its_event_job_and_pool(spans):
    with recording("worker", spans).active(), consumer_span(envelope(PARENT)):
        pass
    attributes = dict(spans.spans()[0].attributes)
    assert attributes["cloudevents.event_type"] == "schedmate.member.released.v1"
    assert (attributes["schedmate.job.id"], attributes["schedmate.pool"], attributes["messaging.message.id"]) == (
        "j",
        "p",
        "id-1",
    )


def test_a_batch_links_to_the_traces_of_its_jobs(spans):
    with (
        recording("dispatcher", spans).active(),
        span_from(None, names.DECIDE_BATCH, links=[PARENT, "garbage", new_traceparent()]),
    ):
        pass
    links = spans.spans()[0].links
    assert len(links) == 2
    assert links[0] == TRACE


def test_links_are_bounded(spans):
    many = [new_traceparent() for _ in range(tracing.LINKS_MAX + 50)]
    with recording("dispatcher", spans).active(), span_from(None, names.DECIDE_BATCH, links=many):
        pass
    assert len(spans.spans()[0].links) == tracing.LINKS_MAX


def test_an_error_marks_the_span_with_its_class_and_a_redacted_message_and_goes_on(spans):
    with recording("worker", spans).active(), pytest.raises(ValueError, match="hunter2"), span(names.START_MEMBER):
        raise ValueError("password=hunter2 is wrong")
    (found,) = spans.spans()
    assert found.failed
    assert dict(found.attributes)["error.type"] == "ValueError"


def test_text_from_users_is_redacted_in_attributes_and_none_is_left_out(spans):
    with (
        recording("worker", spans).active(),
        span(names.START_MEMBER, detail="token: a1b2c3d4e5f6a7b8", job_id="j", exit_code=None),
    ):
        pass
    with recording("worker", spans).active(), span(names.START_MEMBER) as opened:
        opened.set_attribute(names.DETAIL, "password=hunter2")
    first, second = (dict(found.attributes) for found in spans.spans())
    assert first == {"schedmate.detail": f"token: {REDACTED}", "schedmate.job.id": "j"}
    assert second == {"schedmate.detail": f"password={REDACTED}"}
    assert [found.service for found in spans.spans()] == ["worker", "worker"]


def test_the_sampler_decides_what_is_recorded_and_ids_exist_all_the_same(spans):
    with recording("worker", spans, sampler=ALWAYS_OFF).active(), span(names.START_MEMBER):
        assert TRACEPARENT.fullmatch(current_traceparent())
    assert spans.spans() == []


def test_the_sampler_of_the_environment_is_respected(spans, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with recording("worker", spans).active():
        with span(names.START_MEMBER):
            assert current_traceparent().endswith("-00")
        with span_from(PARENT, names.START_MEMBER):
            assert current_traceparent().endswith("-01")
    assert [found.trace_id for found in spans.spans()] == [TRACE]


async def test_tasks_keep_the_service_that_they_were_started_under(spans):
    async def work() -> str:
        await asyncio.sleep(0)
        return current_service()

    with recording("ingest", spans).active():
        one = asyncio.create_task(work())
    with recording("worker", spans).active():
        two = asyncio.create_task(asyncio.to_thread(current_service))
    assert (await one, await two, current_service()) == ("ingest", "worker", "schedmate")


def test_nothing_is_exported_unless_an_endpoint_is_named(monkeypatch):
    assert not tracing_from_environment("worker").recording
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not tracing_from_environment("worker").recording
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert not tracing_from_environment("worker").recording


def test_the_resource_is_the_services_own_whatever_the_environment_says(spans, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "everything")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,deployment.environment.name=test")
    with recording("worker", spans).active(), span(names.START_MEMBER):
        pass
    assert spans.spans()[0].service == "worker"


def test_a_slow_exporter_never_makes_a_span_wait_and_the_queue_is_bounded():
    class Stuck(SpanExporter):
        def __init__(self) -> None:
            self.taken = 0
            self.goes_on = threading.Event()

        def export(self, spans):
            self.taken += len(spans)
            if not self.goes_on.wait(30):
                self.goes_on.set()
            return SpanExportResult.FAILURE

    exporter = Stuck()
    slow = Tracing("worker", exporter=exporter)
    with slow.active():
        for _ in range(2 * tracing.QUEUE_SPANS_MAX):
            with span(names.START_MEMBER):
                pass
    assert not exporter.goes_on.is_set(), "a span waited for the exporter"
    exporter.goes_on.set()
    slow.shutdown()
    assert 0 < exporter.taken <= tracing.QUEUE_SPANS_MAX + tracing.BATCH_SPANS_MAX


def test_a_span_that_nobody_records_is_cheap():
    delivery = Delivery(record(), 0, 0)

    def handle() -> float:
        started = time.thread_time()
        for _ in range(2000):
            with consumer_span(delivery):
                current_traceparent()
        return (time.thread_time() - started) / 2000

    assert min(handle() for _ in range(5)) < 60e-6, "about 8 µs when nothing else runs"


def test_the_kind_of_a_producer_is_producer():
    tracer = Tracing("x", exporter=RecordedSpans(), batched=False)
    with tracer.active(), producer_span("schedmate.jobs"):
        assert trace.get_current_span().kind is SpanKind.PRODUCER  # type: ignore[attr-defined]
