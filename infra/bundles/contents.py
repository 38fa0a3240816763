"""What an archive holds: names checked one by one and against each other."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from schedmate.infra.bundles.limits import BundleError, BundleLimits

PART_BYTES_MAX: Final = 255
_DRIVE: Final = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive. `place` is the reader's own way to find its content."""

    name: str
    size_bytes: int
    executable: bool
    place: Any


class Contents:
    """Files and folders of an archive, collected while it is read; every rule about names is here."""

    def __init__(self, limits: BundleLimits) -> None:
        self._limits = limits
        self._files: dict[str, Member] = {}
        self._folders: set[str] = set()
        self._normal: dict[str, str] = {}
        self._size_bytes = 0
        self._read = 0

    @property
    def files(self) -> Mapping[str, Member]:
        """Files by name, in the order of the archive."""
        return self._files

    @property
    def folders(self) -> frozenset[str]:
        """Folders, those included that only stand in the names of others."""
        return frozenset(self._folders)

    def add_file(self, raw_name: str, size_bytes: int, *, executable: bool, place: Any) -> None:
        """Take in a file, or say why not."""
        name = self._name(raw_name)
        if name is None or raw_name.endswith("/"):
            raise BundleError(f"{raw_name!r} is no name of a file")
        if name in self._files:
            raise BundleError(f"{name!r} is in the archive twice")
        if name in self._folders:
            raise BundleError(f"{name!r} is a file and a folder")
        if not 0 <= size_bytes <= self._limits.file_bytes_max:
            raise BundleError(f"{name!r} has {size_bytes} bytes; a file has at most {self._limits.file_bytes_max}")
        self._size_bytes += size_bytes
        if self._size_bytes > self._limits.unpacked_bytes_max:
            raise BundleError(f"the archive unpacks to more than {self._limits.unpacked_bytes_max} bytes")
        self._add_folders(name.rpartition("/")[0])
        self._distinct(name)
        self._files[name] = Member(name, size_bytes, executable, place)

    def add_folder(self, raw_name: str) -> None:
        """Take in a folder, or say why not."""
        name = self._name(raw_name)
        if name is not None:
            self._add_folders(name)

    def _add_folders(self, name: str) -> None:
        while name and name not in self._folders:
            if name in self._files:
                raise BundleError(f"{name!r} is a file and a folder")
            self._distinct(name)
            self._folders.add(name)
            name = name.rpartition("/")[0]

    def _distinct(self, name: str) -> None:
        """Refuse two names that look the same, and too many."""
        if len(self._normal) >= self._limits.entries_max:
            raise BundleError(f"the archive has more than {self._limits.entries_max} entries")
        other = self._normal.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise BundleError(f"{name!r} and {other!r} are the same name, written in two ways")

    def _name(self, raw: str) -> str | None:
        """Return a name as the file system will see it; None for the archive's own root."""
        self._read += 1
        if self._read > self._limits.entries_max:
            raise BundleError(f"the archive has more than {self._limits.entries_max} entries")
        _check_characters(raw, self._limits.name_bytes_max)
        shown = repr(raw[:200])
        parts = raw.removesuffix("/").split("/")
        while parts and parts[0] == ".":
            parts = parts[1:]
        if not parts:
            return None
        if any(part in {"", ".", ".."} for part in parts):
            raise BundleError(f"a name leads elsewhere: {shown}; '.', '..' and empty parts are refused")
        if len(parts) > self._limits.depth_max:
            raise BundleError(f"a name has more than {self._limits.depth_max} parts: {shown}")
        if any(len(part.encode()) > PART_BYTES_MAX for part in parts):
            raise BundleError(f"a part of a name is longer than {PART_BYTES_MAX} bytes: {shown}…")
        return "/".join(parts)


def _check_characters(raw: str, name_bytes_max: int) -> None:
    shown = repr(raw[:200])
    if len(raw.encode()) > name_bytes_max:
        raise BundleError(f"a name is longer than {name_bytes_max} bytes: {shown}…")
    if any(unicodedata.category(character) == "Cc" for character in raw):
        raise BundleError(f"a name holds a control character: {shown}")
    if "\\" in raw:
        raise BundleError(f"a name holds a backslash: {shown}; pack with forward slashes")
    if raw.startswith("/") or _DRIVE.match(raw):
        raise BundleError(f"a name is absolute: {shown}; pack with relative names")
