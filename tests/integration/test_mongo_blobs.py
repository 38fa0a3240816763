"""Blobs in GridFS over faults: what dies in the middle leaves nothing for long, and an acknowledged blob is whole."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import AsyncIterator

import pytest

from schedmate.infra.blobs.gridfs import GridFsBlobs
from schedmate.infra.blobs.port import BlobError, BlobsUnavailableError
from schedmate.infra.clock import VirtualClock
from tests.servers import OWN_MONGO, MongoServer, shared
from tests.waiting import eventually

pytestmark = [pytest.mark.servers]

CLIENTS = ["motor", "pymongo"]
DAY_S = 86400


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=CLIENTS)
async def blobs(request, clock) -> AsyncIterator[GridFsBlobs]:
    blobs = GridFsBlobs(shared("SCHEDMATE_TEST_MONGO"), f"test_blobs_{secrets.token_hex(6)}", clock, request.param)
    await blobs.start()
    yield blobs
    await blobs._connection.database.client.drop_database(blobs._connection.database.name)
    await blobs.stop()


async def counts(blobs: GridFsBlobs) -> dict[str, int]:
    names = ("blob_addresses", "blob_uploads", "blob.files", "blob.chunks")
    return {name: await blobs._connection.database[name].count_documents({}) for name in names}


async def test_what_a_dead_process_left_is_removed_when_it_is_old(blobs, clock):
    await blobs.put("bundles/kept", b"kept" * 100_000)
    before = await counts(blobs)
    file = await blobs._begin()  # died after its chunks, before its file
    await blobs._connection.database["blob.chunks"].insert_one({"files_id": file, "n": 0, "data": b"x"})
    file = await blobs._begin()  # died before the address named its file
    upload = blobs._connection.bucket("blob").open_upload_stream_with_id(file, "bundles/lost")
    await upload.write(b"y" * 1000)
    await upload.close()
    assert await blobs.expire("bundles", older_than=0) == 0
    assert (await counts(blobs))["blob_uploads"] == 2  # still young: perhaps alive
    clock.advance(2 * DAY_S)
    await blobs.put("bundles/new", b"new")
    assert await blobs.expire("bundles", older_than=clock.now() - 1.5 * DAY_S) == 1
    after = await counts(blobs)
    assert after["blob_uploads"] == 0
    assert after["blob.files"] == 1
    assert before["blob.files"] == 1
    assert await blobs.get("bundles/new") == b"new"
    assert await blobs.get("bundles/kept") is None


async def test_a_process_that_died_between_the_switch_and_its_end_loses_nothing(blobs, clock):
    await blobs.put("logs/a", b"old")
    old = (await blobs._addresses.find_one({"_id": "logs/a"}))["file"]
    file = await blobs._begin()
    upload = blobs._connection.bucket("blob").open_upload_stream_with_id(file, "logs/a")
    await upload.write(b"new")
    await upload.close()
    await blobs._uploads.update_one({"_id": file}, {"$set": {"replaces": old}})
    await blobs._addresses.update_one({"_id": "logs/a"}, {"$set": {"file": file, "size": 3, "stored_at": clock.now()}})
    clock.advance(2 * DAY_S)
    assert await blobs.expire("other", older_than=clock.now()) == 0
    assert await blobs.get("logs/a") == b"new"
    assert await counts(blobs) == {"blob_addresses": 1, "blob_uploads": 0, "blob.files": 1, "blob.chunks": 1}


async def test_a_reader_of_a_blob_that_is_replaced_gets_a_whole_one(blobs):
    contents = [bytes([n]) * 600_000 for n in range(6)]
    await blobs.put("logs/a", contents[0])

    async def replace() -> None:
        for content in contents[1:]:
            await blobs.put("logs/a", content)

    replacing = asyncio.create_task(replace())
    while not replacing.done():
        assert await blobs.get("logs/a") in contents
    await replacing
    assert await blobs.get("logs/a") == contents[-1]


async def test_the_same_bundle_again_does_not_disturb_its_readers(blobs):
    content = os.urandom(900_000)

    async def parts() -> AsyncIterator[bytes]:
        yield content

    info = await blobs.put_stream("bundles", parts(), size_max_bytes=1_000_000)
    reading = blobs.stream(info.address, chunk_bytes=100_000)
    read = await anext(reading)
    await blobs.put_stream("bundles", parts(), size_max_bytes=1_000_000)
    read += b"".join([chunk async for chunk in reading])
    assert read == content


async def test_a_blob_whose_content_is_gone_is_an_error_and_no_empty_blob(blobs):
    await blobs.put("logs/a", b"x" * 1000)
    await blobs._connection.database["blob.chunks"].delete_many({})
    with pytest.raises(BlobError, match="cannot be read"):
        await blobs.get("logs/a")
    await blobs._connection.database["blob.files"].delete_many({})
    with pytest.raises(BlobError):
        async for _ in blobs.stream("logs/a"):
            pass
    assert await blobs.delete("logs/a") is True


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
async def test_puts_go_on_over_a_killed_server(tmp_path, clock, client):
    with MongoServer(tmp_path / "mongo", OWN_MONGO).start() as server:
        blobs = GridFsBlobs(server.address, "blobs", clock, client)
        await blobs.start()
        contents = {f"logs/{n:02}": os.urandom(30_000) for n in range(60)}

        async def put_all() -> None:
            for address, content in contents.items():
                await blobs.put(address, content)

        putting = asyncio.create_task(put_all())
        await eventually(lambda: blobs.info("logs/10"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await putting
        for address, content in contents.items():
            assert await blobs.get(address) == content
        clock.advance(2 * DAY_S)
        await blobs.expire("none", older_than=clock.now())
        files = {row["_id"] async for row in blobs._connection.database["blob.files"].find()}
        assert len(files) == len(contents)
        await blobs.stop()


# PyMongo leaves a socket to the garbage collector when it is closed while its monitor connects (4.20).
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_server_that_is_not_there_is_said_within_the_budget(clock, client):
    blobs = GridFsBlobs("mongodb://127.0.0.1:9/?directConnection=true", "blobs", clock, client, retry_s=0.3)
    with pytest.raises(BlobsUnavailableError, match=r"away for 0\.3 s"):
        await blobs.start()
    gc.collect()  # while the filter holds
