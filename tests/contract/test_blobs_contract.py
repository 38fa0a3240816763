"""What every adapter of the port `Blobs` does, said once and run on each."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator

import pytest

from schedmate.infra.blobs.files import FileBlobs
from schedmate.infra.blobs.gridfs import GridFsBlobs
from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.blobs.port import (
    BlobAddressError,
    BlobHashMismatchError,
    Blobs,
    BlobTooLargeError,
)
from schedmate.infra.clock import VirtualClock
from tests.servers import shared


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture(
    params=[
        "memory",
        "files",
        pytest.param("motor", marks=pytest.mark.servers),
        pytest.param("pymongo", marks=pytest.mark.servers),
    ]
)
async def blobs(request, tmp_path, clock) -> AsyncIterator[Blobs]:
    if request.param == "memory":
        made = MemoryBlobs(clock)
    elif request.param == "files":
        made = FileBlobs(tmp_path / "blobs", clock)
    else:
        database = f"test_blobs_{secrets.token_hex(6)}"
        made = GridFsBlobs(shared("SCHEDMATE_TEST_MONGO"), database, clock, request.param)
    await made.start()
    yield made
    if isinstance(made, GridFsBlobs):
        assert await nothing_is_left_over(made)
        await made._connection.database.client.drop_database(database)
    await made.stop()


async def nothing_is_left_over(blobs: GridFsBlobs) -> bool:
    """Every file of GridFS is named by an address, every chunk belongs to a file, no upload is unfinished."""
    database = blobs._connection.database
    named = {row["file"] async for row in database["blob_addresses"].find()}
    files = {row["_id"] async for row in database["blob.files"].find()}
    chunks = {row["files_id"] async for row in database["blob.chunks"].find({}, {"files_id": 1})}
    return files == named and chunks <= files and await database["blob_uploads"].count_documents({}) == 0


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def addresses(blobs: Blobs, prefix: str) -> list[str]:
    return [info.address async for info in blobs.list(prefix)]


async def test_what_was_put_is_got_and_has_its_size_and_time(blobs, clock):
    await blobs.put("logs/run/0/0-5", b"hello")
    assert await blobs.get("logs/run/0/0-5") == b"hello"
    info = await blobs.info("logs/run/0/0-5")
    assert (info.address, info.size_bytes) == ("logs/run/0/0-5", 5)
    assert info.stored_at == pytest.approx(clock.now(), abs=0.01)


async def test_nothing_is_none(blobs):
    assert await blobs.get("logs/none") is None
    assert await blobs.info("logs/none") is None
    assert await blobs.delete("logs/none") is False
    assert await addresses(blobs, "logs/") == []
    with pytest.raises(KeyError):
        async for _ in blobs.stream("logs/none"):
            pass


async def test_empty_content_is_content(blobs):
    await blobs.put("logs/empty", b"")
    assert await blobs.get("logs/empty") == b""
    assert [chunk async for chunk in blobs.stream("logs/empty")] == []
    info = await blobs.put_stream("bundles", chunks(), size_max_bytes=0)
    assert info.address == f"bundles/{hashlib.sha256(b'').hexdigest()}"


async def test_the_same_address_again_replaces_the_content(blobs, clock):
    await blobs.put("logs/a", b"one")
    clock.advance(10)
    await blobs.put("logs/a", b"three")
    assert await blobs.get("logs/a") == b"three"
    info = await blobs.info("logs/a")
    assert info.size_bytes == 5
    assert info.stored_at == pytest.approx(clock.now(), abs=0.01)
    assert await addresses(blobs, "logs/") == ["logs/a"]


async def test_a_stream_is_stored_under_its_hash(blobs):
    content = os.urandom(700_000)
    sha256 = hashlib.sha256(content).hexdigest()
    info = await blobs.put_stream(
        "bundles", chunks(content[:300_000], b"", content[300_000:]), size_max_bytes=700_000, expected_sha256=sha256
    )
    assert info.address == f"bundles/{sha256}"
    assert info.size_bytes == 700_000
    assert await blobs.get(info.address) == content
    read = [chunk async for chunk in blobs.stream(info.address, chunk_bytes=100_000)]
    assert b"".join(read) == content
    assert max(map(len, read)) <= 100_000


async def test_the_same_stream_twice_is_one_blob_with_the_later_time(blobs, clock):
    first = await blobs.put_stream("bundles", chunks(b"abc"), size_max_bytes=10)
    clock.advance(100)
    second = await blobs.put_stream("bundles", chunks(b"a", b"bc"), size_max_bytes=10)
    assert first.address == second.address
    assert second.stored_at == pytest.approx(first.stored_at + 100, abs=0.01)
    assert await addresses(blobs, "bundles/") == [first.address]


async def test_a_stream_that_is_too_large_leaves_nothing(blobs):
    with pytest.raises(BlobTooLargeError, match="10 bytes"):
        await blobs.put_stream("bundles", chunks(b"x" * 6, b"x" * 6), size_max_bytes=10)
    assert await addresses(blobs, "bundles/") == []


async def test_a_stream_with_another_hash_leaves_nothing(blobs):
    announced = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(BlobHashMismatchError, match=announced):
        await blobs.put_stream("bundles", chunks(b"this"), size_max_bytes=10, expected_sha256=announced)
    assert await addresses(blobs, "bundles/") == []


async def test_a_stream_that_breaks_leaves_nothing(blobs):
    async def broken() -> AsyncIterator[bytes]:
        yield b"begin"
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError):
        await blobs.put_stream("bundles", broken(), size_max_bytes=100)
    assert await addresses(blobs, "bundles/") == []


async def test_blobs_are_listed_by_prefix_in_the_order_of_addresses(blobs):
    stored = ["logs/a/0/0-9", "logs/a/0/9-12", "logs/a/1/0-9", "logs/a-b/0/0-1", "logs/a", "logs/a.b", "logs/a0/1/2",
              "logs/B/0/0-1", "other/a/0/0-9"]  # fmt: skip
    for address in stored:
        await blobs.put(address, address.encode())
    assert await addresses(blobs, "logs/") == sorted(a for a in stored if a.startswith("logs/"))
    assert await addresses(blobs, "logs/a/") == ["logs/a/0/0-9", "logs/a/0/9-12", "logs/a/1/0-9"]
    assert await addresses(blobs, "logs/a/0/") == ["logs/a/0/0-9", "logs/a/0/9-12"]
    assert [i.size_bytes async for i in blobs.list("other/")] == [13]


async def test_a_long_list_is_whole(blobs):
    pages = 520 if isinstance(blobs, GridFsBlobs) else 1201
    stored = [f"logs/{n:04}/0" for n in range(pages)]
    await asyncio.gather(*(blobs.put(address, b"x") for address in stored))
    assert await addresses(blobs, "logs/") == stored


async def test_a_blob_and_a_deeper_one_may_share_a_beginning(blobs):
    await blobs.put("logs/a", b"short")
    await blobs.put("logs/a/b", b"deep")
    assert await blobs.get("logs/a") == b"short"
    assert await blobs.delete("logs/a") is True
    assert await blobs.get("logs/a/b") == b"deep"


async def test_a_deleted_blob_is_gone_and_can_come_back(blobs):
    await blobs.put("logs/a/b", b"x")
    assert await blobs.delete("logs/a/b") is True
    assert await blobs.delete("logs/a/b") is False
    assert await blobs.get("logs/a/b") is None
    await blobs.put("logs/a/b", b"y")
    assert await blobs.get("logs/a/b") == b"y"


async def test_what_is_old_expires_in_its_space_alone(blobs, clock):
    await blobs.put("logs/old/0", b"x")
    await blobs.put("logs/renewed/0", b"x")
    await blobs.put("bundles/old", b"x")
    clock.advance(100)
    await blobs.put("logs/new/0", b"x")
    await blobs.put("logs/renewed/0", b"y")
    assert await blobs.expire("logs", older_than=clock.now() - 50) == 1
    assert await addresses(blobs, "logs/") == ["logs/new/0", "logs/renewed/0"]
    assert await addresses(blobs, "bundles/") == ["bundles/old"]
    assert await blobs.expire("logs", older_than=clock.now() - 50) == 0


@pytest.mark.parametrize(
    "address",
    ["", "bundles", "/bundles/a", "bundles/", "bundles//a", "bundles/../a", "../a/b", "bundles/.", "bundles/a/../../b",
     "bundles/a\0b", "bundles/a\\b", "bundles/ä", "bundles/a b", "bundles/.hidden", "bundles/a\n", "a/b/c/d/e/f/g/h/i",
     "bundles/" + "a" * 129, "bundles/a@"],
)  # fmt: skip
async def test_an_address_that_is_none_is_refused_everywhere(blobs, address):
    with pytest.raises(BlobAddressError):
        await blobs.put(address, b"x")
    for call in (blobs.get, blobs.info, blobs.delete):
        with pytest.raises(BlobAddressError):
            await call(address)
    with pytest.raises(BlobAddressError):
        async for _ in blobs.stream(address):
            pass


@pytest.mark.parametrize("prefix", ["", "/", "logs", "logs/a", "../", "logs//", "logs/../"])
async def test_a_prefix_that_is_none_is_refused(blobs, prefix):
    with pytest.raises(BlobAddressError):
        await addresses(blobs, prefix)


async def test_a_space_and_a_hash_that_are_none_are_refused(blobs):
    for space in ("", "a/b", "..", "a b"):
        with pytest.raises(BlobAddressError):
            await blobs.put_stream(space, chunks(b"x"), size_max_bytes=10)
        with pytest.raises(BlobAddressError):
            await blobs.expire(space, older_than=0)
    with pytest.raises(BlobAddressError):
        await blobs.put_stream("bundles", chunks(b"x"), size_max_bytes=10, expected_sha256="ABC")


async def test_many_writers_of_one_address_leave_one_whole_content(blobs):
    contents = [bytes([n]) * 100_000 for n in range(12)]
    await asyncio.gather(*(blobs.put("logs/a", content) for content in contents))
    assert await blobs.get("logs/a") in contents
