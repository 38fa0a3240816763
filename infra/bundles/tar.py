"""Reads tar: ustar, pax and GNU's long names. Links, devices, FIFOs and sparse files are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Final

from schedmate.infra.bundles.contents import Contents, Member
from schedmate.infra.bundles.limits import BundleError, BundleLimits

BLOCK: Final = 512
CHUNK_BYTES: Final = 256 * 1024
_HEADER_BYTES_MAX: Final = 64 * 1024
_SIZE_MAX: Final = 2**62
_SIZE: Final = re.compile(r"[0-9]{1,18}")
_ZERO: Final = b"\0" * BLOCK
_FILE, _FOLDER, _PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"0\0007", b"5", b"x", b"g", b"L", b"K"
_REFUSED: Final = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a FIFO", b"S": "a sparse file",
    b"V": "a volume label", b"M": "a part of a file on another volume", b"D": "a directory dump",
}  # fmt: skip


@dataclass(slots=True)
class _Extended:
    """What extended headers say about the entry that follows them."""

    path: str | None = None
    size: int | None = None
    pax: dict[str, str] = field(default_factory=dict)


class TarReader:
    """The contents of a tar archive in a seekable file.

    Raises:
        BundleError: on construction, for anything in the archive that a bundle may not have.
    """

    def __init__(self, source: IO[bytes], limits: BundleLimits) -> None:
        self._source = source
        self.contents = Contents(limits)
        self._size = source.seek(0, 2)
        self._headers_max = limits.entries_max * 3
        self._read_all()

    def chunks(self, member: Member) -> Iterator[bytes]:
        """Yield a file's content."""
        self._source.seek(member.place)
        left = member.size_bytes
        while left:
            chunk = self._source.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise BundleError(f"the archive ends inside {member.name!r}")
            left -= len(chunk)
            yield chunk

    def _read_all(self) -> None:
        offset = 0
        extended = _Extended()
        for _ in range(self._headers_max):
            header = self._at(offset, BLOCK)
            if len(header) < BLOCK:
                raise BundleError("the archive ends too early: it is not whole" if offset else "the file is no archive")
            offset += BLOCK
            if header == _ZERO:
                self._check_end(offset)
                return
            _check_sum(header, offset == BLOCK)
            kind = header[156:157]
            size = _number(header[124:136], "size")
            if kind in {_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK}:
                self._extend(extended, kind, self._extension(offset, size))
                offset += _padded(size)
                continue
            size = size if extended.size is None else extended.size
            offset += self._take(header, kind, size, offset, extended)
            extended = _Extended()
        raise BundleError(f"the archive has more than {self._headers_max} headers")

    def _take(self, header: bytes, kind: bytes, size: int, offset: int, extended: _Extended) -> int:
        """Take in one entry; return how far its content reaches, padding included."""
        name = _name(header) if extended.path is None else extended.path
        if kind == _FOLDER or (kind in _FILE and name.endswith("/") and size == 0):
            self.contents.add_folder(name)
            return 0
        if kind not in _FILE:
            what = _REFUSED.get(kind, f"an entry of the unknown type {kind!r}")
            raise BundleError(f"{name[:200]!r} is {what}; a bundle holds plain files and folders only")
        if any(key.startswith("GNU.sparse") for key in extended.pax):
            raise BundleError(f"{name[:200]!r} is a sparse file; a bundle holds plain files and folders only")
        if offset + size > self._size:
            raise BundleError(f"the archive ends inside {name[:200]!r}: it is not whole")
        executable = bool(_number(header[100:108], "mode") & 0o100)
        self.contents.add_file(name, size, executable=executable, place=offset)
        return _padded(size)

    def _extension(self, offset: int, size: int) -> bytes:
        if size > _HEADER_BYTES_MAX:
            raise BundleError(f"an extended header has {size} bytes; at most {_HEADER_BYTES_MAX} are read")
        content = self._at(offset, size)
        if len(content) < size:
            raise BundleError("the archive ends inside an extended header: it is not whole")
        return content

    @staticmethod
    def _extend(extended: _Extended, kind: bytes, content: bytes) -> None:
        if kind == _LONG_LINK:
            return  # the link that follows is refused anyway
        if kind == _LONG_NAME:
            extended.path = _text(content.removesuffix(b"\0"), "a long name")
            return
        records = dict(_pax_records(content))
        if kind == _PAX_GLOBAL:
            if records.keys() & {"path", "size", "linkpath"} or any(key.startswith("GNU.sparse") for key in records):
                raise BundleError("the archive sets names or sizes for all its files at once")
            return
        extended.pax |= records
        extended.path = records.get("path", extended.path)
        if "size" in records:
            if not _SIZE.fullmatch(records["size"]):
                raise BundleError(f"a size is no number: {records['size'][:40]!r}")
            extended.size = int(records["size"])

    def _check_end(self, offset: int) -> None:
        self._source.seek(offset)
        while rest := self._source.read(CHUNK_BYTES):
            if rest.strip(b"\0"):
                raise BundleError("something follows the archive's end")

    def _at(self, offset: int, size: int) -> bytes:
        self._source.seek(offset)
        return self._source.read(size)


def is_tar(beginning: bytes) -> bool:
    """Whether a stream that begins so may be a tar archive."""
    return len(beginning) >= BLOCK and (beginning[257:262] == b"ustar" or _sum_is_right(beginning[:BLOCK]))


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _check_sum(header: bytes, first: bool) -> None:
    if not _sum_is_right(header):
        raise BundleError(
            "the file is no tar archive" if first else "the archive is damaged: a header's checksum is wrong"
        )


def _sum_is_right(header: bytes) -> bool:
    try:
        expected = _number(header[148:156], "checksum")
    except BundleError:
        return False
    blank = header[:148] + b" " * 8 + header[156:]
    return expected in {sum(blank), sum(byte - 256 if byte > 127 else byte for byte in blank)}  # noqa: PLR2004 - signed, as old tars


def _number(raw: bytes, what: str) -> int:
    """Return a number of a header: octal text, or base 256 with the first bit set."""
    if raw[0] == 0x80:  # noqa: PLR2004 - the mark of a positive number in base 256
        value = int.from_bytes(raw[1:], "big")
        if value > _SIZE_MAX:
            raise BundleError(f"a {what} is out of bounds")
        return value
    text = raw.split(b"\0", 1)[0].strip()
    if text.strip(b"01234567"):
        raise BundleError(f"a {what} is no number: {raw!r}")
    return int(text or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return _text(name, "a name")


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BundleError(f"{what} is not UTF-8: {raw[:200]!r}") from None


def _pax_records(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the records of an extended header: length, space, key, equals sign, value, newline."""
    while content:
        digits, space, _ = content[:20].partition(b" ")
        if not space or not digits.isdigit():
            raise BundleError("an extended header is damaged")
        length = int(digits)
        record = content[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not len(digits) + 1 < length <= len(content) or not equals or not value.endswith(b"\n"):
            raise BundleError("an extended header is damaged")
        name = _text(key, "a key of an extended header")
        if name in {"path", "size", "linkpath"}:
            yield name, _text(value[:-1], f"the {name} of an extended header")
        else:
            yield name, ""
        content = content[length:]
