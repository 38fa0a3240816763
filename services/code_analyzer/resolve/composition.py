"""Hydra's composition (defaults lists, groups, packages, overrides) and OmegaConf's interpolation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.configs import given_value, load, scalar
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.ran import Arg
from schedmate.services.code_analyzer.resolve.shell_words import calculated
from schedmate.services.code_analyzer.resolve.values import UNKNOWN, Place, Record, V, merged

DEPTH_MAX: Final = 12
OVERRIDE: Final = re.compile(
    r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*(?:\[\d+\][\w.]*)?)=(?P<value>.*)", re.DOTALL
)
_INTERPOLATION: Final = re.compile(r"\$\{([^${}]*)\}")
_PACKAGE: Final = re.compile(r"#\s*@package\s+(\S+)")


@dataclass(slots=True)
class Composer:
    """Composes a configuration from a folder of groups."""

    files: Files
    folder: str
    choices: dict[str, tuple[str | None, Place | None]] = field(default_factory=dict)
    chosen: dict[str, V] = field(default_factory=dict)

    def compose(self, name: str, overrides: list[Arg], *, several: bool = False) -> Record | None:
        """Return the configuration `name` with overrides applied, None when there is none. `several` tells of a multirun."""
        values: list[tuple[str, str, Arg]] = []
        for word in overrides:
            found = OVERRIDE.fullmatch(word.text)
            if found is None:
                continue
            key, value = found["key"], found["value"]
            group = key.split("@")[0]
            if self._is_group(group) and "." not in group:
                none = value in ("null", "none") or (several and chooses(value))
                self.choices[group] = (None if none else value.strip("\"'"), word.place)
            else:
                values.append((found["sign"] or "", key, Arg(value, word.place)))
        primary = self._read(name)
        if primary is None:
            return None
        self._collect(primary, "", 0)
        record = self._build(primary, "", 0)
        record = self._added(record, primary)
        for sign, key, value_arg in values:
            override(record, key, value_arg, sign, several=several)
        return record

    def _is_group(self, group: str) -> bool:
        prefix = normpath(join(self.folder, group)).lstrip("/") + "/"
        return any(path.startswith(prefix) for path in self.files.tree.files)

    def _path(self, name: str) -> str:
        return normpath(join(self.folder, name if name.endswith((".yaml", ".yml")) else name + ".yaml")).lstrip("/")

    def _read(self, name: str) -> Record | None:
        path = self._path(name)
        if path not in self.files.tree.files:
            path = path.removesuffix(".yaml") + ".yml"
        if path not in self.files.tree.files:
            self.files.missed.add(path)
            return None
        record = load(path, self.files, inherit=0)
        if record is not None:
            text = self.files.text(path) or ""
            package = _PACKAGE.search(text.split("\n\n", 1)[0][:500])
            record.kind = package[1] if package is not None else ""
        return record

    def _defaults(self, record: Record) -> list[tuple[str, str | None, Place | None, bool]]:
        """Return a defaults list's items: group, name, place, and whether it overrides a choice."""
        items: list[tuple[str, str | None, Place | None, bool]] = []
        listed = record.entries.get("defaults")
        for item in listed.data if listed is not None and isinstance(listed.data, list) else []:
            if isinstance(item.data, str):
                items.append(("", item.data, item.place, False))
            elif isinstance(item.data, Record):
                for key, value in item.data.entries.items():
                    words = str(key).split()
                    name = None if value.data is None else str(value.data)
                    items.append((words[-1], name, value.place, "override" in words[:-1]))
        return items

    def _collect(self, record: Record, group: str, depth: int) -> None:
        """Find the choices that nested configurations override, before anything is built."""
        if depth > DEPTH_MAX:
            return
        for key, name, place, overrides in self._defaults(record):
            target = _target(group, key)
            if overrides:
                self.choices.setdefault(target.split("@")[0], (name, place))
        for key, name, _, overrides in self._defaults(record):
            chosen = self._choice(_target(group, key), name) if key else name
            if not overrides and chosen not in (None, "_self_"):
                inner = self._read(join(_target(group, key), chosen or "") if key else _absolute(group, chosen or ""))
                if inner is not None:
                    self._collect(
                        inner,
                        _target(group, key).split("@")[0] if key else dirname(_absolute(group, chosen or "")),
                        depth + 1,
                    )
        for target in [t for t in self.choices if depth == 0]:
            inner = self._read(join(target, self.choices[target][0] or ""))
            if inner is not None:
                self._collect(inner, target, depth + 1)

    def _choice(self, target: str, name: str | None) -> str | None:
        chosen = self.choices.get(target.split("@", maxsplit=1)[0])
        return name if chosen is None else chosen[0]

    def _build(self, record: Record, group: str, depth: int) -> Record:
        own = Record({k: v for k, v in record.entries.items() if k != "defaults"}, attributes=True)
        items = self._defaults(record)
        out = Record(attributes=True)
        if depth > DEPTH_MAX:
            return own
        if not any(name == "_self_" and not key for key, name, _, _ in items):
            items = [*items, ("", "_self_", None, False)]
        for key, name, place, overrides in items:
            if overrides:
                continue
            if not key and name == "_self_":
                out = merged(out, self._packaged(own, group, record.kind))
                continue
            out = merged(out, self._item(group, key, name, place, depth))
        return out

    def _item(self, group: str, key: str, name: str | None, place: Place | None, depth: int) -> Record:
        target = _target(group, key) if key else dirname(_absolute(group, name or ""))
        chosen = self._choice(target, name) if key else name
        if chosen is None:
            return Record(attributes=True)
        inner = self._read(join(target.split("@")[0], chosen) if key else _absolute(group, chosen))
        at = self.choices.get(target.split("@")[0], (None, place))[1] or place
        self.chosen[target] = V(chosen, at)
        if inner is None:
            record = Record(attributes=True)
            if key:
                record.put(target.split("@")[-1].replace("/", "."), V(chosen, at))
            return record
        if "@" in target and not inner.kind:
            inner.kind = target.split("@")[1]
        return self._build(inner, target.split("@")[0], depth + 1)

    @staticmethod
    def _packaged(record: Record, group: str, package: str) -> Record:
        if package == "_global_" or (not group and package in ("", "_group_")):
            return record
        path = group.replace("/", ".") if package in ("", "_group_") else package
        path = path.replace("_global_.", "").replace("_group_", group.replace("/", "."))
        whole = Record(attributes=True)
        whole.put(path, V(record))
        return whole

    def _added(self, record: Record, primary: Record) -> Record:
        """Add the groups that an override adds (`+exp=long`) and no defaults list has."""
        listed = {_target("", key).split("@")[0] for key, _, _, _ in self._defaults(primary) if key} | set(self.chosen)
        for target, (name, place) in self.choices.items():
            if target not in listed and name is not None:
                record = merged(record, self._item("", target, name, place, 1))
        return record


