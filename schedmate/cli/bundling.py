"""Packing a source directory into a bundle to send along."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

LEFT_OUT: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".venv",
        "venv",
        "node_modules",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".schedmate",
    }
)
FILES_MAX: Final = 100_000
BYTES_MAX: Final = 1 << 30


@contextmanager
def bundle_of(source: Path) -> Iterator[Path]:
    """Yield an archive of a directory (caches and version control left out), or the archive that `source` is.

    Links and special files are left out, which is said on standard error: a bundle holds files only.

    Raises:
        typer.BadParameter: there is nothing to pack, or too much.
    """
    if source.is_file():
        yield source
        return
    if not source.is_dir():
        raise typer.BadParameter(f"--source {source}: no such directory or archive")
    with tempfile.TemporaryDirectory(prefix="schedmate-") as scratch:
        archive = Path(scratch) / "source.tar.gz"
        _pack(source, archive)
        yield archive


def _pack(source: Path, archive: Path) -> None:
    count = size = 0
    skipped: list[Path] = []
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for path in sorted(source.rglob("*")):
            relative = path.relative_to(source)
            if LEFT_OUT & set(relative.parts):
                continue
            if path.is_symlink() or not path.is_file():
                skipped += [relative] if path.is_symlink() or not path.is_dir() else []
                continue
            count += 1
            size += path.stat().st_size
            if count > FILES_MAX or size > BYTES_MAX:
                raise typer.BadParameter(
                    f"--source {source}: more than {FILES_MAX} files or {BYTES_MAX >> 20} MiB; put data elsewhere"
                )
            tar.add(path, arcname=str(relative), recursive=False, filter=_anonymous)
    if skipped:
        note = f"schedmate: links and special files are not sent along: {len(skipped)} left out, the first is {str(skipped[0])!r}"
        typer.echo(note, err=True)
    if count == 0:
        raise typer.BadParameter(f"--source {source}: there is no file in it")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who owns the files and when they were changed: the same content gives the same bundle."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info
