"""Where a job's bundle is fetched from: the blob store, or ingest over HTTP; into a file, with its hash checked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import httpx

from schedmate.infra.blobs.port import BlobError, Blobs, BlobsUnavailableError

SPACE: Final = "bundles"


class BundleMissingError(Exception):
    """The bundle is not to be had; the analysis goes on without it."""


class BundleSource(Protocol):
    """Where bundles come from."""

    def stream(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes. Raises BundleMissingError, or BlobsUnavailableError when a later try may help."""
        ...


class BundlesFromBlobs:
    """Bundles straight from the blob store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def stream(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes."""
        try:
            async for chunk in self._blobs.stream(f"{SPACE}/{sha256}"):
                yield chunk
        except KeyError as error:
            raise BundleMissingError("the bundle is not in the blob store") from error
        except BlobsUnavailableError:
            raise
        except BlobError as error:
            raise BundleMissingError(f"the bundle cannot be read: {error}") from error


class BundlesFromIngest:
    """Bundles from ingest's API."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def stream(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield a bundle's bytes."""
        try:
            async with self._client.stream("GET", f"/v1/bundles/{sha256}") as response:
                if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                    raise BlobsUnavailableError(f"ingest answers {response.status_code}")
                if response.status_code != httpx.codes.OK:
                    raise BundleMissingError(f"ingest answers {response.status_code} to the request for the bundle")
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.HTTPError as error:
            raise BlobsUnavailableError(f"ingest does not answer: {type(error).__name__}") from error


async def fetch(source: BundleSource, sha256: str, path: Path, *, bytes_max: int) -> None:
    """Write a bundle to a file.

    Raises:
        BundleMissingError: it is not there, too large, or another one.
        BlobsUnavailableError: a later try may help.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        async for chunk in source.stream(sha256):
            size += len(chunk)
            if size > bytes_max:
                raise BundleMissingError(f"the bundle is larger than {bytes_max} bytes")
            digest.update(chunk)
            await asyncio.to_thread(file.write, chunk)
    if digest.hexdigest() != sha256:
        raise BundleMissingError("what was fetched is not the bundle: its hash differs")
