"""How large a bundle may be in every direction, and the one error."""

from __future__ import annotations

from dataclasses import dataclass


class BundleError(Exception):
    """The archive is damaged, asks for what a bundle may not have, or goes beyond a limit; the message says which, for its author."""


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Bounds of one archive.

    Attributes:
        unpacked_bytes_max: all contents together, and the stream inside a compressed tar.
        file_bytes_max: one file.
        entries_max: files and folders, those in between included.
        ratio_max: unpacked bytes for each packed one, counted from `ratio_free_bytes` on (small text packs well).
        ratio_free_bytes: unpacked size below which the ratio does not matter.
        depth_max: parts of a name.
        name_bytes_max: bytes of a whole name; one part has at most 255.
    """

    unpacked_bytes_max: int = 1024 * 1024 * 1024
    file_bytes_max: int = 512 * 1024 * 1024
    entries_max: int = 20_000
    ratio_max: int = 200
    ratio_free_bytes: int = 16 * 1024 * 1024
    depth_max: int = 32
    name_bytes_max: int = 1024

    def check_unpacked(self, unpacked: int, packed: int) -> None:
        """Refuse a bomb: more contents than allowed, or too many for the size of the archive."""
        if unpacked > self.unpacked_bytes_max:
            raise BundleError(f"the archive unpacks to more than {self.unpacked_bytes_max} bytes")
        if unpacked > self.ratio_free_bytes and unpacked > packed * self.ratio_max:
            raise BundleError(f"the archive unpacks to more than {self.ratio_max} times its own size")
