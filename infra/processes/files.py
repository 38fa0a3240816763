"""Durable files: written whole or not at all, appended line by line, locked while their owner lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from schedmate.infra.processes.supervisor import sync_directory, write_atomically


class LockedError(Exception):
    """Another process holds the lock."""


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file atomically; `durable` survives a power loss as well. The mode is 0600."""
    write_atomically(str(path), content, durable=durable)


def read_whole(path: Path) -> bytes | None:
    """Return a file's content, or None when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class FileLock:
    """An exclusive lock that ends with its process, however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock. Raises LockedError when another process holds it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise LockedError(f"{self._path} is held by another process") from error
        self._handle = handle

    def release(self) -> None:
        """Let go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class AppendedLines:
    """A file of lines, each durable when `append` returns. A line torn by a crash is cut off at opening."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def open(self) -> list[bytes]:
        """Open for appending and return the whole lines that are there."""
        existed = self._path.exists()
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if not existed:
            sync_directory(str(self._path.parent))
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) != len(content):
            os.ftruncate(self._handle, len(whole))
            os.fsync(self._handle)
        return whole.splitlines()

    def append(self, line: bytes) -> None:
        """Append one line (without its end) and sync it."""
        if self._handle is None:
            raise ValueError(f"{self._path} is not open")
        view = memoryview(line + b"\n")
        while view:
            view = view[os.write(self._handle, view) :]
        os.fdatasync(self._handle)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
