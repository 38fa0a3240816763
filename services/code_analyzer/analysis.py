"""The whole of an analysis: from a job and its source to fields with the line that each rests on. Pure; never raises for bad input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schedmate.schemas.events import WORKLOAD_FIELDS, WorkloadField
from schedmate.schemas.job import JobSpec
from schedmate.services.code_analyzer.resolve.facts import Found
from schedmate.services.code_analyzer.resolve.job import resolve
from schedmate.services.code_analyzer.resolve.starting import Start
from schedmate.services.code_analyzer.resolve.units import Units
from schedmate.services.code_analyzer.source import Tree

PARTIAL_MAX: Final = 500
TEXT_MAX: Final = 300
ALGORITHM: Final = 2
"""Part of the content hash: a new way to read makes cached analyses void."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is analysed: how the job is started, on how much, and which file is named as its entry."""

    command: tuple[str, ...] | None = None
    script: str | None = None
    entry: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    nodes: int | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Subject:
        """Return the subject of a job."""
        return cls(spec.command, spec.script, spec.entry, dict(spec.env), spec.gpus, spec.nodes)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Fields that could be told, and why not more; and the files that were read or looked for in vain, on which it rests."""

    fields: dict[str, WorkloadField]
    partial_because: str | None
    read: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    rests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each field the files that it rests on: those that lead to the program, and the one whose line shows it."""
    parsed: frozenset[str] = frozenset()
    reused: frozenset[str] = frozenset()


def content_hash(subject: Subject, source: str) -> str:
    """Return the hash of everything that an analysis depends on. `source` identifies the files (a bundle's hash, a tree's)."""
    told: dict[str, Any] = {
        "algorithm": ALGORITHM, "command": subject.command, "script": subject.script, "entry": subject.entry,
        "environment": dict(sorted(subject.environment.items())), "gpus": subject.gpus, "nodes": subject.nodes, "source": source,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(told, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def tree_hash(tree: Tree) -> str:
    """Return a hash of all files of a tree."""
    digest = hashlib.sha256()
    for path in sorted(tree.files):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(tree.files[path]).digest())
    return digest.hexdigest()


def analyze(subject: Subject, tree: Tree, units: Units | None = None) -> Analysis:
    """Return what the launch command and the source say. `units` holds what earlier analyses have parsed."""
    start = Start(subject.command, subject.script, subject.entry, subject.environment, subject.gpus, subject.nodes)
    resolved = resolve(start, tree, units)
    fields: dict[str, WorkloadField] = {
        name: _field(resolved.fields[name]) for name in WORKLOAD_FIELDS if name in resolved.fields
    }
    partial = "; ".join(resolved.partial)[:PARTIAL_MAX] or None
    rests = {
        name: tuple(sorted(resolved.launch_read | ({one.file} & tree.files.keys() if one.file is not None else set())))
        for name, one in fields.items()
    }
    return Analysis(fields, partial, resolved.read, resolved.missed, rests, resolved.parsed, resolved.reused)


def _field(found: Found) -> WorkloadField:
    value = found.value[:TEXT_MAX] if isinstance(found.value, str) else found.value
    place = found.place
    line = place.line if place is not None and place.line is not None and place.line > 0 else None
    return WorkloadField(
        value=value,
        basis=found.basis,
        file=place.file if place is not None else None,
        line=line,
        confidence=found.confidence,
    )
