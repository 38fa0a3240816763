"""Unpacks a compressed stream into a bounded file: gzip, bzip2, xz, one after the other where they are concatenated."""

from __future__ import annotations

import bz2
import lzma
import tempfile
import zlib
from collections.abc import Callable
from typing import IO, Any, Final, Protocol

from schedmate.infra.bundles.limits import BundleError, BundleLimits

MAGIC: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_IN_BYTES: Final = 64 * 1024
_OUT_BYTES: Final = 256 * 1024
_IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
_XZ_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Memory that an xz stream may ask for: enough for every preset (`xz -9` needs 65 MiB)."""
_MEMBERS_MAX: Final = 1000


class _Decoder(Protocol):
    """One member of a compressed stream."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What followed the member's end in the packed bytes that were given."""
        ...

    def give(self, packed: bytes, size_max: int) -> bytes:
        """Take packed bytes in, return at most so many unpacked ones."""
        ...

    def hungry(self) -> bool:
        """Whether all packed bytes that were given have been read."""
        ...


class _Gzip:
    """zlib's decoder, which hands back what it has not read yet."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self._rest = b""

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def give(self, packed: bytes, size_max: int) -> bytes:
        unpacked = self._zlib.decompress(self._rest + packed, size_max)
        self._rest = self._zlib.unconsumed_tail
        return unpacked

    def hungry(self) -> bool:
        return not self._rest


class _Standard:
    """The decoders of bz2 and lzma, which keep what they have not read yet."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        return bool(self._decoder.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._decoder.unused_data)

    def give(self, packed: bytes, size_max: int) -> bytes:
        return bytes(self._decoder.decompress(packed, size_max))

    def hungry(self) -> bool:
        return bool(self._decoder.needs_input)


_DECODERS: Final[dict[str, Callable[[], _Decoder]]] = {
    "gzip": _Gzip,
    "bzip2": lambda: _Standard(bz2.BZ2Decompressor()),
    "xz": lambda: _Standard(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)),
}


def compression_of(beginning: bytes) -> str | None:
    """Return how a stream that begins so is compressed; None when it is not."""
    return next((kind for magic, kind in MAGIC.items() if beginning.startswith(magic)), None)


def unpacked(source: IO[bytes], kind: str, packed_bytes: int, limits: BundleLimits) -> IO[bytes]:
    """Return a temporary file with what `source` holds, small ones in memory; the caller closes it."""
    target = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - the caller's
    try:
        _unpack(source, target, kind, packed_bytes, limits)
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        target.close()
        raise BundleError(f"the archive is damaged ({kind}): {error}") from error
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return target


def _unpack(source: IO[bytes], target: IO[bytes], kind: str, packed_bytes: int, limits: BundleLimits) -> None:
    size = 0
    packed = source.read(_IN_BYTES)
    for _ in range(_MEMBERS_MAX):
        decoder = _DECODERS[kind]()
        while not decoder.eof:
            if not packed and decoder.hungry():
                packed = source.read(_IN_BYTES)
            content = decoder.give(packed, _OUT_BYTES)
            if not packed and not content and not decoder.eof:
                raise BundleError(f"the archive ends in the middle ({kind})")
            packed = b""
            size += len(content)
            limits.check_unpacked(size, packed_bytes)
            target.write(content)
        packed = decoder.unused_data + source.read(_IN_BYTES)
        if not packed.strip(b"\0") and not any(rest.strip(b"\0") for rest in iter(lambda: source.read(_IN_BYTES), b"")):
            return  # nothing but padding follows
        packed = packed.lstrip(b"\0") if kind == "xz" else packed
        if compression_of(packed) != kind:
            raise BundleError(f"something that is not {kind} follows the archive's end")
    raise BundleError(f"the archive is {_MEMBERS_MAX} compressed streams in a row")
