"""What a checkpoint directory holds, as a bounded listing: names, sizes, times. Nothing in it is opened but a small marker's few bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from schedmate.schemas.events import CheckpointEntry

ENTRIES_MAX: Final = 200
LOOKED_AT_MAX: Final = 2000
INSIDE_MAX: Final = 500
MARKER_BYTES_MAX: Final = 64
NAME_MAX: Final = 200
_MARKERS: Final = frozenset({"latest", "latest_checkpointed_iteration.txt", "last_checkpoint", "checkpoint"})


def listing(directory: Path) -> tuple[CheckpointEntry, ...]:
    """Return the newest entries of a directory, at most ENTRIES_MAX; empty when there is none or it may not be read.

    No link is followed. A directory's size and time are those of the files in it (two levels deep).
    """
    found: list[CheckpointEntry] = []
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= LOOKED_AT_MAX:
                    break
                one = _entry(entry)
                if one is not None:
                    found.append(one)
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda e: (e.modified_at, e.name))[-ENTRIES_MAX:])


def _entry(entry: os.DirEntry[str]) -> CheckpointEntry | None:
    if len(entry.name) > NAME_MAX or not entry.name.isprintable():
        return None
    try:
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            size, files, newest = _inside(entry.path, depth=1)
            return CheckpointEntry(name=entry.name, size_bytes=size, files=files, modified_at=newest or found.st_mtime)
        if not stat.S_ISREG(found.st_mode):
            return None
        marker = _marker(entry) if entry.name in _MARKERS and found.st_size <= MARKER_BYTES_MAX else None
        return CheckpointEntry(name=entry.name, size_bytes=found.st_size, modified_at=found.st_mtime, marker=marker)
    except OSError:
        return None


def _inside(path: str, depth: int) -> tuple[int, int, float]:
    size, files, newest = 0, 0, 0.0
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number >= INSIDE_MAX:
                break
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                size, files, newest = size + found.st_size, files + 1, max(newest, found.st_mtime)
            elif stat.S_ISDIR(found.st_mode) and depth > 0:
                inner = _inside(entry.path, depth - 1)
                size, files, newest = size + inner[0], files + inner[1], max(newest, inner[2])
    return size, files, newest


def _marker(entry: os.DirEntry[str]) -> str | None:
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(MARKER_BYTES_MAX).decode("utf-8", "replace").strip()
    return text if text.isprintable() else None
