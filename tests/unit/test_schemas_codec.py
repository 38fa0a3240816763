"""CloudEvents in Kafka's binary mode, both ways: what is written, what is read, and what is refused with which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedmate.schemas.codec import UndecodableError, decode, encode
from schedmate.schemas.events import DeadLettered, JobRequested, LogChunked, NodeUncordoned
from schedmate.schemas.job import JobRequest
from schedmate.schemas.wire import Envelope, Record

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EVENT = NodeUncordoned(pool="default", seq=1, index=0, decided_at=1.5, node="n1")
ENVELOPE = Envelope("id-1", "schedmate/dispatcher", 1700000000.25, EVENT, TRACEPARENT)
RECORD = encode(ENVELOPE)


def with_header(name: str, value: bytes | None, record: Record = RECORD) -> Record:
    """Return the record with one header set, or taken away."""
    others = tuple(header for header in record.headers if header[0] != name)
    return replace(record, headers=others if value is None else (*others, (name, value)))


def refusal(record: Record) -> str:
    with pytest.raises(UndecodableError) as caught:
        decode(record)
    return str(caught.value)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_record_has_the_headers_of_the_kafka_binding_and_the_bare_ones_beside_them():
    assert RECORD == Record(
        topic="schedmate.decisions",
        key=b"n1",
        value=b'{"pool":"default","seq":1,"index":0,"decided_at":1.5,"node":"n1","why":""}',
        headers=(
            ("ce_specversion", b"1.0"),
            ("ce_id", b"id-1"),
            ("ce_source", b"schedmate/dispatcher"),
            ("ce_type", b"schedmate.node.uncordoned.v1"),
            ("ce_subject", b"n1"),
            ("ce_time", b"2023-11-14T22:13:20.250000Z"),
            ("content-type", b"application/json"),
            ("pool", b"default"),
            ("traceparent", TRACEPARENT.encode()),
        ),
    )


def test_a_record_without_trace_or_pool_has_no_such_header():
    event = JobRequested(request_id="r1", request=JobRequest(name="a", command=("true",)))
    record = encode(Envelope("id-2", "platform", 1.0, event))
    assert record.header("traceparent") is None
    assert record.header("pool") is None


def test_the_time_is_kept_to_the_microsecond():
    assert decode(encode(replace(ENVELOPE, time=1700000000.123456))).time == 1700000000.123456
    assert decode(encode(replace(ENVELOPE, time=0.0))).time == 0.0


def test_bytes_travel_as_base64_in_the_alphabet_safe_in_addresses():
    chunk = LogChunked(
        job_id="j", pool="p", run_id="r", attempt=1, member=0, node="n", start=0, end=3, content=b"\xff\xfe>"
    )
    record = encode(Envelope("id", "schedmate/worker/n", 1.0, chunk))
    assert b'"content":"__4-"' in record.value
    assert decode(record).event == chunk


def test_a_dead_letter_of_a_record_without_a_key_can_be_written_and_read():
    letter = DeadLettered(
        original_topic="schedmate.jobs",
        original_partition=0,
        original_offset=7,
        original_key="",
        original_value=b"",
        original_headers=(),
        service="ingest",
        error="no key",
        attempts=1,
        at=1.0,
    )
    assert decode(encode(Envelope("id", "schedmate/ingest", 1.0, letter))).event == letter


# --- reading ---------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read():
    assert decode(RECORD) == ENVELOPE


@pytest.mark.parametrize(
    "record",
    [
        with_header("content-type", None),
        with_header("content-type", b"application/json; charset=utf-8"),
        with_header("ce_subject", None),
        with_header("ce_time", b"2023-11-14T23:13:20.25+01:00"),
        with_header("pool", None),
        with_header("ce_tracestate", b"an extension attribute"),
        with_header("foreign", b"\xff\xfe binary"),
        replace(RECORD, headers=(*RECORD.headers, ("foreign", b"1"), ("foreign", b"2"))),
        replace(RECORD, headers=tuple((name.title(), value) if name.startswith("ce_") else (name, value) for name, value in RECORD.headers)),
    ],
    ids=["no-content-type", "charset", "no-subject", "other-zone", "no-pool", "extension", "binary-foreign", "foreign-twice", "upper-case"],
)  # fmt: skip
def test_what_other_writers_may_do_differently_is_read_the_same(record: Record):
    assert decode(record) == ENVELOPE


def test_a_traceparent_that_is_no_text_does_not_cost_the_event():
    assert decode(with_header("traceparent", b"\xff\xfe")).event == EVENT


@pytest.mark.parametrize("name", ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time"])
def test_a_missing_attribute_is_refused_and_named_not_made_up(name: str):
    assert refusal(with_header(name, None)) == f"not a CloudEvent in binary mode: {name} missing"


def test_all_missing_attributes_are_named():
    bare = replace(RECORD, headers=())
    assert refusal(bare).endswith("ce_specversion, ce_id, ce_source, ce_type, ce_time missing")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ce_specversion", b"0.3", "specversion"),
        ("ce_specversion", b"2.0", "specversion"),
        ("ce_id", b"", "'id' must not be None or empty"),
        ("ce_source", b"", "'source' must not be None or empty"),
        ("ce_type", b"", "'type' must not be None or empty"),
        ("ce_type", b"schedmate.node.uncordoned.v9", "unknown event type 'schedmate.node.uncordoned.v9'"),
        ("ce_type", b"com.example.other", "unknown event type 'com.example.other'"),
        ("ce_type", b"schedmate.job.submitted.v1", "schedmate.job.submitted.v1 does not belong on schedmate.decisions"),
        ("ce_time", b"yesterday", "not a CloudEvent in binary mode"),
        ("ce_time", b"2023-11-14T22:13:20", "timezone aware"),
        ("ce_id", b"\xff\xfe", "not a CloudEvent in binary mode: 'utf-8' codec can't decode"),
        ("ce_source", b"\xc3\x28", "not a CloudEvent in binary mode: 'utf-8' codec can't decode"),
        ("ce_type", b"\xff", "not a CloudEvent in binary mode: 'utf-8' codec can't decode"),
        ("ce_data", b"x", "reserved"),
        ("content-type", b"application/cloudevents+json", "structured mode; only the binary mode is read"),
        ("content-type", b"application/cloudevents+json; charset=utf-8", "structured mode"),
        ("content-type", b"application/cloudevents-batch+json", "structured mode"),
        ("content-type", b"Application/CloudEvents+avro", "structured mode"),
        ("content-type", b"text/plain", "the content type is 'text/plain', not application/json"),
        ("content-type", b"\xff", "the content type is"),
        ("pool", b"other", "the header pool is b'other', the event's pool is 'default'"),
        ("pool", b"\xff", "the header pool is"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_with_what_is_wrong(name: str, value: bytes, words: str):
    assert words in refusal(with_header(name, value))


@pytest.mark.parametrize("name", ["ce_id", "CE_ID", "ce_type", "content-type", "Content-Type"])
def test_an_attribute_that_stands_there_twice_is_refused(name: str):
    twice = replace(RECORD, headers=(*RECORD.headers, (name, b"another")))
    assert refusal(twice) == f"header {name.lower()} stands there twice"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "schedmate.node.uncordoned.v1: value: "),
        (b"not json", "schedmate.node.uncordoned.v1: value: Invalid JSON"),
        (b"\xff\xfe", "schedmate.node.uncordoned.v1: value: "),
        (b"null", "schedmate.node.uncordoned.v1: value: "),
        (b"[]", "schedmate.node.uncordoned.v1: value: "),
        (b"{}", "schedmate.node.uncordoned.v1: pool: Field required"),
        (RECORD.value.replace(b'"seq":1', b'"seq":"1"'), "seq: Input should be a valid integer"),
        (RECORD.value.replace(b'"seq":1', b'"seq":1.5'), "seq: Input should be a valid integer"),
        (RECORD.value.replace(b'"seq":1', b'"seq":true'), "seq: Input should be a valid integer"),
        (RECORD.value.replace(b"1.5", b"NaN"), "decided_at: "),
        (RECORD.value.replace(b"1.5", b"1e999"), "decided_at: "),
        (RECORD.value.replace(b"1.5", b"null"), "decided_at: Input should be a valid number"),
        (RECORD.value.replace(b'"why"', b'"extra":1,"why"'), "extra: Extra inputs are not permitted"),
        (RECORD.value.replace(b'"node":"n1"', b'"node":"../n1"'), "node: String should match pattern"),
        (RECORD.value.replace(b'"why":""', b'"why":"\\ud800"'), "value: Invalid JSON"),
        (b"[" * 100_000, "value: Invalid JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_the_field_named(value: bytes, words: str):
    assert words in refusal(replace(RECORD, value=value))


@pytest.mark.parametrize("key", [b"", b"n2", b"\xff\xfe"])
def test_a_key_that_is_not_the_events_own_is_refused(key: bytes):
    message = refusal(replace(RECORD, key=key))
    assert "key" in message or "utf-8" in message


def test_a_request_may_carry_any_pool_header_since_its_pool_is_not_decided_yet():
    event = JobRequested(request_id="r1", request=JobRequest(name="a", command=("true",)))
    record = encode(Envelope("id-2", "platform", 1.0, event))
    assert decode(with_header("pool", b"default", record)).event == event


def test_a_refusal_never_quotes_the_value():
    secret = RECORD.value.replace(b'"why":""', b'"why":17,"password":"hunter2"')
    assert "hunter2" not in refusal(replace(RECORD, value=secret))


def test_nor_does_its_cause_which_is_logged_and_dead_lettered():
    asked = b'{"request_id":"r1","request":{"name":"a","command":["true"],"env":{"KEY":["hunter2"]}}}'
    record = encode(
        Envelope(
            "id-2", "platform", 1.0, JobRequested(request_id="r1", request=JobRequest(name="a", command=("true",)))
        )
    )
    with pytest.raises(UndecodableError) as refused:
        decode(replace(record, value=asked))
    assert "env" in str(refused.value)
    assert "hunter2" not in str(refused.value.__cause__)
