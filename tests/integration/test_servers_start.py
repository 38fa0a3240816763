"""Each real server answers a client of its own kind, and the two that hold state come back with it after a crash."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.structs import TopicPartition
from ollama import AsyncClient
from pymongo import AsyncMongoClient
from pymongo.write_concern import WriteConcern

from tests.servers import OWN_KAFKA, OWN_MONGO, KafkaServer, MongoServer, shared
from tests.waiting import eventually_sync

pytestmark = pytest.mark.servers

MIB = 1024 * 1024


def name_of_its_own(stem: str) -> str:
    return f"{stem}-{secrets.token_hex(4)}"


async def create_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(topic, num_partitions=1, replication_factor=1, topic_configs={"max.message.bytes": str(2 * MIB)})]
        )
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, max_request_size=2 * MIB
    ) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"job", headers=[("ce_id", b"1")])


async def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, max_partition_fetch_bytes=2 * MIB) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        async with asyncio.timeout(20):
            return [(await consumer.getone()).value for _ in range(count)]


async def test_kafka_carries_a_value_of_one_mebibyte_there_and_back():
    bootstrap = shared("SCHEDMATE_TEST_KAFKA").removeprefix("kafka://")
    topic = name_of_its_own("servers-start")
    await create_topic(bootstrap, topic)
    value = secrets.token_bytes(MIB)
    await produce(bootstrap, topic, [value])
    assert await consume(bootstrap, topic, 1) == [value]


async def test_kafka_makes_up_no_topic_that_a_client_names():
    bootstrap = shared("SCHEDMATE_TEST_KAFKA").removeprefix("kafka://")
    topic = name_of_its_own("never-created")
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        described = await admin.describe_topics([topic])
        assert described[0]["error_code"] == UnknownTopicOrPartitionError.errno
        assert topic not in await admin.list_topics()
    finally:
        await admin.close()


async def test_mongo_refuses_a_second_document_with_the_same_unique_key():
    async with AsyncMongoClient[dict[str, Any]](
        shared("SCHEDMATE_TEST_MONGO"), serverSelectionTimeoutMS=5000
    ) as client:
        database = client[name_of_its_own("servers_start").replace("-", "_")]
        try:
            collection = database["entries"]
            await collection.create_index([("pool", 1), ("seq", 1)], unique=True)
            await collection.insert_one({"_id": "a", "pool": "p", "seq": 1})
            with pytest.raises(Exception, match="E11000"):
                await collection.insert_one({"_id": "b", "pool": "p", "seq": 1})
            assert await collection.count_documents({}) == 1
        finally:
            await client.drop_database(database.name)


async def test_ollama_answers_in_the_shape_of_a_json_schema():
    client = AsyncClient(host=shared("SCHEDMATE_TEST_OLLAMA"), timeout=60)
    shape = {"type": "object", "properties": {"gpus": {"type": "integer"}}, "required": ["gpus"]}
    answer = await client.chat(
        model=shared("SCHEDMATE_TEST_OLLAMA_MODEL"),
        messages=[{"role": "user", "content": "How many GPUs does torchrun --nproc_per_node 4 use? Answer in JSON."}],
        format=shape,
        options={"num_predict": 32, "temperature": 0, "num_thread": 1},
    )
    await client._client.aclose()
    assert isinstance(json.loads(answer.message.content or "")["gpus"], int)


def test_a_span_sent_to_the_collector_is_found_in_zipkin():
    trace_id = secrets.token_hex(16)
    span = {
        "traceId": trace_id,
        "spanId": secrets.token_hex(8),
        "name": "servers-start",
        "kind": 1,
        "startTimeUnixNano": str(time.time_ns() - 1_000_000),
        "endTimeUnixNano": str(time.time_ns()),
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "servers-start"}}]}
    body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}).encode()
    post = urllib.request.Request(
        f"{shared('SCHEDMATE_TEST_OTLP')}/v1/traces", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(post, timeout=10) as response:
        assert response.status == 200

    def found() -> bool:
        url = f"{shared('SCHEDMATE_TEST_ZIPKIN')}/api/v2/trace/{trace_id}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return [each["name"] for each in json.load(answer)] == ["servers-start"]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return False

    eventually_sync(found, 20)


async def test_a_killed_kafka_comes_back_on_its_port_with_what_it_acknowledged(tmp_path: Path):
    with KafkaServer(tmp_path / "kafka", OWN_KAFKA) as kafka:
        before = kafka.bootstrap
        await create_topic(before, "kept")
        values = [str(number).encode() for number in range(50)]
        await produce(before, "kept", values)
        kafka.kill()
        assert not kafka.running()
        kafka.start()
        assert kafka.bootstrap == before
        assert await consume(before, "kept", len(values)) == values
    assert not kafka.running()


async def test_a_killed_mongo_comes_back_on_its_port_with_what_it_journaled(tmp_path: Path):
    with MongoServer(tmp_path / "mongo", OWN_MONGO) as mongo:
        before = mongo.address
        async with AsyncMongoClient[dict[str, Any]](before, serverSelectionTimeoutMS=5000) as client:
            journaled = client["kept"].get_collection("entries", write_concern=WriteConcern("majority", j=True))
            for number in range(50):
                await journaled.insert_one({"_id": number})
        mongo.kill()
        assert not mongo.running()
        mongo.start()
        assert mongo.address == before
        async with AsyncMongoClient[dict[str, Any]](before, serverSelectionTimeoutMS=5000) as client:
            assert await client["kept"]["entries"].count_documents({}) == 50
    assert not mongo.running()


def test_a_server_that_is_started_twice_is_one_server(tmp_path: Path):
    with MongoServer(tmp_path / "mongo", OWN_MONGO) as first:
        pid = first.processes()[0].living_pid()
        second = MongoServer(tmp_path / "mongo", OWN_MONGO).start()
        assert second.processes()[0].living_pid() == pid
        assert second.address == first.address
