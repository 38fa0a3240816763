"""From a bundle's file or a directory to the tree that is analysed. Runs in a process of its own; reads, and writes nothing that stays."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from schedmate.infra.bundles import BundleError, open_bundle
from schedmate.infra.telemetry.redaction import redact
from schedmate.services.code_analyzer.analysis import Analysis, Subject, analyze, content_hash, tree_hash
from schedmate.services.code_analyzer.resolve.files import decoded
from schedmate.services.code_analyzer.resolve.units import Units
from schedmate.services.code_analyzer.source import FILE_BYTES_MAX, FILES_MAX, Tree, bounded, worth_reading

DEPTH_MAX: Final = 6
ENTRIES_MAX: Final = 20_000
TEXTS_MAX: Final = 200
TEXT_BYTES_MAX: Final = 64 * 1024
TEXTS_CHARACTERS_MAX: Final = 1_000_000
_LEFT_OUT: Final = frozenset({"node_modules", "site-packages", "__pycache__", "wandb", "venv", "env"})


@dataclass(frozen=True, slots=True)
class Known:
    """On what an earlier analysis of the same start rests: all files' names, the contents of those that were read, and of those that a
    model quoted.
    """

    names: str
    read: dict[str, str]
    quoted: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """An analysis with what it rests on; `analysis` is None when nothing of that has changed since the one that is known.

    Of the files that it rests on, `parsed` were read anew; of `reused` the parsed form was known by their content. `quoted` are the files
    that a model quoted then and that are the same now. `hashes` has the content of every file.
    """

    content_hash: str
    analysis: Analysis | None
    known: Known
    parsed: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    quoted: frozenset[str] = frozenset()
    hashes: dict[str, str] = field(default_factory=dict)


@cache
def _units() -> Units:
    """What this process has parsed so far."""
    return Units()


def read_bundle(subject: Subject, path: Path, known: Known | None) -> Reading:
    """Return the analysis of a job whose source is a bundle, unless what the known one rests on is the same in it."""
    return _reading(subject, path.name, _bundle_tree(path), known)


def read_directory(subject: Subject, directory: Path, known: Known | None) -> Reading:
    """Return the same for a directory of this machine."""
    tree = _directory_tree(directory)
    return _reading(subject, tree_hash(tree), tree, known)


def _reading(subject: Subject, source: str, tree: Tree, known: Known | None) -> Reading:
    hashed = content_hash(subject, source)
    names = hashlib.sha256(
        "\0".join([*sorted(tree.files), *tree.left_out]).encode("utf-8", "surrogateescape")
    ).hexdigest()
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in tree.files.items()}
    told = known.quoted if known is not None else {}
    quoted = frozenset(path for path, sha in told.items() if hashes.get(path) == sha)
    if known is not None and known.names == names and all(hashes.get(p) == sha for p, sha in known.read.items()):
        return Reading(hashed, None, known, reused=tuple(sorted(known.read)), quoted=quoted, hashes=hashes)
    analysis = analyze(subject, tree, _units())
    return Reading(
        hashed,
        analysis,
        Known(names, {p: hashes[p] for p in sorted(analysis.read) if p in hashes}),
        parsed=tuple(sorted(analysis.read - analysis.reused)),
        reused=tuple(sorted(analysis.reused)),
        quoted=quoted,
        hashes=hashes,
    )


def bundle_texts(path: Path) -> dict[str, str]:
    """Return a bundle's texts for a model to read: bounded and redacted."""
    return _texts(_bundle_tree(path))


def directory_texts(directory: Path) -> dict[str, str]:
    """Return a directory's texts for a model to read: bounded and redacted."""
    return _texts(_directory_tree(directory))


def _texts(tree: Tree) -> dict[str, str]:
    texts: dict[str, str] = {}
    left = TEXTS_CHARACTERS_MAX
    for path in sorted(tree.files, key=lambda p: (p.count("/"), p)):
        content = tree.files[path]
        if len(texts) >= TEXTS_MAX or left <= 0:
            break
        if len(content) <= TEXT_BYTES_MAX and b"\0" not in content:
            texts[path] = redact(decoded(content))
            left -= len(texts[path])
    return texts


def analyze_directory(subject: Subject, directory: Path) -> tuple[str, Analysis]:
    """Return the hash and the analysis of a job that starts in a directory of this machine."""
    tree = _directory_tree(directory)
    return content_hash(subject, tree_hash(tree)), analyze(subject, tree)


def analyze_command(subject: Subject, why_no_source: str | None) -> tuple[str, Analysis]:
    """Return the hash and the analysis of a job of which only the command can be read."""
    tree = Tree(left_out=() if why_no_source is None else (why_no_source,))
    return content_hash(subject, why_no_source or ""), analyze(subject, tree)


def _bundle_tree(path: Path) -> Tree:
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    try:
        with open_bundle(path) as bundle:
            for name in bundle.names():
                if not worth_reading(name):
                    continue
                if bundle.size_of(name) > FILE_BYTES_MAX:
                    left_out.append(f"{name} is larger than {FILE_BYTES_MAX} bytes")
                elif len(files) < FILES_MAX:
                    files[name] = bundle.read(name)
    except BundleError as error:
        left_out.append(f"the bundle cannot be read: {error}")
    return bounded(files, tuple(left_out))


def _directory_tree(directory: Path) -> Tree:
    try:
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        return Tree(left_out=(f"the working directory cannot be read: {error.strerror}",))
    try:
        files = dict(_files(root, "", DEPTH_MAX, [ENTRIES_MAX]))
    finally:
        os.close(root)
    return bounded(files)


def _files(descriptor: int, prefix: str, depth: int, entries_left: list[int]) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files below an open directory. No link is followed: each step is relative to what is open."""
    with os.scandir(descriptor) as found:
        entries = sorted(found, key=lambda e: e.name)
    for entry in entries:
        entries_left[0] -= 1
        if entries_left[0] < 0:
            return
        name = f"{prefix}{entry.name}"
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth > 0 and not entry.name.startswith(".") and entry.name not in _LEFT_OUT:
                    inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                    try:
                        yield from _files(inner, name + "/", depth - 1, entries_left)
                    finally:
                        os.close(inner)
            elif entry.is_file(follow_symlinks=False) and worth_reading(name):
                content = _content(entry.name, descriptor)
                if content is not None:
                    yield name, content
        except OSError:
            continue  # it vanished, or may not be read: the analysis goes on without it


def _content(name: str, descriptor: int) -> bytes | None:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return None
        return opened.read(FILE_BYTES_MAX + 1)
