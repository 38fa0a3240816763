"""Which checkpoint of a directory's listing to resume from: the newest that is whole. Pure.

Whole is what is not marked as being written, not empty, and about as large (and of as many files) as its like. Where the program keeps a
marker of its last complete checkpoint, nothing newer than that counts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from statistics import median
from typing import Final

from schedmate.schemas.events import CheckpointEntry

SMALL: Final = 0.5
"""Of the usual size of its like; less is a part."""
_FILE: Final = re.compile(r"(?i)\.(?:pth?|ckpt|safetensors|npz|keras|h5|hdf5|cpt|jld2|msgpack|tar|distcp|bin|index)$")
_FOLDER: Final = re.compile(
    r"(?i)^(?:checkpoint|ckpt|ck|step|epoch|iter|iteration|global_?step|snapshot|model|state|ep)?[-_.=]?\d{1,12}\b|^(?:checkpoint|ckpt|snapshot)[-_]"
)
_BEING_WRITTEN: Final = re.compile(
    r"(?i)\.tmp|tmp$|\.part(?:ial)?\b|incomplete|\.lock$|\.orbax-checkpoint-tmp|~$|^\.|\.writing"
)
_OTHER: Final = re.compile(r"(?i)optim|scheduler|rng|scaler|tokenizer|config|events\.out|\.log$|best|dataset")
_NUMBER: Final = re.compile(r"\d{1,12}")
_LAST: Final = re.compile(
    r"(?i)^(?:last|latest|checkpoint_(?:last|latest|final)|model_(?:last|final|latest)|ckpt|checkpoint|final)\b"
)


def newest_whole(
    entries: Sequence[CheckpointEntry], *, damaged: Collection[str] = (), before: float | None = None
) -> str | None:
    """Return the name of the newest whole checkpoint, None when there is none. `damaged` are names that proved not to be."""
    candidates = [e for e in entries if _is_checkpoint(e) and e.name not in damaged]
    if before is not None:
        candidates = [e for e in candidates if e.modified_at <= before]
    whole = [e for e in candidates if _is_whole(e, candidates)]
    marked = _marked(entries)
    if marked is not None:
        whole = [e for e in whole if (n := _number(e)) is None or n <= marked] or whole
    return max(whole, key=_age).name if whole else None


def has(entries: Sequence[CheckpointEntry], path: str) -> bool:
    """Tell whether a listing has the checkpoint that a path names (and that it is no part of one)."""
    name = posixpath.basename(path.rstrip("/"))
    return any(e.name == name and e.size_bytes > 0 and _BEING_WRITTEN.search(e.name) is None for e in entries)


def _is_checkpoint(entry: CheckpointEntry) -> bool:
    if _BEING_WRITTEN.search(entry.name) is not None or entry.marker is not None or entry.size_bytes == 0:
        return False
    if entry.files is not None:
        return _FOLDER.search(entry.name) is not None or _LAST.search(entry.name) is not None
    return _FILE.search(entry.name) is not None and _OTHER.search(entry.name) is None


def _is_whole(entry: CheckpointEntry, all_of_them: Sequence[CheckpointEntry]) -> bool:
    like = [e for e in all_of_them if _kind(e) == _kind(entry) and e is not entry]
    if not like:
        return True
    enough = entry.size_bytes >= SMALL * median(e.size_bytes for e in like)
    if entry.files is None:
        return enough
    return enough and entry.files >= SMALL * median(e.files or 0 for e in like)


def _kind(entry: CheckpointEntry) -> tuple[str, bool]:
    return _NUMBER.sub("0", entry.name), entry.files is not None


def _number(entry: CheckpointEntry) -> int | None:
    numbers = _NUMBER.findall(entry.name)
    return int(numbers[-1]) if numbers else None


def _marked(entries: Sequence[CheckpointEntry]) -> int | None:
    numbers = [int(n[-1]) for e in entries if e.marker is not None and (n := _NUMBER.findall(e.marker))]
    return max(numbers, default=None)


def _age(entry: CheckpointEntry) -> tuple[float, int, bool]:
    """Newest by time; what was written within the same second by its number, a numbered one before `last`."""
    return round(entry.modified_at), _number(entry) or -1, _LAST.search(entry.name) is None
