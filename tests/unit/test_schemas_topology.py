"""The one file of topics and collections holds what the parts rely on."""

from __future__ import annotations

import re

import pytest

from schedmate.schemas.events import EVENTS, LOG_CHUNK_BYTES_MAX, READERS, WRITERS
from schedmate.schemas.topology import Topic, topology

CHANGELOG = "schedmate.log-monitor-tracker-changelog"
DEAD_LETTERS = "schedmate.dead-letters"
TOPICS = topology().topics.values()


def test_every_event_has_its_topic_and_every_topic_its_events():
    assert {event.TOPIC for event in EVENTS} == set(topology().topics) - {CHANGELOG}


def test_every_topic_of_events_has_one_writer_and_at_least_one_reader():
    assert set(WRITERS) == set(READERS) == {event.TOPIC for event in EVENTS}
    assert all(READERS.values())


def test_the_topics_that_log_monitor_joins_have_as_many_partitions_as_its_changelog():
    joined = [topic for topic, readers in READERS.items() if "log-monitor" in readers]
    keyed_by_job = [topic for topic in joined if {event.KEY for event in EVENTS if topic == event.TOPIC} == {"job_id"}]
    assert set(keyed_by_job) == {"schedmate.jobs", "schedmate.analyses", "schedmate.runs", "schedmate.logs"}
    assert {topology().topics[topic].partitions for topic in (*keyed_by_job, CHANGELOG)} == {
        topology().topics["schedmate.logs"].partitions
    }


def test_the_read_model_hears_every_topic_of_events():
    assert all("ingest" in readers for readers in READERS.values())


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_topic_is_bounded_and_named_as_ours(topic: Topic):
    assert topic.name.startswith("schedmate.")
    assert len(topic.name) <= 249
    assert 1 <= topic.partitions <= 64
    assert 86400 <= topic.retention_s <= 366 * 86400
    assert topic.cleanup in {"delete", "compact"}
    assert topic.record_bytes_max >= 1024 * 1024


def test_only_the_changelog_is_compacted():
    assert [topic.name for topic in TOPICS if topic.cleanup == "compact"] == [CHANGELOG]


def test_a_dead_letter_has_room_for_the_largest_record_in_base64():
    largest = max(topic.record_bytes_max for topic in TOPICS if topic.name != DEAD_LETTERS)
    assert topology().topics[DEAD_LETTERS].record_bytes_max > largest * 4 / 3 + 65536


def test_a_chunk_of_a_log_fits_its_topic_in_base64():
    assert topology().topics["schedmate.logs"].record_bytes_max > LOG_CHUNK_BYTES_MAX * 4 / 3 + 65536


def test_decisions_outlive_the_runs_that_they_decide():
    kept = {topic.name: topic.retention_s for topic in TOPICS}
    assert kept["schedmate.decisions"] >= kept["schedmate.runs"] >= kept["schedmate.logs"]


def test_the_pool_logs_collections_are_all_there():
    assert {"pool_log", "pool_snapshots", "pool_leases", "pool_published", "pool_config"} <= set(topology().collections)


def test_a_collection_is_named_so_that_every_store_takes_the_name():
    assert all(re.fullmatch(r"[a-z][a-z_]{0,62}", name) for name in topology().collections)


def test_an_index_is_on_a_field_of_its_own():
    for collection in topology().collections.values():
        fields = [index.field for index in collection.indexes]
        assert len(set(fields)) == len(fields)
        assert not {"_id", "id", "version"} & set(fields)
