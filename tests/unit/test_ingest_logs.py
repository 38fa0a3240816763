"""A member's output: joined, bounded, read by range, followed to its end."""

from __future__ import annotations

import asyncio
import json
import random  # noqa: TID251 - seeded chunking
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.clock import SystemClock
from schedmate.schemas import ids
from schedmate.schemas.states import JobState
from schedmate.services.ingest import following
from schedmate.services.ingest.log_extents import MERGE_COUNT, Extent, decode, is_covered, plan, to_drop, to_merge
from schedmate.services.ingest.log_store import LogStore
from tests.ingesting import IngestUnderTest, chunk, decided, exited, ingesting, started, submitted
from tests.waiting import eventually

JOB_ID = "11111111-1111-5111-8111-111111111111"
RUN_ID = ids.run_id(JOB_ID, 1)
S = JobState


def store(member_bytes_max: int = 64 * 1024 * 1024) -> LogStore:
    clock = SystemClock()
    return LogStore(MemoryBlobs(clock), clock, member_bytes_max=member_bytes_max)


async def everything(logs: LogStore, limit: int = 1000) -> tuple[bytes, list[tuple[int, int]]]:
    content, gaps, offset = b"", [], 0
    while True:
        read = await logs.read(RUN_ID, 0, offset, limit)
        content += read.content
        gaps += read.gaps
        if read.end <= offset:
            return content, gaps
        offset = read.end


# --- extents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "more", "text", "taken"),
    [
        (b"abc", True, "abc", 3),
        ("größe".encode(), True, "größe", 7),
        (b"gr\xc3", True, "gr", 2),
        (b"gr\xc3", False, "gr�", 3),
        ("🚀".encode()[:3], True, "", 0),
        ("a🚀".encode()[:3], True, "a", 1),
        ("🚀".encode(), True, "🚀", 4),
        (b"a\x80", True, "a�", 2),  # a continuation that continues nothing
        (b"a\xff", True, "a�", 2),
        (b"a\xf8\x88", True, "a��", 3),  # no character begins with f8
        (b"", True, "", 0),
        (b"a\x00b", False, "a\x00b", 3),
    ],
)
def test_a_character_is_never_cut_and_what_is_invalid_is_replaced(
    content: bytes, more: bool, text: str, taken: int
) -> None:
    assert decode(content, more_may_follow=more) == (text, taken)


def test_a_plan_stops_at_a_hole_and_passes_a_gap() -> None:
    extents = [Extent(0, 10), Extent(10, 20), Extent(20, 30, gap=True), Extent(30, 40), Extent(50, 60)]
    read = plan(extents, 0, 100)
    assert (read.start, read.end, read.gaps, read.missing) == (0, 20, (), False)
    read = plan(extents, 20, 100)
    assert (read.start, read.end, read.gaps, read.missing) == (30, 40, ((20, 30),), True)
    read = plan(extents, 40, 100)
    assert (read.start, read.end, read.missing) == (40, 40, True)
    read = plan(extents, 60, 100)
    assert (read.start, read.end, read.missing) == (60, 60, False)


def test_output_that_is_here_after_all_wins_over_a_gap() -> None:
    extents = [Extent(0, 30, gap=True), Extent(10, 20)]
    assert plan(extents, 0, 100).gaps == ((0, 10),)
    read = plan(extents, 0, 100)
    assert (read.start, read.end) == (10, 20)
    assert plan(extents, 20, 100).gaps == ((20, 30),)


@pytest.mark.parametrize(
    ("extents", "start", "end", "covered"),
    [
        ([], 0, 1, False),
        ([], 5, 5, True),
        ([Extent(0, 10)], 0, 10, True),
        ([Extent(0, 10)], 0, 11, False),
        ([Extent(0, 6), Extent(4, 10)], 2, 9, True),
        ([Extent(0, 4), Extent(6, 10)], 2, 9, False),
        ([Extent(0, 4), Extent(4, 6, gap=True), Extent(6, 10)], 2, 9, True),
    ],
)
def test_what_is_covered(extents: list[Extent], start: int, end: int, covered: bool) -> None:
    assert is_covered(extents, start, end) is covered


