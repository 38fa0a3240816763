"""Which checkpoint to resume from: the newest that a log names and that nothing speaks against."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal

import re2
from pydantic import BaseModel

from schedmate.services.log_monitor.failures.rules import SHAPES_CACHED

KEPT_MAX: Final = 12
PATH_MAX: Final = 400

_WORTH_A_LOOK: Final = re2.compile(
    r"(?i)checkpoint|ckpt|snapshot|restart|resum|restor|\bsav(?:ed|ing|e)\b|\bwrote\b|\.(?:pth?|ckpt|safetensors|npz|keras|h5|cpt|jld2)\b"
)
_SAVED: Final = re2.compile(
    r"(?i)(?:\b|_)(?:saved|wrote|written|stored in|uploaded|checkpoint (?:complete|saved|written)|finished (?:async )?sav\w{1,4}|gesichert|gespeichert|guardado|salvato|salvo|enregistrée?|sauvegardée?)\b|сохран[её]н|保存|已存|(?:checkpoint|snapshot)(?: ->| at |: )"
)
_SAVING: Final = re2.compile(r"(?i)\bsav(?:ing|e)\b|\bwriting\b|\bstor(?:ing|ed)\b")
_LOADED: Final = re2.compile(
    r"(?i)\b(?:resum|restor)(?:ed|ing|e|es)?\b|--resume|\bload(?:ed|ing)?\b.{0,60}(?:checkpoint|ckpt|state|snapshot)"
)
_FROM_ITERATION: Final = re2.compile(r"(?i)checkpoint (?:from|at) iteration\s+(\d{1,9}) to (\S{1,300})")
_LISTED: Final = re2.compile(
    r"^[-l][rwxsStT-]{9}\S? .{0,120}?(\d{1,18}) \w{3} [ \d]\d [\d:]{4,5} (\S{1,200})(?: -> (\S{1,200}))?$"
)
_PATH: Final = re2.compile(
    r"((?:[\w.-]{1,40}:/)?[\w./@=+~-]{0,300}/[\w./@=+-]{1,200}|[\w.@=+-]{1,120}\.(?:pth?|ckpt|safetensors|npz|keras|h5|cpt|jld2|msgpack)\b)"
)
_FOLDER: Final = re2.compile(
    r"(?i)\b(?:checkpoint|model|weights|state|snapshot)s?\b.{0,30} (?:to|in|into|under) ([A-Za-z0-9_][\w.@+-]{1,119})$"
)
_NO_FOLDER: Final = frozenset(
    ["disk", "memory", "cpu", "gpu", "file", "cache", "hub", "background", "progress", "place", "storage"]
)
_NO_CHECKPOINT: Final = re2.compile(
    r"(?i)\.(?:py|pyc|so|json|ya?ml|toml|txt|log|csv|parquet|tar|tfrecord|jpg|png|md|cc?|cpp|cu|h|sh|html|jl|idx|lock|tmp\S*)(?::\d{1,9})?$|^https?:|site-packages|/bin/|/lib/|\.git\b|^(?:it/s|s/it)$|\.pkl$"
)


class Checkpoint(BaseModel):
    """A checkpoint that a line named. `pulses` is how much life had been seen by then; `size` where a listing
    gave it; `settled` once the program went on after it.
    """

    path: str
    kind: Literal["saved", "saving", "loaded", "listed"]
    line: int | None
    pulses: int
    size: int | None = None
    target: str | None = None
    settled: bool = False


def sight(text: str, line: int | None, pulses: int) -> Checkpoint | None:
    """Return the checkpoint that a line names, or None; ask it of lines that are worth a look."""
    listed = _LISTED.search(text)
    if listed is not None:
        return Checkpoint(
            path=listed.group(2),
            kind="listed",
            line=line,
            pulses=pulses,
            size=int(listed.group(1)),
            target=listed.group(3),
        )
    megatron = _FROM_ITERATION.search(text)
    if megatron is not None:
        path = posixpath.join(megatron.group(2), f"iter_{int(megatron.group(1)):07d}")
        if posixpath.basename(megatron.group(2)).startswith("iter_"):
            path = megatron.group(2)
        return Checkpoint(path=path, kind="saved", line=line, pulses=pulses)
    kind = _kind(text)
    named = _path(text) if kind is not None else None
    if kind is None or named is None:
        return None
    return Checkpoint(path=named, kind=kind, line=line, pulses=pulses)


@lru_cache(SHAPES_CACHED)
def worth_a_look(text: str) -> bool:
    """Tell, cheaply for a shape that came before, whether a line may name a checkpoint."""
    return _WORTH_A_LOOK.search(text) is not None


def remember(known: list[Checkpoint], new: Checkpoint) -> None:
    """Add a checkpoint to the newest few, a path once."""
    for index, old in enumerate(known):
        if old.path == new.path:
            if new.kind == "loaded" and old.kind in {"saved", "listed"}:
                new = new.model_copy(update={"size": old.size})
            del known[index]
            break
    known.append(new)
    del known[:-KEPT_MAX]


def newest_valid(
    known: Sequence[Checkpoint], *, failed_while_saving: bool, corrupt: bool, directory: str | None
) -> str | None:
    """Return the newest checkpoint that can be trusted.

    One that was being saved when storage failed is left out; when a checkpoint proved damaged, so is the one that was loaded,
    and any that is smaller than its like.
    """
    usable = [c for c in known if c.target is None]
    bad: set[str] = set()
    if corrupt:
        bad = _damaged(known)
    elif failed_while_saving:
        bad = {c.path for c in usable[-1:] if c.kind == "saving" and not c.settled}
    usable = [c for c in usable if c.path not in bad and posixpath.basename(c.path) not in bad]
    sizes = [c.size for c in usable if c.size is not None]
    if sizes:
        usable = [c for c in usable if c.size is None or c.size * 2 >= max(sizes)]
    if not usable:
        return None
    path = usable[-1].path
    if directory and "/" not in path:
        return directory if posixpath.basename(directory.rstrip("/")) == path else posixpath.join(directory, path)
    return path


def _damaged(known: Iterable[Checkpoint]) -> set[str]:
    loaded = [c for c in known if c.kind == "loaded"]
    bad: set[str] = {loaded[-1].path, posixpath.basename(loaded[-1].path)} if loaded else set()
    for checkpoint in known:
        if checkpoint.target is not None and posixpath.basename(checkpoint.path) in bad:
            bad.add(checkpoint.target)
    return bad


def _kind(text: str) -> Literal["saved", "saving", "loaded"] | None:
    if _SAVED.search(text) is not None:
        return "saved"
    if _SAVING.search(text) is not None:
        return "saving"
    if _LOADED.search(text) is not None:
        return "loaded"
    return None


def _path(text: str) -> str | None:
    """The last token that looks like the path of a checkpoint; URLs keep their scheme."""
    found: str | None = None
    for token in text.split():
        bare = token.strip("'\"`,;()[]<>").rstrip(".:")
        if ("://" in bare and not bare.startswith("http")) or _names_a_checkpoint(bare):
            found = bare
    if found is not None:
        return found[:PATH_MAX]
    folder = _FOLDER.search(text)
    named = str(folder.group(1)) if folder is not None else None
    return named if named is not None and named.lower() not in _NO_FOLDER and not named.isdigit() else None


def _names_a_checkpoint(token: str) -> bool:
    return (
        _PATH.fullmatch(token) is not None
        and _NO_CHECKPOINT.search(token) is None
        and any(character.isalpha() for character in token)
    )
