"""Source bundles: checked, kept by hash, and given only to those who brought them or may fetch any."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

from schedmate.infra.blobs.port import BlobInfo, Blobs
from schedmate.infra.bundles import BundleError, BundleLimits, open_bundle
from schedmate.services.ingest.access import Principal, Scope

SPACE: Final = "bundles"
OWNERS: Final = "bundle-owners"
CHUNK_BYTES: Final = 256 * 1024


class BundleRefusedError(Exception):
    """The bundle is not what it should be; the message says what to mend."""


class BundleTooLargeError(Exception):
    """The bundle is larger than the limit."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A stored bundle."""

    sha256: str
    size_bytes: int
    names: tuple[str, ...]


class Bundles:
    """Takes bundles in, and knows who may use which."""

    def __init__(self, blobs: Blobs, *, size_max_bytes: int, limits: BundleLimits) -> None:
        self._blobs = blobs
        self._size_max_bytes = size_max_bytes
        self._limits = limits

    async def take(self, content: AsyncIterable[bytes], tenant: str, expected_sha256: str | None = None) -> Bundle:
        """Store a bundle whole, after it has been checked; it is never extracted here.

        Raises:
            BundleTooLargeError: more bytes than a bundle may have.
            BundleRefusedError: no archive, an unsafe one, or another one than was announced.
            BlobError: the blob store did not take it.
        """
        with tempfile.NamedTemporaryFile(prefix="schedmate-bundle-") as spool:
            digest, size_bytes = await self._spool(content, spool)
            if expected_sha256 is not None and digest != expected_sha256:
                raise BundleRefusedError(f"the bundle's sha256 is {digest}, not {expected_sha256}; upload it again")
            names = await asyncio.to_thread(self._checked_names, Path(spool.name))
            spool.seek(0)
            await self._blobs.put_stream(
                SPACE, _chunks(spool), size_max_bytes=self._size_max_bytes, expected_sha256=digest
            )
        await self._blobs.put(_owner(tenant, digest), b"")
        return Bundle(digest, size_bytes, names)

    async def _spool(self, content: AsyncIterable[bytes], spool: IO[bytes]) -> tuple[str, int]:
        hashed = sha256()
        size_bytes = 0
        async for chunk in content:
            size_bytes += len(chunk)
            if size_bytes > self._size_max_bytes:
                raise BundleTooLargeError(f"a bundle has at most {self._size_max_bytes} bytes")
            hashed.update(chunk)
            await asyncio.to_thread(spool.write, chunk)
        await asyncio.to_thread(spool.flush)
        return hashed.hexdigest(), size_bytes

    def _checked_names(self, path: Path) -> tuple[str, ...]:
        try:
            with open_bundle(path, self._limits) as bundle:
                return tuple(bundle.names())
        except BundleError as error:
            raise BundleRefusedError(str(error)) from error

    async def may_use(self, digest: str, tenant: str, principal: Principal) -> bool:
        """Tell whether a tenant's job may use a bundle: it is here, and the tenant brought it."""
        if await self._blobs.info(f"{SPACE}/{digest}") is None:
            return False
        return principal.may(Scope.OPERATE) or await self._blobs.info(_owner(tenant, digest)) is not None

    async def found(self, digest: str, principal: Principal) -> BlobInfo | None:
        """Return a bundle that the principal may fetch, or None."""
        info = await self._blobs.info(f"{SPACE}/{digest}")
        if info is None or principal.may(Scope.BUNDLES) or principal.may(Scope.OPERATE):
            return info
        return info if await self._blobs.info(_owner(principal.tenant, digest)) is not None else None

    def stream(self, digest: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes."""
        return self._blobs.stream(f"{SPACE}/{digest}", CHUNK_BYTES)


def _owner(tenant: str, digest: str) -> str:
    return f"{OWNERS}/{tenant}/{digest}"


async def _chunks(spool: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(spool.read, CHUNK_BYTES):
        yield chunk
