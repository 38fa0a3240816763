"""What an address may be, for all adapters: `space/name[/name…]`, each part safe as a file's name."""

from __future__ import annotations

import re
from typing import Final

from schedmate.infra.blobs.port import BlobAddressError

PARTS_MAX: Final = 8
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def checked_address(address: str) -> tuple[str, ...]:
    """Return the parts of an address: 2 to 8."""
    parts = tuple(address.split("/"))
    if not 2 <= len(parts) <= PARTS_MAX or not all(_PART.fullmatch(part) for part in parts):  # noqa: PLR2004
        raise BlobAddressError(
            f"{address!r} is no blob's address: space/name[/name…], letters, digits, '.', '_' and '-'"
        )
    return parts


def checked_space(space: str) -> str:
    """Return the name of a space if it may be one."""
    if not _PART.fullmatch(space):
        raise BlobAddressError(f"{space!r} cannot name a space of blobs: letters, digits, '.', '_' and '-'")
    return space


def checked_prefix(prefix: str) -> tuple[str, ...]:
    """Return the parts of a prefix `space/[name/…]`, which ends in a slash."""
    parts = tuple(prefix.split("/"))
    if parts[-1] or not 2 <= len(parts) <= PARTS_MAX or not all(_PART.fullmatch(part) for part in parts[:-1]):  # noqa: PLR2004
        raise BlobAddressError(f"{prefix!r} is no prefix of blobs' addresses: it names a space and ends in '/'")
    return parts[:-1]


def checked_sha256(expected: str | None) -> str | None:
    """Return an announced hash if it can be one: 64 small hexadecimal digits."""
    if expected is not None and not _SHA256.fullmatch(expected):
        raise BlobAddressError(f"{expected!r} is no SHA-256: 64 hexadecimal digits in small letters")
    return expected