def test_only_a_long_row_of_small_neighbours_is_merged() -> None:
    row = [Extent(n, n + 1) for n in range(MERGE_COUNT)]
    assert to_merge(row) == tuple(row)
    assert to_merge(row[:-1]) == ()
    assert to_merge([*row[:10], *row[11:]]) == ()


def test_the_head_and_the_newest_stay_within_the_bound() -> None:
    extents = [Extent(n * 10, n * 10 + 10) for n in range(20)]
    dropped = to_drop(extents, 100)
    kept = [e for e in extents if e not in dropped]
    assert sum(e.size_bytes for e in kept) <= 100
    assert kept[0].start == 0
    assert kept[-1].end == 200
    assert to_drop(extents, 200) == ()


# --- the store --------------------------------------------------------------------------------------------------------


async def test_chunks_in_any_order_and_repeated_give_the_output_once(seed: int) -> None:
    rolls = random.Random(seed)
    output = bytes(rolls.randrange(256) for _ in range(5000))
    cuts = sorted({0, len(output), *(rolls.randrange(len(output)) for _ in range(300))})
    chunks = [chunk(JOB_ID, a, output[a:b]) for a, b in pairwise(cuts)]
    chunks += [chunk(JOB_ID, a, output[a : a + 50]) for a in (rolls.randrange(4900) for _ in range(50))]
    rolls.shuffle(chunks)
    logs = store()
    for one in chunks:
        await logs.add(one)
    assert await everything(logs) == (output, [])
    assert (await logs.read(RUN_ID, 0, -10, 100)).content == output[-10:]


async def test_a_repeat_is_recognised_even_after_its_neighbours_were_merged() -> None:
    logs = store()
    chunks = [chunk(JOB_ID, n * 3, b"abc") for n in range(MERGE_COUNT)]
    assert all([await logs.add(one) for one in chunks])
    assert not any([await logs.add(one) for one in chunks])
    assert len([i async for i in logs._blobs.list(f"logs/{RUN_ID}/0/")]) == 1


async def test_a_talkative_member_is_bounded_and_says_what_is_gone() -> None:
    logs = store(member_bytes_max=100_000)
    for n in range(500):
        await logs.add(chunk(JOB_ID, n * 1000, b"%03d" % n + b"x" * 997))
    content, gaps = await everything(logs, 100_000)
    assert len(content) <= 100_000
    assert content.startswith(b"000")
    assert content[-1000:].startswith(b"499")
    assert len(gaps) == 1
    assert len(content) + gaps[0][1] - gaps[0][0] == 500_000
    assert len([i async for i in logs._blobs.list(f"logs/{RUN_ID}/0/")]) < 200


async def test_a_gap_is_told_and_not_filled_in() -> None:
    logs = store()
    await logs.add(chunk(JOB_ID, 0, b"head"))
    await logs.add(chunk(JOB_ID, 4, b"", gap_to=1000))
    await logs.add(chunk(JOB_ID, 1000, b"tail"))
    assert await everything(logs) == (b"headtail", [(4, 1000)])


# --- the API ----------------------------------------------------------------------------------------------------------


async def test_a_log_is_read_by_range_with_characters_whole(tmp_path: Path) -> None:
    output = "Schritt 1: größer 🚀\n".encode() * 20
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(submitted(JOB_ID), decided(JOB_ID, S.ASSIGNED, 1), started(JOB_ID))
        for start in range(0, len(output), 7):  # cuts characters
            await under_test.context.logs.add(chunk(JOB_ID, start, output[start : start + 7]))
        text, offset = "", 0
        while offset < len(output):
            answer = (
                await under_test.http.get(f"/v1/jobs/{JOB_ID}/log", params={"offset": offset, "limit": 16})
            ).json()
            assert answer["offset"] == offset
            assert answer["end"] > offset
            text, offset = text + answer["text"], answer["end"]
        assert text.encode() == output
        raw = await under_test.http.get(f"/v1/jobs/{JOB_ID}/log", params={"raw": True, "offset": 3, "limit": 100})
        assert raw.content == output[3:103]
        assert (raw.headers["log-offset"], raw.headers["log-end"], raw.headers["log-total"]) == (
            "3",
            "103",
            str(len(output)),
        )


