"""The port `Blobs`: source bundles and log chunks, by content hash or address; bounded, kept for N days."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Protocol


class BlobError(Exception):
    """The blob store could not do what was asked."""


class BlobAddressError(BlobError, ValueError):
    """The address is none: `space/name[/name…]` of letters, digits, `.`, `_` and `-`, no name beginning with a dot."""


class BlobTooLargeError(BlobError):
    """The content is larger than the caller's bound."""


class BlobHashMismatchError(BlobError):
    """The content does not have the hash that was announced."""


class BlobsUnavailableError(BlobError):
    """The blob store did not answer in time."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What is stored at an address."""

    address: str
    size_bytes: int
    stored_at: float


class Blobs(Protocol):
    """Content by address. An address is `space/name`: `bundles/<sha256>`, `logs/<run>/<member>/<start>-<end>`."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...

    async def put(self, address: str, content: bytes) -> None:
        """Store content at an address; the same address again replaces it."""
        ...

    async def put_stream(
        self, space: str, content: AsyncIterable[bytes], *, size_max_bytes: int, expected_sha256: str | None = None
    ) -> BlobInfo:
        """Store a stream under `space/<its sha256>`; whole or not at all.

        Raises:
            BlobTooLargeError, BlobHashMismatchError
        """
        ...

    async def get(self, address: str) -> bytes | None:
        """Return the content, or None."""
        ...

    def stream(self, address: str, chunk_bytes: int = 262144) -> AsyncIterator[bytes]:
        """Yield the content in chunks. Raises KeyError when there is none."""
        ...

    async def info(self, address: str) -> BlobInfo | None:
        """Return size and time, or None."""
        ...

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield what is stored under an address prefix that ends in `/`, in the order of addresses."""
        ...

    async def delete(self, address: str) -> bool:
        """Remove it; False when there was none."""
        ...

    async def expire(self, space: str, *, older_than: float) -> int:
        """Remove what was stored in a space before this time (Unix seconds); return how many."""
        ...
