"""Which framework a job is of, by its command, its script, its calls, its imports and its configuration."""

from __future__ import annotations

import re
from typing import Any, Final

from schedmate.services.code_analyzer.resolve.facts import Facts, Found, Framework
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.values import Place, Record


def detect(facts: Facts) -> Framework | None:
    """Return the job's framework, the most specific that its signs speak for."""
    tables: list[dict[str, Any]] = knowledge("frameworks")["framework"]
    for rule in (_by_command, _by_script, _by_calls, _by_keys, _by_flags, _by_import):
        for table in tables:
            place = rule(facts, table)
            if place is not None:
                return Framework(table, place)
    return _by_launcher(facts)


_LAUNCHERS: Final = {"torchrun": "pytorch", "torch.distributed.launch": "pytorch", "accelerate": "pytorch", "deepspeed": "deepspeed", "composer": "composer", "paddle.distributed.launch": "paddle", "fleetrun": "paddle", "colossalai": "colossalai"}  # fmt: skip


def _by_launcher(facts: Facts) -> Framework | None:
    """A program that is not to be seen is of the framework whose launcher starts it."""
    for name, place in reversed(facts.launch.launchers):
        table = table_of(_LAUNCHERS.get(name, ""))
        if table is not None:
            return Framework(table, place)
    return None


def table_of(name: str) -> dict[str, Any] | None:
    """Return a framework's table."""
    tables: list[dict[str, Any]] = knowledge("frameworks")["framework"]
    return next((t for t in tables if t["name"] == name), None)


def _by_command(facts: Facts, table: dict[str, Any]) -> Place | None:
    launch = facts.launch
    if launch.command in table.get("commands", ()):
        return launch.place
    if launch.module is not None and any(
        launch.module == m or launch.module.startswith(m + ".") for m in table.get("modules", ())
    ):
        return launch.place
    names = [name for name, _ in launch.launchers]
    return launch.place if any(name in names for name in table.get("launchers", ())) else None


def _by_script(facts: Facts, table: dict[str, Any]) -> Place | None:
    """A well-known script's name counts where its own source is not there to say otherwise."""
    name = (facts.launch.program or "").removeprefix("./")
    if facts.code or not name or not any(re.search(rf"(^|/){p}$", name) for p in table.get("scripts", ())):
        return None
    if table.get("both") and _by_keys(facts, table) is None and _by_flags(facts, table) is None:
        return None
    marks = table.get("marks")
    if marks and not any(mark in str(s.data) for s in facts.settings for mark in marks if isinstance(s.data, str)):
        return None
    if (
        not table.get("both")
        and table.get("keys")
        and table.get("base") is None
        and len(name.split("/")[-1]) <= len("train.py")
        and _by_keys(facts, table) is None
    ):
        return None  # `train.py` alone says nothing
    return facts.launch.place


def _by_calls(facts: Facts, table: dict[str, Any]) -> Place | None:
    for pattern in table.get("calls", ()):
        call = facts.call(pattern)
        if call is not None:
            return call.place
    if table.get("base") or table.get("only_calls"):
        return None
    names = {i.split(".", 1)[0]: place for i, place in facts.imports.items()} | facts.imports
    if table.get("calls") and table["name"] not in ("trl", "lightning", "sentence-transformers", "fastai"):
        return None
    return next((names[i] for i in table.get("imports", ()) if i in names), None)


def _by_keys(facts: Facts, table: dict[str, Any]) -> Place | None:
    keys = table.get("keys", ())
    if not keys or (facts.code and table.get("both")):
        return None
    packages = table.get("imports", ())
    if facts.code and packages and not any(i == p or i.startswith(p + ".") for i in facts.imports for p in packages):
        return None  # a program of its own whose configuration only looks like that framework's
    if table.get("both") and not table.get("scripts"):
        return None
    found = [place for key in keys if (place := _key(facts, key)) is not None]
    if len(found) < int(table.get("min", 1)):
        return None
    marks = table.get("marks")
    if marks and not any(mark in str(s.data) for s in facts.settings for mark in marks if isinstance(s.data, str)):
        return None
    return found[0]


def _key(facts: Facts, key: str) -> Place | None:
    key, _, start = key.partition(":")
    for record in facts.configs:
        value = record.get(key)
        if value is None and start:
            value = next(
                (s.value for s in facts.settings if s.path.endswith(key) and str(s.data).startswith(start)), None
            )
        if value is not None and (not isinstance(value.data, Record) or value.data.entries):
            return value.place or facts.launch.place
    return None


def _by_flags(facts: Facts, table: dict[str, Any]) -> Place | None:
    flags = frozenset(table.get("flags", ()))
    if not flags or facts.code:
        return None
    other = table.get("not_with")
    if other is not None and any(other in name for name, _ in facts.launch.launchers):
        return None
    given = {s.path.replace("-", "_"): s.value.place for s in facts.settings if s.rank == 0} | {
        str(k): v.place for r in facts.configs for k, v in r.entries.items() if table.get("both")
    }
    found = [place for name, place in given.items() if name in flags]
    return found[0] or facts.launch.place if len(found) >= int(table.get("min", 3)) else None


def _by_import(facts: Facts, table: dict[str, Any]) -> Place | None:
    if not table.get("base"):
        return None
    for name in table.get("imports", ()):
        for imported, place in facts.imports.items():
            if imported == name or imported.startswith(name + "."):
                return place
    return None


def as_found(framework: Framework | None) -> Found | None:
    """Return the framework as a field."""
    return Found(framework.name, framework.place) if framework is not None else None