async def test_invalid_bytes_are_replaced_and_the_end_is_told(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(submitted(JOB_ID), decided(JOB_ID, S.ASSIGNED, 1), started(JOB_ID))
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"50%|\xe2"))
        page = (await under_test.http.get(f"/v1/jobs/{JOB_ID}/log")).json()
        assert (page["text"], page["end"], page["complete"]) == ("50%|", 4, False)  # its rest may still come
        await under_test.fold(exited(JOB_ID, log_bytes=5))
        page = (await under_test.http.get(f"/v1/jobs/{JOB_ID}/log")).json()
        assert (page["text"], page["end"], page["complete"]) == ("50%|�", 5, True)


async def test_there_is_no_log_before_the_first_attempt_and_none_of_a_member_too_many(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(submitted(JOB_ID))
        early = await under_test.http.get(f"/v1/jobs/{JOB_ID}/log")
        assert early.status_code == 404
        assert "not started" in early.json()["detail"]
        await under_test.fold(decided(JOB_ID, S.ASSIGNED, 1))
        assert (await under_test.http.get(f"/v1/jobs/{JOB_ID}/log", params={"member": 1})).status_code == 404
        assert (await under_test.http.get(f"/v1/jobs/{JOB_ID}/log")).json()["text"] == ""


# --- following --------------------------------------------------------------------------------------------------------


async def told_by(
    under_test: IngestUnderTest, attempt: int | None = None, offset: int = 0
) -> AsyncIterator[tuple[str, Any]]:
    async for one in under_test.context.follower.follow(JOB_ID, attempt, 0, offset):
        if one is not None:
            yield one


async def test_a_follower_is_told_as_it_comes_until_the_end(tmp_path: Path) -> None:
    async with ingesting(tmp_path, stream_poll_s=0.05) as under_test:
        await under_test.fold(submitted(JOB_ID))
        told: list[tuple[str, Any]] = []

        async def follow() -> None:
            async for one in told_by(under_test):
                told.append(one)  # noqa: PERF401 - looked at while it grows

        following_ = asyncio.create_task(follow())
        await under_test.fold(decided(JOB_ID, S.ASSIGNED, 1), started(JOB_ID))
        await eventually(lambda: told)
        assert told[0] == ("attempt", {"attempt": 1, "run_id": RUN_ID, "member": 0})
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"a\xc3"))
        await eventually(lambda: len(told) > 1)
        assert told[-1] == ("log", {"offset": 0, "end": 1, "text": "a"})
        await under_test.context.logs.add(chunk(JOB_ID, 2, b"\xa4"))
        await under_test.fold(exited(JOB_ID, log_bytes=3), decided(JOB_ID, S.SUCCEEDED, 2))
        async with asyncio.timeout(10):
            await following_
        assert told[-2:] == [
            ("log", {"offset": 1, "end": 3, "text": "ä"}),
            ("end", {"state": "SUCCEEDED", "attempt": 1, "offset": 3}),
        ]


async def test_a_follower_goes_on_with_the_next_attempt(tmp_path: Path) -> None:
    async with ingesting(tmp_path, stream_poll_s=0.02) as under_test:
        await under_test.fold(
            submitted(JOB_ID),
            decided(JOB_ID, S.ASSIGNED, 1),
            started(JOB_ID),
            exited(JOB_ID, 1, log_bytes=5),
            decided(JOB_ID, S.QUEUED, 2),
        )
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"first"))
        told: list[tuple[str, Any]] = []

        async def follow() -> None:
            async for one in told_by(under_test):
                told.append(one)  # noqa: PERF401 - looked at while it grows

        task = asyncio.create_task(follow())
        await eventually(lambda: len(told) == 2)
        await under_test.fold(
            decided(JOB_ID, S.ASSIGNED, 3, attempt=2),
            exited(JOB_ID, 0, attempt=2, log_bytes=6),
            decided(JOB_ID, S.SUCCEEDED, 4, attempt=2),
        )
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"second", attempt=2))
        async with asyncio.timeout(10):
            await task
        assert [(kind, what.get("text")) for kind, what in told] == [
            ("attempt", None), ("log", "first"), ("attempt", None), ("log", "second"), ("end", None),
        ]  # fmt: skip