def _target(group: str, key: str) -> str:
    if key.startswith("/"):
        return key[1:]
    return join(group, key) if group else key


def _absolute(group: str, name: str) -> str:
    return name[1:] if name.startswith("/") else join(group, name)


def chooses(text: str) -> bool:
    """Tell whether an override of a sweep names several choices."""
    return re.search(r"[^\[({]*,", text) is not None and text[:1] not in "[{(\"'"


def override(record: Record, key: str, value: Arg, sign: str = "", *, several: bool = False) -> None:
    """Apply one override; a list of choices of a sweep leaves the value unknown."""
    key = key.replace("/", ".")
    if sign == "~":
        parent, _, leaf = key.rpartition(".")
        holder = record.get(parent).data if parent and record.get(parent) is not None else record  # type: ignore[union-attr]
        if isinstance(holder, Record):
            holder.entries.pop(leaf, None)
        return
    text = value.text
    if several and chooses(text):
        record.put(key, V(UNKNOWN, value.place))
        return
    record.put(key, given_value(text.strip("\"'") if text[:1] not in "[{" else text, value.place))


# --- interpolation ---------------------------------------------------------------------------------------------------

_RESOLVERS: Final[Mapping[str, Callable[..., float]]] = {
    "mul": lambda a, b: a * b, "multiply": lambda a, b: a * b, "prod": lambda a, b: a * b, "times": lambda a, b: a * b,
    "div": lambda a, b: a / b, "divide": lambda a, b: a / b, "floor_div": lambda a, b: a // b, "int_div": lambda a, b: a // b,
    "idiv": lambda a, b: a // b, "div_up": lambda a, b: -(-a // b), "ceil_div": lambda a, b: -(-a // b), "add": lambda a, b: a + b,
    "sum": lambda a, b: a + b, "sub": lambda a, b: a - b, "subtract": lambda a, b: a - b, "max": max, "min": min,
    "int": math.floor, "floor": math.floor, "ceil": math.ceil, "round": round,
}  # fmt: skip


