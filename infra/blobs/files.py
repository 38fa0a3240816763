"""Blobs as files under one folder, on a local disk or on storage that several machines share.

    bundles/ab12…       ->  <folder>/bundles/7f/ab12…@
    logs/<run>/0/0-99   ->  <folder>/logs/3c/<run>/0/0-99@

The two digits spread a space over 256 folders. The `@` marks content, so that a blob and a folder never want the same name.
A file appears whole or not at all: written aside, flushed, renamed into place; its time is the injected clock's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from schedmate.infra.blobs.address import checked_address, checked_prefix, checked_sha256, checked_space
from schedmate.infra.blobs.port import (
    BlobError,
    BlobHashMismatchError,
    BlobInfo,
    BlobsUnavailableError,
    BlobTooLargeError,
)
from schedmate.infra.clock import Clock

T = TypeVar("T")

_MARK: Final = "@"
_INCOMING: Final = ".incoming"
_LEFT_BEHIND_S: Final = 86400.0
"""Age at which an unfinished file belongs to a process that died."""
_ANSWER_S: Final = 60.0
_LIST_PAGE: Final = 1000
_PUBLISH_ATTEMPTS: Final = 10


class FileBlobs:
    """Blobs as files.

    Args:
        folder: made when it is missing, readable by its owner only.
        clock: gives blobs their time.
    """

    def __init__(self, folder: Path | str, clock: Clock) -> None:
        self._folder = Path(folder)
        self._clock = clock

    async def start(self) -> None:
        """Make the folder, and remove what dead processes left unfinished."""
        await _off_loop(self._prepare)

    async def stop(self) -> None:
        """Nothing to disconnect from."""

    async def put(self, address: str, content: bytes) -> None:
        """Store content at an address."""
        path = self._path(address)
        await _off_loop(lambda: self._store(path, content))

    async def put_stream(
        self, space: str, content: AsyncIterable[bytes], *, size_max_bytes: int, expected_sha256: str | None = None
    ) -> BlobInfo:
        """Store a stream under `space/<its sha256>`; whole or not at all."""
        checked_space(space)
        checked_sha256(expected_sha256)
        incoming = await _off_loop(self._incoming)
        try:
            digest, size = hashlib.sha256(), 0
            async for chunk in content:
                size += len(chunk)
                if size > size_max_bytes:
                    raise BlobTooLargeError(f"the content is larger than {size_max_bytes} bytes")
                await _off_loop(partial(_append, incoming, digest, chunk))
            found = digest.hexdigest()
            if expected_sha256 is not None and found != expected_sha256:
                raise BlobHashMismatchError(f"the content has the hash {found}, announced was {expected_sha256}")
            address = f"{space}/{found}"
            stored_at = await _off_loop(lambda: self._publish(incoming, self._path(address)))
            return BlobInfo(address, size, stored_at)
        finally:
            await _off_loop(lambda: _discard(incoming))

    async def get(self, address: str) -> bytes | None:
        """Return the content, or None."""
        path = self._path(address)

        def read() -> bytes | None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return path.read_bytes()
            return None

        return await _off_loop(read)

    async def stream(self, address: str, chunk_bytes: int = 262144) -> AsyncIterator[bytes]:
        """Yield the content in chunks; a blob that is replaced or removed meanwhile is still read to its end."""
        path = self._path(address)
        try:
            content = await _off_loop(lambda: path.open("rb"))
        except (FileNotFoundError, NotADirectoryError):
            raise KeyError(address) from None
        try:
            while chunk := await _off_loop(lambda: content.read(chunk_bytes)):
                yield chunk
        finally:
            content.close()

    async def info(self, address: str) -> BlobInfo | None:
        """Return size and time, or None."""
        path = self._path(address)
        return await _off_loop(lambda: _info(path, address))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield what is stored under an address prefix, in the order of addresses."""
        parts = checked_prefix(prefix)
        found = self._walk(parts)
        while True:
            page = await _off_loop(lambda: [info for _, info in zip(range(_LIST_PAGE), found, strict=False)])
            for info in page:
                yield info
            if len(page) < _LIST_PAGE:
                return

    async def delete(self, address: str) -> bool:
        """Remove it; False when there was none."""
        path = self._path(address)
        return await _off_loop(lambda: self._remove(path))

    async def expire(self, space: str, *, older_than: float) -> int:
        """Remove what was stored in a space before this time."""
        parts = (checked_space(space),)

        def expire() -> int:
            old = [i for i in self._walk(parts) if i.stored_at < older_than]
            return sum(self._expire(i.address, older_than) for i in old)

        return await _off_loop(expire, answer_s=600.0)

    def _path(self, address: str) -> Path:
        space, first, *rest = checked_address(address)
        *folders, name = [first, *rest]
        return self._folder.joinpath(space, _shard(first), *folders, name + _MARK)

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        incoming = self._folder / _INCOMING
        incoming.mkdir(exist_ok=True, mode=0o700)
        for left in incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < self._clock.now() - _LEFT_BEHIND_S:
                    left.unlink()

    def _incoming(self) -> BinaryIO:
        try:
            return tempfile.NamedTemporaryFile(dir=self._folder / _INCOMING, delete=False)  # type: ignore[return-value]
        except FileNotFoundError as error:
            raise BlobsUnavailableError(f"{self._folder} is gone, or the blobs were never started") from error

    def _store(self, path: Path, content: bytes) -> None:
        incoming = self._incoming()
        try:
            incoming.write(content)
            self._publish(incoming, path)
        finally:
            _discard(incoming)

    def _publish(self, incoming: BinaryIO, path: Path) -> float:
        """Flush the content to the disk, then give it its name; return its time."""
        incoming.flush()
        now_ns = int(self._clock.now() * 1e9)
        os.utime(incoming.fileno(), ns=(now_ns, now_ns))
        os.fsync(incoming.fileno())
        for _ in range(_PUBLISH_ATTEMPTS):
            self._make_folders(path.parent)
            with contextlib.suppress(
                FileNotFoundError
            ):  # another process removed the folder, which was empty for a moment
                Path(incoming.name).replace(path)
                _flush_folder(path.parent)
                return os.fstat(incoming.fileno()).st_mtime
        raise BlobsUnavailableError(f"{path.parent} vanishes whenever it is made")

    def _make_folders(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            _flush_folder(folder.parent)

    def _remove(self, path: Path) -> bool:
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        _flush_folder(path.parent)
        for folder in path.parents:
            if folder.parent == self._folder:
                break
            try:
                folder.rmdir()
            except OSError:
                break  # something else is stored there
        return True

    def _expire(self, address: str, older_than: float) -> bool:
        path = self._path(address)
        info = _info(path, address)  # looked at again: it may have been stored anew since the walk
        return info is not None and info.stored_at < older_than and self._remove(path)

    def _walk(self, parts: tuple[str, ...]) -> Iterator[BlobInfo]:
        space, *rest = parts
        top = self._folder / space
        if rest:
            yield from _walk(top.joinpath(_shard(rest[0]), *rest), "/".join(parts) + "/")
            return
        entries = [(name, shard / found) for shard in _folders(top) for name, found in _entries(shard)]
        for name, path in sorted(entries):
            yield from _one(name, path, f"{space}/")


def _walk(folder: Path, prefix: str) -> Iterator[BlobInfo]:
    for name, found in sorted(_entries(folder)):
        yield from _one(name, folder / found, prefix)


def _one(name: str, path: Path, prefix: str) -> Iterator[BlobInfo]:
    if name.endswith("/"):
        yield from _walk(path, prefix + name)
    elif (info := _info(path, prefix + name)) is not None:
        yield info


def _entries(folder: Path) -> list[tuple[str, str]]:
    """Return (part of an address, file name) of what lies in a folder; folders' parts end in a slash, as addresses order them."""
    try:
        with os.scandir(folder) as found:
            return [
                (e.name.removesuffix(_MARK), e.name) if e.name.endswith(_MARK) else (e.name + "/", e.name)
                for e in found
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(top: Path) -> list[Path]:
    return [top / found for _, found in sorted(_entries(top))]


def _info(path: Path, address: str) -> BlobInfo | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return BlobInfo(address, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None


def _shard(part: str) -> str:
    return hashlib.sha256(part.encode()).hexdigest()[:2]


def _append(incoming: BinaryIO, digest: hashlib._Hash, chunk: bytes) -> None:
    digest.update(chunk)
    incoming.write(chunk)


def _discard(incoming: BinaryIO) -> None:
    """Close the file, and remove it if it still bears its first name."""
    incoming.close()
    with contextlib.suppress(FileNotFoundError):
        Path(incoming.name).unlink()


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


async def _off_loop(call: Callable[[], T], answer_s: float = _ANSWER_S) -> T:
    try:
        async with asyncio.timeout(answer_s):
            return await asyncio.to_thread(call)
    except TimeoutError as error:
        raise BlobsUnavailableError(f"the disk did not answer within {answer_s} s") from error
    except (FileNotFoundError, NotADirectoryError, BlobError):
        raise
    except OSError as error:
        raise BlobsUnavailableError(f"the disk refuses: {error}") from error
