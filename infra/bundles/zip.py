"""Reads zip, stored and deflated. The central directory is believed only where the local headers say the same."""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Final

from schedmate.infra.bundles.contents import Contents, Member
from schedmate.infra.bundles.limits import BundleError, BundleLimits

MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
CHUNK_BYTES: Final = 256 * 1024
_END: Final = struct.Struct("<4s4H2LH")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1 | 0x40 | 0x2000, 0x8, 0x800
_UNIX: Final = 3
_DOS_FOLDER: Final = 0x10
_UNKNOWN_32, _UNKNOWN_16 = 0xFFFFFFFF, 0xFFFF
_COMMENT_BYTES_MAX: Final = 65535
_EXTRA_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the central directory says about an entry."""

    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    system: int
    attributes: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file's content lies, and how it is packed."""

    offset: int
    packed: int
    method: int
    crc: int


class ZipReader:
    """The contents of a zip archive in a seekable file.

    Raises:
        BundleError: on construction, for anything in the archive that a bundle may not have; while a content is read,
            when it is not what the headers say.
    """

    def __init__(self, source: IO[bytes], limits: BundleLimits) -> None:
        self._source = source
        self._limits = limits
        self._size = source.seek(0, 2)
        self.contents = Contents(limits)
        directory_at, entries = self._directory()
        spans = sorted(self._take(entry) for entry in entries)
        for (_, end), (begin, _) in pairwise([*spans, (directory_at, 0)]):
            if end > begin:
                raise BundleError("entries of the archive lie on top of each other")
        self._limits.check_unpacked(sum(e.size for e in entries), self._size)

    def chunks(self, member: Member) -> Iterator[bytes]:
        """Yield a file's content, and compare its size and checksum with what was announced."""
        place: _Place = member.place
        contents = self._packed(place) if place.method == _STORED else _inflated(self._packed(place), member.name)
        size = crc = 0
        for content in contents:
            size += len(content)
            if size > member.size_bytes:
                raise BundleError(f"{member.name!r} is larger than the archive says")
            crc = zlib.crc32(content, crc)
            yield content
        if size != member.size_bytes or crc != place.crc:
            raise BundleError(f"{member.name!r} is damaged: its size or checksum is wrong")

    def _packed(self, place: _Place) -> Iterator[bytes]:
        offset, left = place.offset, place.packed
        while left:
            packed = self._at(offset, min(left, CHUNK_BYTES))
            if not packed:
                raise BundleError("the archive ends too early: it is not whole")
            offset += len(packed)
            left -= len(packed)
            yield packed

    def _directory(self) -> tuple[int, list[_Entry]]:
        """Return where the central directory begins, and what it says."""
        tail_at = max(0, self._size - _END.size - _COMMENT_BYTES_MAX)
        tail = self._at(tail_at, self._size - tail_at)
        found = tail.rfind(b"PK\x05\x06")
        if found < 0 or len(tail) - found < _END.size:
            raise BundleError("the archive has no end: it is not whole")
        _, disk, first_disk, here, count, size, offset, comment = _END.unpack_from(tail, found)
        if found + _END.size + comment != len(tail):
            raise BundleError("something follows the archive's end")
        if disk or first_disk or here != count:
            raise BundleError("the archive is a part of several")
        if _UNKNOWN_16 == count or _UNKNOWN_32 in {size, offset}:
            raise BundleError("the archive is a zip64, which is for larger ones than a bundle may be")
        if count > self._limits.entries_max:
            raise BundleError(f"the archive has more than {self._limits.entries_max} entries")
        if offset + size != tail_at + found:
            raise BundleError("the archive's directory is not where its end says")
        if size > count * (_CENTRAL.size + self._limits.name_bytes_max + 2 * _EXTRA_BYTES_MAX):
            raise BundleError("the archive's directory is larger than its entries can be")
        return offset, self._entries(self._at(offset, size), count)

    def _entries(self, directory: bytes, count: int) -> list[_Entry]:
        entries: list[_Entry] = []
        at = 0
        for _ in range(count):
            if len(directory) - at < _CENTRAL.size:
                raise BundleError("the archive's directory is damaged")
            fields = _CENTRAL.unpack_from(directory, at)
            signature, made_by, _, flags, method, _, _, crc, packed, size = fields[:10]
            name_size, extra_size, comment_size, disk, _, attributes, offset = fields[10:]
            at += _CENTRAL.size
            raw_name = directory[at : at + name_size]
            at += name_size + extra_size + comment_size
            if signature != b"PK\x01\x02" or at > len(directory) or disk:
                raise BundleError("the archive's directory is damaged")
            if _UNKNOWN_32 in {packed, size, offset}:
                raise BundleError(f"{raw_name[:200]!r} is larger than a bundle may be (zip64)")
            entries.append(_Entry(raw_name, flags, method, crc, packed, size, made_by >> 8, attributes, offset))
        if at != len(directory):
            raise BundleError("the archive's directory holds more than its entries")
        return entries

    def _take(self, entry: _Entry) -> tuple[int, int]:
        """Take in one entry; return the span of the archive that is its own."""
        name = _name(entry)
        content_at = self._content_at(entry, name)
        span = (entry.offset, content_at + entry.packed)
        mode = entry.attributes >> 16 if entry.system == _UNIX else 0
        kind = stat.S_IFMT(mode)
        folder = (
            name.endswith("/") or kind == stat.S_IFDIR or bool(entry.system != _UNIX and entry.attributes & _DOS_FOLDER)
        )
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            what = "a symbolic link" if kind == stat.S_IFLNK else "no plain file"
            raise BundleError(f"{name[:200]!r} is {what}; a bundle holds plain files and folders only")
        if folder:
            if entry.size or kind == stat.S_IFREG:
                raise BundleError(f"{name[:200]!r} is a file and a folder")
            self.contents.add_folder(name)
            return span
        if entry.flags & _ENCRYPTED:
            raise BundleError(f"{name[:200]!r} is encrypted")
        if entry.method not in {_STORED, _DEFLATED}:
            raise BundleError(
                f"{name[:200]!r} is compressed by method {entry.method}; only stored and deflated are read"
            )
        if entry.method == _STORED and entry.packed != entry.size:
            raise BundleError(f"{name[:200]!r} is damaged: it has two sizes")
        place = _Place(content_at, entry.packed, entry.method, entry.crc)
        self.contents.add_file(name, entry.size, executable=bool(mode & 0o100), place=place)
        return span

    def _content_at(self, entry: _Entry, name: str) -> int:
        """Compare the local header with the directory; return where the content begins."""
        header = self._at(entry.offset, _LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
            raise BundleError(f"{name[:200]!r} is not where the archive's directory says")
        _, _, flags, method, _, _, crc, packed, size, name_size, extra_size = _LOCAL.unpack(header)
        raw_name = self._at(entry.offset + _LOCAL.size, name_size)
        same = (
            raw_name == entry.raw_name and method == entry.method and not (flags ^ entry.flags) & (_ENCRYPTED | _UTF8)
        )
        if not flags & _SIZES_FOLLOW:
            same = (
                same
                and crc == entry.crc
                and packed in {entry.packed, _UNKNOWN_32}
                and size in {entry.size, _UNKNOWN_32}
            )
        if not same:
            raise BundleError(f"{name[:200]!r} has another name or form where it lies than in the archive's directory")
        content_at: int = entry.offset + _LOCAL.size + name_size + extra_size
        if content_at + entry.packed > self._size:
            raise BundleError(f"the archive ends inside {name[:200]!r}: it is not whole")
        return content_at

    def _at(self, offset: int, size: int) -> bytes:
        self._source.seek(offset)
        return self._source.read(size)


def _inflated(packed: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yield what deflated chunks hold, at most 256 KiB at a time."""
    decoder = zlib.decompressobj(wbits=-15)
    try:
        for chunk in packed:
            content = decoder.decompress(chunk, CHUNK_BYTES)
            while content or decoder.unconsumed_tail:
                yield content
                content = decoder.decompress(decoder.unconsumed_tail, CHUNK_BYTES)
    except zlib.error as error:
        raise BundleError(f"{name!r} is damaged: {error}") from error
    if not decoder.eof or decoder.unused_data:
        raise BundleError(f"{name!r} is damaged: its content does not end where the archive says")


def _name(entry: _Entry) -> str:
    """Return an entry's name. Without the mark for UTF-8 it is read as such all the same: that is what tools on Linux write."""
    try:
        return entry.raw_name.decode()
    except UnicodeDecodeError:
        raise BundleError(f"a name is not UTF-8: {entry.raw_name[:200]!r}") from None
