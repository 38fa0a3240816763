"""Blobs in memory, for tests and simulations."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator

from schedmate.infra.blobs.address import checked_address, checked_prefix, checked_sha256, checked_space
from schedmate.infra.blobs.port import BlobHashMismatchError, BlobInfo, BlobTooLargeError
from schedmate.infra.clock import Clock


class MemoryBlobs:
    """Contents in a dictionary; nothing survives the object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._contents: dict[str, tuple[bytes, float]] = {}

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to disconnect from."""

    async def put(self, address: str, content: bytes) -> None:
        """Store content at an address."""
        checked_address(address)
        await asyncio.sleep(0)
        self._contents[address] = (bytes(content), self._clock.now())

    async def put_stream(
        self, space: str, content: AsyncIterable[bytes], *, size_max_bytes: int, expected_sha256: str | None = None
    ) -> BlobInfo:
        """Store a stream under `space/<its sha256>`; whole or not at all."""
        checked_space(space)
        checked_sha256(expected_sha256)
        received = bytearray()
        async for chunk in content:
            received += chunk
            if len(received) > size_max_bytes:
                raise BlobTooLargeError(f"the content is larger than {size_max_bytes} bytes")
        digest = hashlib.sha256(received).hexdigest()
        if expected_sha256 is not None and digest != expected_sha256:
            raise BlobHashMismatchError(f"the content has the hash {digest}, announced was {expected_sha256}")
        address = f"{space}/{digest}"
        await self.put(address, bytes(received))
        return BlobInfo(address, len(received), self._contents[address][1])

    async def get(self, address: str) -> bytes | None:
        """Return the content, or None."""
        checked_address(address)
        await asyncio.sleep(0)
        stored = self._contents.get(address)
        return None if stored is None else stored[0]

    async def stream(self, address: str, chunk_bytes: int = 262144) -> AsyncIterator[bytes]:
        """Yield the content in chunks."""
        content = await self.get(address)
        if content is None:
            raise KeyError(address)
        for begin in range(0, len(content), chunk_bytes):
            yield content[begin : begin + chunk_bytes]

    async def info(self, address: str) -> BlobInfo | None:
        """Return size and time, or None."""
        checked_address(address)
        stored = self._contents.get(address)
        return None if stored is None else BlobInfo(address, len(stored[0]), stored[1])

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield what is stored under an address prefix, in the order of addresses."""
        checked_prefix(prefix)
        for address in sorted(a for a in self._contents if a.startswith(prefix)):
            info = await self.info(address)
            if info is not None:
                yield info

    async def delete(self, address: str) -> bool:
        """Remove it; False when there was none."""
        checked_address(address)
        await asyncio.sleep(0)
        return self._contents.pop(address, None) is not None

    async def expire(self, space: str, *, older_than: float) -> int:
        """Remove what was stored in a space before this time."""
        prefix = f"{checked_space(space)}/"
        old = [a for a, (_, at) in self._contents.items() if a.startswith(prefix) and at < older_than]
        for address in old:
            del self._contents[address]
        return len(old)
