"""Where a job's source comes from: its bundle, checked by hash, cached, and unpacked once into the job's directory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import httpx

from schedmate.infra.blobs.port import BlobError, Blobs
from schedmate.infra.bundles import BundleError, BundleLimits, open_bundle
from schedmate.infra.processes.files import FileLock, LockedError

SPACE: Final = "bundles"
LOCK_RETRY_S: Final = 0.2


class SourceError(Exception):
    """The source could not be fetched or unpacked."""


class Bundles(Protocol):
    """Where bundles are fetched."""

    def stream(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes. Raises SourceError."""
        ...


class BundlesOverHttp:
    """Bundles from ingest's API."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def stream(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes."""
        try:
            async with self._client.stream("GET", f"/v1/bundles/{sha256}") as response:
                if response.status_code != httpx.codes.OK:
                    raise SourceError(f"ingest answers {response.status_code} to the request for bundle {sha256}")
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.HTTPError as error:
            raise SourceError(f"bundle {sha256} cannot be fetched: {type(error).__name__} {error}") from error


class BundlesFromBlobs:
    """Bundles straight from the blob store, in the single process."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def stream(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes."""
        try:
            async for chunk in self._blobs.stream(f"{SPACE}/{sha256}"):
                yield chunk
        except KeyError as error:
            raise SourceError(f"there is no bundle {sha256}") from error
        except BlobError as error:
            raise SourceError(f"bundle {sha256} cannot be read: {error}") from error


class Sources:
    """Makes `DIRECTORY/source` from a bundle, whole or not at all; members of a gang that share the directory share it."""

    def __init__(
        self,
        cache: Path,
        bundles: Bundles | None,
        *,
        bytes_max: int,
        timeout_s: float,
        cache_bytes: int,
        owner: str | None = None,
    ) -> None:
        self._cache = cache
        self._bundles = bundles
        self._cache_bytes = cache_bytes
        self._owner = owner
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s

    async def unpacked(self, sha256: str, job_directory: Path) -> Path:
        """Return the directory of a job's source; it is kept across attempts. Raises SourceError."""
        target = job_directory / "source"
        if await asyncio.to_thread(target.is_dir):
            return target
        try:
            async with asyncio.timeout(self._timeout_s):
                bundle = await self._fetched(sha256)
                await self._unpack(bundle, job_directory, target)
        except TimeoutError as error:
            raise SourceError(f"bundle {sha256} was not there within {self._timeout_s:g} s") from error
        except OSError as error:
            raise SourceError(f"bundle {sha256} cannot be unpacked: {error}") from error
        return target

    async def _fetched(self, sha256: str) -> Path:
        path = self._cache / sha256
        if await asyncio.to_thread(_touch, path):
            return path
        if self._bundles is None:
            raise SourceError("no place to fetch bundles from: set `api`")
        self._cache.mkdir(parents=True, exist_ok=True)
        temporary = _new_file(self._cache, sha256)  # a name of its own: jobs may fetch the same side by side
        try:
            await self._download(sha256, temporary)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        await asyncio.to_thread(_trim, self._cache, self._cache_bytes, path)
        return path

    async def _download(self, sha256: str, path: Path) -> None:
        assert self._bundles is not None
        digest, size = hashlib.sha256(), 0
        with path.open("wb") as file:
            async for chunk in self._bundles.stream(sha256):
                size += len(chunk)
                if size > self._bytes_max:
                    raise SourceError(f"bundle {sha256} is larger than {self._bytes_max} bytes")
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        if digest.hexdigest() != sha256:
            raise SourceError(f"what was fetched as bundle {sha256} has the hash {digest.hexdigest()}")

    async def _unpack(self, bundle: Path, job_directory: Path, target: Path) -> None:
        workshop = job_directory.parent / ".unpacking"  # not in the job's directory: that one may belong to its user
        workshop.mkdir(mode=0o700, exist_ok=True)
        lock = FileLock(workshop / f"{job_directory.name}.lock")
        while True:  # another member of the gang may be at it, on this node or through shared storage
            try:
                lock.take()
                break
            except LockedError:
                await asyncio.sleep(LOCK_RETRY_S)
        try:
            await asyncio.to_thread(self._unpack_whole, bundle, workshop / job_directory.name, target)
        finally:
            lock.release()

    def _unpack_whole(self, bundle: Path, temporary: Path, target: Path) -> None:
        if target.is_dir():  # another member was quicker
            return
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            with open_bundle(bundle, BundleLimits()) as opened:
                opened.unpack_into(temporary)
        except BundleError as error:
            raise SourceError(f"{bundle.name} cannot be unpacked: {error}") from error
        if self._owner is not None:
            give_to(temporary, self._owner)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(target)


def _touch(path: Path) -> bool:
    """Mark a cached bundle as used just now; False when there is none."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _trim(cache: Path, bytes_max: int, newest: Path) -> None:
    """Remove what was used longest ago until the rest fits; the newest stays in any case."""
    known = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in cache.iterdir() if path.suffix == "")
    size = sum(one for _, one, _ in known)
    for _, one, path in known:
        if size <= bytes_max:
            return
        if path != newest:
            path.unlink(missing_ok=True)
            size -= one


def _new_file(directory: Path, prefix: str) -> Path:
    handle, name = tempfile.mkstemp(dir=directory, prefix=f"{prefix}.")
    os.close(handle)
    return Path(name)


def give_to(directory: Path, user: str) -> None:
    """Give a directory that nobody else can reach yet, with all in it, to the account that runs the job."""
    account = pwd.getpwnam(user)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
