"""Traces through the real OpenTelemetry Collector into the real Zipkin: one tree over services, found by query."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.recorded import Edge, edges, roots
from schedmate.infra.telemetry.tracing import (
    Tracing,
    consumer_span,
    current_traceparent,
    new_traceparent,
    producer_span,
    span,
    span_from,
    trace_id,
    tracing_from_environment,
)
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import JobCancelRequested
from schedmate.schemas.wire import Delivery, Envelope
from tests.servers import shared
from tests.zipkin import Zipkin

pytestmark = pytest.mark.servers


@pytest.fixture
async def services(monkeypatch: pytest.MonkeyPatch):
    """Tracing of services by name, exporting as OTEL_* says."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", shared("SCHEDMATE_TEST_OTLP"))
    for variable in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(variable, raising=False)
    made: dict[str, Tracing] = {}

    def of(service: str) -> Tracing:
        return made.setdefault(service, tracing_from_environment(service))

    yield of
    for tracing in made.values():
        await asyncio.to_thread(tracing.shutdown)


async def test_spans_of_two_services_arrive_as_one_tree(services):
    event = JobCancelRequested(job_id="j1", pool="default", requested_by="me")
    with services("ingest").active(), span(names.SUBMIT), producer_span(event.TOPIC):
        traceparent = current_traceparent()
        record = encode(Envelope("id-1", "schedmate/ingest", 1.0, event, traceparent))
    with services("dispatcher").active(), consumer_span(Delivery(record, 0, 41)), span(names.STORE_CALL):
        assert decode(record).traceparent == traceparent
    wanted = {
        Edge("ingest", "submit", "ingest", "publish schedmate.commands"),
        Edge("ingest", "publish schedmate.commands", "dispatcher", "process schedmate.commands"),
        Edge("dispatcher", "process schedmate.commands", "dispatcher", "store"),
    }
    zipkin = Zipkin()
    spans = await zipkin.trace(trace_id(traceparent), until=lambda spans: wanted <= edges(spans))
    assert edges(spans) == wanted
    assert [(root.service, root.name) for root in roots(spans)] == [("ingest", "submit")]
    assert zipkin.services(spans) == {("ingest", "dispatcher")}
    assert zipkin.picture(spans) == (
        "ingest: submit\n"
        "  ingest: publish schedmate.commands\n"
        "    dispatcher: process schedmate.commands\n"
        "      dispatcher: store"
    )
    attributes = dict(next(s for s in spans if s.name.startswith("process ")).attributes)
    assert attributes["messaging.destination.name"] == "schedmate.commands"
    assert attributes["messaging.kafka.offset"] == "41"


async def test_a_batch_span_links_to_the_traces_of_its_jobs_and_stands_in_its_own(services):
    job = new_traceparent()
    with services("dispatcher").active():
        with span_from(None, names.DECIDE_BATCH, links=[job], pool="default", decisions=3):
            batch = current_traceparent()
        with span_from(job, names.PUBLISH):
            pass
    zipkin = Zipkin()
    (batched,) = await zipkin.trace(trace_id(batch), until=lambda spans: len(spans) == 1)
    assert trace_id(batch) != trace_id(job)
    assert dict(batched.attributes)["schedmate.decisions"] == "3"
    assert any(trace_id(job) in str(value) for _, value in batched.attributes), "the link is there"


async def test_a_span_that_failed_says_so(services):
    with services("worker").active(), pytest.raises(ValueError, match="bad"), span(names.START_MEMBER):  # noqa: PT012
        traceparent = current_traceparent()
        raise ValueError("bad")
    (found,) = await Zipkin().trace(trace_id(traceparent), until=lambda spans: len(spans) == 1)
    assert found.failed
    assert dict(found.attributes)["error.type"] == "ValueError"


async def test_a_trace_that_never_comes_is_told_with_what_was_there():
    with pytest.raises(AssertionError, match="has in Zipkin only:\nnothing"):
        await Zipkin().trace(trace_id(new_traceparent()), until=bool, timeout_s=0.3)
