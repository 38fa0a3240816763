"""How blobs lie on a disk: sharded, whole or not at all, for their owner alone."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from schedmate.infra.blobs.files import FileBlobs
from schedmate.infra.blobs.port import BlobsUnavailableError
from schedmate.infra.clock import VirtualClock

DAY_S = 86400


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def blobs(tmp_path, clock) -> FileBlobs:
    blobs = FileBlobs(tmp_path / "blobs", clock)
    await blobs.start()
    return blobs


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_space_is_spread_over_many_folders_that_vanish_when_they_are_empty(blobs, tmp_path):
    for n in range(300):
        await blobs.put(f"bundles/{n:064x}", b"x")
    assert 100 < len(list((tmp_path / "blobs" / "bundles").iterdir())) <= 256
    for n in range(300):
        assert await blobs.delete(f"bundles/{n:064x}")
    assert list((tmp_path / "blobs" / "bundles").iterdir()) == []


async def test_blobs_are_their_owners_alone(blobs, tmp_path):
    old = os.umask(0)
    try:
        await blobs.put("logs/run/0/0-1", b"x")
    finally:
        os.umask(old)
    for path in (tmp_path / "blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


async def test_a_content_is_flushed_before_it_has_its_name(blobs, monkeypatch):
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        steps.append("name")
        return real_replace(self, target)

    await blobs.put("logs/a/0", b"x")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    await blobs.put("logs/a/1", b"x")
    assert steps == ["content", "name", "folder"]


async def test_a_disk_that_refuses_leaves_the_old_content_and_no_rest(blobs, tmp_path, monkeypatch):
    await blobs.put("logs/a", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BlobsUnavailableError, match="No space left"):
        await blobs.put("logs/a", b"new")
    monkeypatch.undo()
    assert await blobs.get("logs/a") == b"old"
    assert len(files(tmp_path / "blobs")) == 1


async def test_what_a_dead_process_left_is_removed_at_a_start_a_day_later(blobs, tmp_path, clock):
    incoming = tmp_path / "blobs" / ".incoming"
    for name, age_s in (("old", DAY_S + 1), ("young", 60)):
        (incoming / name).write_bytes(b"x")
        os.utime(incoming / name, (clock.now() - age_s, clock.now() - age_s))
    await FileBlobs(tmp_path / "blobs", clock).start()
    assert [path.name for path in incoming.iterdir()] == ["young"]


async def test_blobs_whose_folder_is_gone_are_unavailable(blobs, tmp_path):
    (tmp_path / "blobs" / ".incoming").rmdir()
    with pytest.raises(BlobsUnavailableError, match="gone"):
        await blobs.put("logs/a", b"x")


async def test_a_reader_keeps_the_content_that_it_began_with(blobs):
    await blobs.put("logs/a", b"old" * 100_000)
    reading = blobs.stream("logs/a", chunk_bytes=1000)
    read = await anext(reading)
    await blobs.put("logs/a", b"new")
    await blobs.delete("logs/a")
    read += b"".join([chunk async for chunk in reading])
    assert read == b"old" * 100_000


async def test_what_is_no_blob_is_not_listed(blobs, tmp_path):
    await blobs.put("logs/a/0", b"x")
    [stored] = files(tmp_path / "blobs" / "logs")
    (stored.parent / "link@").symlink_to("/etc/passwd")
    assert [info.address async for info in blobs.list("logs/")] == ["logs/a/0"]