async def test_bytes_that_never_came_become_a_gap_and_do_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LATE_S", 0.1)
    async with ingesting(tmp_path, stream_poll_s=0.02) as under_test:
        await under_test.fold(
            submitted(JOB_ID),
            decided(JOB_ID, S.ASSIGNED, 1),
            exited(JOB_ID, log_bytes=30),
            decided(JOB_ID, S.SUCCEEDED, 2),
        )
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"0123456789"))
        await under_test.context.logs.add(chunk(JOB_ID, 15, b"56789"))
        async with asyncio.timeout(10):
            told = [one async for one in told_by(under_test)]
        assert told[1:] == [
            ("log", {"offset": 0, "end": 10, "text": "0123456789"}),
            ("gap", {"start": 10, "end": 15}),
            ("log", {"offset": 15, "end": 20, "text": "56789"}),
            ("gap", {"start": 20, "end": 30}),
            ("end", {"state": "SUCCEEDED", "attempt": 1, "offset": 30}),
        ]


async def test_a_lost_run_ends_its_stream_although_nobody_tells_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LATE_S", 0.1)
    async with ingesting(tmp_path, stream_poll_s=0.02) as under_test:
        await under_test.fold(submitted(JOB_ID), decided(JOB_ID, S.ASSIGNED, 1), decided(JOB_ID, S.FAILED, 2))
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"last words\xe2"))
        async with asyncio.timeout(10):
            told = [one async for one in told_by(under_test, attempt=1)]
        assert "".join(what["text"] for kind, what in told if kind == "log") == "last words�"
        assert told[-1][0] == "end"


async def test_the_stream_over_http_is_server_sent_events(tmp_path: Path) -> None:
    async with ingesting(tmp_path, stream_poll_s=0.02) as under_test:
        await under_test.fold(
            submitted(JOB_ID),
            decided(JOB_ID, S.ASSIGNED, 1),
            exited(JOB_ID, log_bytes=6),
            decided(JOB_ID, S.SUCCEEDED, 2),
        )
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"a\nb\r\nc"))
        answer = await under_test.http.get(f"/v1/jobs/{JOB_ID}/log/follow")
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = [
            dict(line.split(": ", 1) for line in block.split("\n")) for block in answer.text.strip().split("\n\n")
        ]
        assert [block["event"] for block in blocks] == ["attempt", "log", "end"]
        assert json.loads(blocks[1]["data"])["text"] == "a\nb\r\nc"
        assert under_test.context.streams.open == 0


async def test_streams_are_bounded_and_places_come_back(tmp_path: Path) -> None:
    async with ingesting(tmp_path, streams_max=1) as under_test:
        await under_test.fold(submitted(JOB_ID), decided(JOB_ID, S.CANCELLED, 1, attempt=0))
        under_test.context.streams.acquire()
        full = await under_test.http.get(f"/v1/jobs/{JOB_ID}/log/follow")
        assert full.status_code == 503
        assert int(full.headers["retry-after"]) > 0
        under_test.context.streams.release()
        assert (await under_test.http.get(f"/v1/jobs/{JOB_ID}/log/follow")).status_code == 200
        assert under_test.context.streams.open == 0


async def test_a_stopping_server_ends_its_streams(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        await under_test.fold(submitted(JOB_ID))
        task = asyncio.create_task(under_test.http.get(f"/v1/jobs/{JOB_ID}/log/follow"))
        await eventually(lambda: under_test.context.streams.open == 1)
        under_test.context.streams.close()
        async with asyncio.timeout(5):
            assert (await task).status_code == 200
