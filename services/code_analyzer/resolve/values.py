"""Values as the resolution carries them: what is known, where it stands, and how it came about."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from schedmate.schemas.events import Basis


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a line. `command` and `script` name the job's own."""

    file: str
    line: int | None = None


class Unknown:
    """The value that only running the program could tell."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()
HOLE: Final = "\x01"
"""Stands in a text for a part that only running could tell; no argument can hold it."""

WORLD: Final = "world"
"""Role of a number of processes or devices: what is divided by it was global, what is multiplied with it is per device."""
PER_DEVICE: Final = "per_device"
GLOBAL: Final = "global"


@dataclass(slots=True, repr=False)
class V:
    """A value. `role` says what a number counts where that is known, `basis` whether it stands there or was computed."""

    data: Any
    place: Place | None = None
    basis: Basis = Basis.EXPLICIT
    role: str | None = None

    def __repr__(self) -> str:
        """Show the value, but not what it holds: values refer to each other, and their texts would grow without end."""
        return f"<{type(self.data).__name__}>" if isinstance(self.data, (list, tuple, Record)) else repr(self.data)

    @property
    def known(self) -> bool:
        """Tell whether the value is known: a text with holes is not."""
        if isinstance(self.data, str):
            return HOLE not in self.data
        return self.data is not UNKNOWN

    def at(self, place: Place | None) -> V:
        """Return the value as it stands at a place, unless it has one."""
        return self if self.place is not None else V(self.data, place, self.basis, self.role)


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """A mapping: a dictionary, a namespace of arguments, a configuration. `attributes` tells whether `.key` reads a key."""

    entries: dict[Any, V] = field(default_factory=dict)
    attributes: bool = False
    kind: str = "dict"
    open: bool = False
    """Whether it may hold more than is known."""

    def get(self, path: str) -> V | None:
        """Return the value at a dotted path."""
        current: Any = self
        value: V | None = None
        for part in path.split("."):
            if not isinstance(current, Record) or part not in current.entries:
                return None
            value = current.entries[part]
            current = value.data
        return value

    def put(self, path: str, value: V) -> None:
        """Set the value at a dotted path, making the records on the way; `[3]` and a number name an element of a list."""
        *parents, leaf = path.replace("[", ".").replace("]", "").split(".")
        current = self
        for part in parents:
            inner = current.entries.get(part)
            if inner is not None and isinstance(inner.data, list):
                return
            if inner is None or not isinstance(inner.data, Record):
                inner = V(Record(attributes=self.attributes), value.place)
                current.entries[part] = inner
            current = inner.data
        current.entries[leaf] = value


@dataclass(slots=True, eq=False, repr=False)
class External:
    """A name of a library that is not part of the source, by its dotted path."""

    name: str
    of: Call | None = None


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """The result of calling a library: what was called, with what, and where."""

    name: str
    args: list[V]
    kwargs: dict[str, V]
    place: Place
    certain: bool
    owner: Call | None = None
    text: str = ""
    """The names of the statement it stands in, for words such as `train` and `eval`."""
    attributes: dict[str, V] = field(default_factory=dict)

    def argument(self, position: int, *names: str) -> V | None:
        """Return an argument by position or by any of its names."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[position] if 0 <= position < len(self.args) else None


@dataclass(slots=True, eq=False, repr=False)
class Function:
    """A function of the source, with the scope that it closes over."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    owner: Class | None = None
    bound: V | None = None
    decorators: tuple[V, ...] = ()
    partial: tuple[list[V], dict[str, V]] = field(default_factory=lambda: ([], {}))


@dataclass(slots=True, eq=False, repr=False)
class Class:
    """A class of the source."""

    name: str
    node: ast.ClassDef
    scope: Scope
    bases: tuple[V, ...] = ()
    decorators: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Instance:
    """An object of a class of the source."""

    of: Class
    attributes: dict[str, V]


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """Names of a module or a function. `file` is where they stand."""

    file: str
    names: dict[str, V] = field(default_factory=dict)
    parent: Scope | None = None
    globals: frozenset[str] = frozenset()
    owners: dict[str, Scope] = field(default_factory=dict)  # of the names that are another function's

    def find(self, name: str) -> V | None:
        """Return a name's value, from the innermost scope that has it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def module(self) -> Scope:
        """Return the scope of the module."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


def plain(value: V | None, depth: int = 12) -> Any:
    """Return a value without its places: dictionaries, lists and scalars; UNKNOWN where it is not known."""
    if value is None or depth <= 0:
        return UNKNOWN
    data = value.data
    if isinstance(data, Record):
        return {key: plain(inner, depth - 1) for key, inner in data.entries.items()}
    if isinstance(data, (list, tuple)):
        return [plain(inner, depth - 1) if isinstance(inner, V) else inner for inner in data]
    if isinstance(data, str):
        return data if HOLE not in data else UNKNOWN
    return data if isinstance(data, (int, float, bool, type(None))) else UNKNOWN


def traced(data: Any, place: Place | None, *, attributes: bool = False) -> V:
    """Return plain data as a value that stands at a place."""
    if isinstance(data, Mapping):
        return V(Record({k: traced(v, place, attributes=attributes) for k, v in data.items()}, attributes), place)
    if isinstance(data, (list, tuple)):
        return V([traced(v, place, attributes=attributes) for v in data], place)
    return V(data, place)


def leaves(record: Record, limit: int = 5000) -> Iterator[tuple[str, V]]:
    """Yield the dotted path and the value of all that is in a record, lists as a whole; bounded, whatever refers to what."""
    stack: list[tuple[str, Record, int]] = [("", record, 0)]
    while stack and limit > 0:
        prefix, current, depth = stack.pop()
        for key, value in current.entries.items():
            limit -= 1
            if limit <= 0:
                return
            path = f"{prefix}{key}"
            if isinstance(value.data, Record) and depth < 12:  # noqa: PLR2004 - deeper than any configuration
                stack.append((path + ".", value.data, depth + 1))
            else:
                yield path, value
                if isinstance(value.data, list):
                    stack += [
                        (f"{path}.{n}.", inner.data, depth + 1)
                        for n, inner in enumerate(value.data[:50])
                        if isinstance(inner, V) and isinstance(inner.data, Record)
                    ]


def merged(base: Record, over: Record, depth: int = 12) -> Record:
    """Return both records as one, key by key; the second wins."""
    entries = dict(base.entries)
    for key, value in over.entries.items():
        known = entries.get(key)
        if depth > 0 and isinstance(value.data, Record) and known is not None and isinstance(known.data, Record):
            if "_delete_" in value.data.entries:
                entries[key] = value
            else:
                entries[key] = V(merged(known.data, value.data, depth - 1), value.place)
        else:
            entries[key] = value
    return Record(entries, base.attributes or over.attributes, base.kind, base.open or over.open)
