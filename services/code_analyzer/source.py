"""A job's source as a value: paths and contents, bounded. Nothing of it is ever imported or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import normpath
from typing import Final

FILES_MAX: Final = 2000
FILE_BYTES_MAX: Final = 1024 * 1024
TREE_BYTES_MAX: Final = 32 * 1024 * 1024

READ_SUFFIXES: Final = (
    ".py",
    ".sh",
    ".bash",
    ".slurm",
    ".sbatch",
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".cfg",
    ".ini",
    ".ipynb",
    ".env",
    ".gin",
    ".mk",
    ".pbs",
    ".lsf",
    ".job",
    ".sub",
    ".conf",
    ".jsonc",
    ".zsh",
    ".md",
)
NAMED_MAX: Final = 64


def worth_reading(path: str) -> bool:
    """Tell whether a file may say something about a job: by its suffix, at the top, or without a suffix (Makefile, hosts)."""
    name = path.rsplit("/", 1)[-1]
    return path.endswith(READ_SUFFIXES) or "/" not in path or ("." not in name and len(name) < NAMED_MAX)


@dataclass(frozen=True, slots=True)
class Tree:
    """Files by their path relative to where the job starts. `left_out` says why something is not among them."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def find(self, path: str) -> str | None:
        """Return the path under which a file is known: itself, or the only file that ends in it."""
        wanted = normpath(path).lstrip("/")
        if wanted in self.files:
            return wanted
        ending = [known for known in self.files if known.endswith("/" + wanted)]
        return ending[0] if len(ending) == 1 else None

    def text(self, path: str) -> str | None:
        """Return a file's text, or None when it is not there."""
        content = self.files.get(path)
        return content.decode("utf-8", "replace") if content is not None else None


def bounded(files: Mapping[str, bytes], left_out: tuple[str, ...] = ()) -> Tree:
    """Return the tree of those files that are worth reading, within the bounds."""
    kept: dict[str, bytes] = {}
    skipped = list(left_out)
    total = 0
    for path in sorted(files):
        content = files[path]
        if not worth_reading(path):
            continue
        if len(content) > FILE_BYTES_MAX:
            skipped.append(f"{path} is larger than {FILE_BYTES_MAX} bytes")
            continue
        total += len(content)
        if len(kept) >= FILES_MAX or total > TREE_BYTES_MAX:
            skipped.append("the source is larger than what is read of it")
            break
        kept[path] = content
    return Tree(kept, tuple(skipped))