def interpolated(record: Record, environment: Mapping[str, Arg]) -> Record:
    """Return a record with its `${…}` resolved, as far as that can be done."""
    return _Interpolation(record, environment).run()


@dataclass(slots=True)
class _Interpolation:
    root: Record
    environment: Mapping[str, Arg]
    seen: set[int] = field(default_factory=set)
    steps: int = 0

    def run(self) -> Record:
        for _ in range(3):
            self.seen = set()
            self._walk(self.root, "", 0)
        return self.root

    def _walk(self, record: Record, path: str, depth: int) -> None:
        if depth > DEPTH_MAX or id(record) in self.seen:
            return
        self.seen.add(id(record))
        for key, value in list(record.entries.items()):
            if isinstance(value.data, Record):
                self._walk(value.data, f"{path}.{key}" if path else str(key), depth + 1)
            elif isinstance(value.data, list):
                for n, inner in enumerate(value.data):
                    if isinstance(inner, V) and isinstance(inner.data, Record):
                        self._walk(inner.data, path, depth + 1)
                    elif isinstance(inner, V) and isinstance(inner.data, str) and "${" in inner.data:
                        value.data[n] = self._resolved(inner, path)
            elif isinstance(value.data, str) and "${" in value.data:
                record.entries[key] = self._resolved(value, path)

    def _resolved(self, value: V, path: str) -> V:
        whole = re.fullmatch(r"\$\{([\w.\[\]-]+)\}", value.data)
        if whole is not None:
            target = self._lookup(whole[1], path)
            return value if target is None else V(target.data, target.place or value.place, target.basis, target.role)
        text: str = value.data
        for _ in range(12):
            found = _INTERPOLATION.search(text)
            self.steps += 1
            if found is None or self.steps > 5000:  # noqa: PLR2004 - enough for any configuration
                break
            inner = self._one(found[1], path)
            if inner is None:
                return V(UNKNOWN, value.place)
            text = text[: found.start()] + inner + text[found.end() :]
        return V(scalar(text), value.place, Basis.COMPUTED)

    def _lookup(self, name: str, path: str) -> V | None:
        if name.startswith("."):
            up = len(name) - len(name.lstrip("."))
            parts = path.split(".") if path else []
            base = parts[: len(parts) - (up - 1)] if up > 1 else parts
            name = ".".join([*base, name.lstrip(".")])
        return self.root.get(name)

    def _one(self, expression: str, path: str) -> str | None:
        name, colon, rest = expression.partition(":")
        if not colon:
            target = self._lookup(name, path)
            return (
                None
                if target is None or isinstance(target.data, (Record, list)) or not target.known
                else str(target.data)
            )
        arguments = [a.strip().strip("'\"") for a in rest.split(",")]
        if name in ("oc.env", "env"):
            known = self.environment.get(arguments[0])
            return known.text if known is not None else arguments[1] if len(arguments) > 1 else None
        if name in ("eval", "calc", "oc.calc"):
            value = calculated(rest.strip().strip("'\""))
            return None if value is None else str(value)
        return self._number(name.rsplit(".", 1)[-1], arguments)

    @staticmethod
    def _number(name: str, arguments: list[str]) -> str | None:
        resolver = _RESOLVERS.get(name)
        numbers: list[Any] = [scalar(a) for a in arguments]
        if resolver is None or not all(isinstance(n, (int, float)) for n in numbers):
            return None
        try:
            value = resolver(*numbers)
        except (ArithmeticError, TypeError, ValueError):
            return None
        return str(int(value) if float(value).is_integer() else value)
