"""An opened bundle: names, contents, and unpacking into a fresh folder."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Protocol, Self

from schedmate.infra.bundles.compression import compression_of, unpacked
from schedmate.infra.bundles.contents import Contents, Member
from schedmate.infra.bundles.limits import BundleError, BundleLimits
from schedmate.infra.bundles.tar import BLOCK, TarReader, is_tar
from schedmate.infra.bundles.zip import MAGIC as ZIP_MAGIC
from schedmate.infra.bundles.zip import ZipReader

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_MODE, _FILE_MODE, _PROGRAM_MODE = 0o755, 0o644, 0o755


class _Reader(Protocol):
    """What the formats have in common."""

    contents: Contents

    def chunks(self, member: Member) -> Iterator[bytes]: ...


def open_bundle(source: Path | str | bytes, limits: BundleLimits | None = None) -> Bundle:
    """Open an archive, given by path or as bytes, and check all of its headers.

    A compressed tar is unpacked into an unnamed temporary file, within the limits. Use it as a context manager, or close it.

    Raises:
        BundleError: it is no archive, damaged, too large, or holds what a bundle may not.
        OSError: the file cannot be read.
    """
    limits = limits or BundleLimits()
    with ExitStack() as stack:
        opened = io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")  # noqa: SIM115 - on the stack
        file: IO[bytes] = stack.enter_context(opened)
        beginning = file.read(BLOCK)
        packed_bytes = file.seek(0, 2)
        file.seek(0)
        kind = compression_of(beginning)
        reader: _Reader
        if beginning.startswith(ZIP_MAGIC):
            kind, reader = "zip", ZipReader(file, limits)
        elif kind is not None:
            content = stack.enter_context(closing(unpacked(file, kind, packed_bytes, limits)))
            inner = content.read(BLOCK)
            if compression_of(inner) is not None or inner.startswith(ZIP_MAGIC):
                raise BundleError("the archive is compressed twice")
            kind, reader = f"tar ({kind})", TarReader(content, limits)
        elif is_tar(beginning) or (packed_bytes and not beginning.strip(b"\0")):
            kind, reader = "tar", TarReader(file, limits)
        else:
            raise BundleError("the file is no archive that can be read: tar, tar.gz, tar.bz2, tar.xz or zip")
        return Bundle(kind, reader, stack.pop_all())


class Bundle:
    """An archive whose headers have been checked. Not for several threads at once."""

    def __init__(self, kind: str, reader: _Reader, resources: ExitStack) -> None:
        self.format = kind
        self._reader = reader
        self._resources = resources

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give up the open files."""
        self._resources.close()

    @property
    def size_bytes(self) -> int:
        """All contents together."""
        return sum(member.size_bytes for member in self._files.values())

    def names(self) -> tuple[str, ...]:
        """Return the names of the files, in the order of code points."""
        return tuple(sorted(self._files))

    def size_of(self, name: str) -> int:
        """Return a file's size. Raises KeyError when there is none of this name."""
        return self._files[name].size_bytes

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """Return a file's content.

        Raises:
            KeyError: there is none of this name.
            BundleError: it is larger than `max_bytes`, or damaged.
        """
        member = self._files[name]
        if max_bytes is not None and member.size_bytes > max_bytes:
            raise BundleError(f"{name!r} has {member.size_bytes} bytes; at most {max_bytes} are read")
        return b"".join(self._reader.chunks(member))

    def unpack_into(self, directory: Path | str) -> None:
        """Write every file and folder into a directory that is empty or does not exist yet; on failure it is left as it was.

        Files get the mode 0644, or 0755 where the archive lets their owner execute them; folders 0755. Each step is taken
        relative to the folder opened before and follows no link, whoever else writes there meanwhile.

        Raises:
            BundleError: the directory is not fresh, or a content is damaged.
            OSError: the disk refuses.
        """
        target = Path(directory)
        with ExitStack() as undo:
            try:
                target.mkdir(_FOLDER_MODE)
                undo.callback(target.rmdir)
            except FileExistsError:
                pass
            try:
                root = os.open(target, _FOLDER_FLAGS)
            except NotADirectoryError:
                raise BundleError(f"{target} is no directory") from None
            with _Opened(root) as descriptor:
                if os.listdir(descriptor):  # noqa: PTH208 - of the folder that is open, whatever its path names by now
                    raise BundleError(f"{target} is not empty")
                with ExitStack() as undo_contents:
                    undo_contents.callback(_empty, descriptor)
                    self._unpack(descriptor)
                    undo_contents.pop_all()
            undo.pop_all()

    @property
    def _files(self) -> Mapping[str, Member]:
        return self._reader.contents.files

    def _unpack(self, root: int) -> None:
        for folder in sorted(self._reader.contents.folders):  # parents come first
            parent, _, name = folder.rpartition("/")
            with _below(root, parent) as descriptor:
                os.mkdir(name, _FOLDER_MODE, dir_fd=descriptor)
                with _below(descriptor, name) as made:
                    os.fchmod(made, _FOLDER_MODE)
        for member in self._files.values():
            parent, _, name = member.name.rpartition("/")
            with _below(root, parent) as folder_descriptor:
                file = os.open(name, _FILE_FLAGS, 0o600, dir_fd=folder_descriptor)
            with os.fdopen(file, "wb") as opened:
                for chunk in self._reader.chunks(member):
                    opened.write(chunk)
                os.fchmod(opened.fileno(), _PROGRAM_MODE if member.executable else _FILE_MODE)


class _Opened:
    """An open folder, closed at the end of the block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _below(root: int, path: str) -> _Opened:
    """Open a folder below an open one, step by step, following no link."""
    descriptor = os.dup(root)
    try:
        for part in path.split("/") if path else ():
            deeper = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
    except BaseException:
        os.close(descriptor)
        raise
    return _Opened(descriptor)


def _empty(root: int) -> None:
    """Remove all that lies in an open folder, following no link."""
    with os.scandir(root) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if is_folder:
            shutil.rmtree(name, dir_fd=root)
        else:
            os.unlink(name, dir_fd=root)
