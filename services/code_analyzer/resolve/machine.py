"""The state of a Python program that is followed, never run: scopes, what it called, what it looped over, and the bounds on it all."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath
from typing import Final

from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.ran import Arg
from schedmate.services.code_analyzer.resolve.values import (
    UNKNOWN,
    WORLD,
    Call,
    Class,
    External,
    Function,
    Instance,
    Place,
    Record,
    Scope,
    V,
)

STEPS_MAX: Final = 150_000
MODULES_MAX: Final = 80
CALLS_DEEP_MAX: Final = 14
EVENTS_MAX: Final = 5000
ELEMENTS_MAX: Final = 2000
SOURCE_MAX: Final = 400_000


class StopError(Exception):
    """The program was followed as far as the bounds allow."""


class ReturnError(Exception):
    """`return` was reached; its value is `args[0]`."""


class LeaveLoopError(Exception):
    """`break` or `continue` was reached."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over a counter: its name and how far it counts."""

    name: str
    count: V
    place: Place
    certain: bool
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Named:
    """A value that was given a name, and in what role: an assignment, an argument of a call, an attribute."""

    name: str
    value: V
    certain: bool
    inside: str = ""
    """The name of the function called, or of the object that has the attribute."""


@dataclass(slots=True, eq=False)
class Option:
    """A declared argument of a program."""

    names: tuple[str, ...]
    dest: str
    default: V | None
    place: Place
    type: V | None = None
    action: str = "store"
    nargs: str | int | None = None
    const: V | None = None
    positional: bool = False


@dataclass(slots=True, eq=False)
class Parser:
    """A program's declared arguments."""

    options: list[Option] = field(default_factory=list)
    children: dict[str, Parser] = field(default_factory=dict)
    child_dest: str | None = None
    parsed: bool = False
    defaults: dict[str, V] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Method:
    """A method of a plain value: a text, a list, a record, a parser."""

    of: V
    name: str


class Source(str):
    """A text that is a file's content."""

    __slots__ = ("path",)
    path: str

    @classmethod
    def of(cls, text: str, path: str) -> Source:
        """Return the text of the file at `path`."""
        source = cls(text)
        source.path = path
        return source


class PathText(str):
    """A text that is a path object."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class OpenFile:
    """An open file of the source."""

    path: str


@dataclass(slots=True)
class Machine:
    """What following a program builds up."""

    files: Files
    argv: list[Arg] = field(default_factory=list)
    program: str = "command"
    folder: str = ""
    environment: dict[str, Arg] = field(default_factory=dict)
    world: V = field(default_factory=lambda: V(UNKNOWN, role=WORLD))
    gpus: V = field(default_factory=lambda: V(UNKNOWN, role=WORLD))
    nodes: V = field(default_factory=lambda: V(UNKNOWN))
    start: Place = field(default_factory=lambda: Place("command"))
    presets: dict[str, V] = field(default_factory=dict)

    events: list[Call] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    created: list[tuple[Instance, Place]] = field(default_factory=list)
    model_calls: list[Call] = field(default_factory=list)
    arguments: list[Record] = field(default_factory=list)
    configs: list[Record] = field(default_factory=list)
    imports: dict[str, Place] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    commands: dict[int, list[Function]] = field(default_factory=dict)
    parsers: list[Parser] = field(default_factory=list)
    flags: Parser = field(default_factory=Parser)
    flag_values: Record | None = None

    modules: dict[str, Scope] = field(default_factory=dict)
    stars: dict[int, list[str]] = field(default_factory=dict)
    called: set[int] = field(default_factory=set)
    stack: list[int] = field(default_factory=list)
    certain: bool = True
    steps: int = 0
    loop_depth: int = 0
    nesting: int = 0
    """How many loops are open, those of the callers included."""
    statement: str = ""

    def place(self, scope: Scope, node: ast.AST) -> Place:
        """Return where a node stands."""
        return self.files.place(scope.file, getattr(node, "lineno", None))

    def step(self) -> None:
        """Count a step; stop where there were too many."""
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise StopError

    def record(self, call: Call) -> V:
        """Keep a call of a library and return its result."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(call)
        return V(call, call.place)

    def name(self, name: str, value: V, inside: str = "") -> None:
        """Keep a value's name."""
        if len(self.named) < EVENTS_MAX and not isinstance(value.data, (Function, Class, Scope, External)):
            self.named.append(Named(name, value, self.certain, inside))

    def module_file(self, name: str, scope: Scope | None = None, level: int = 0) -> str | None:
        """Return the file of a module of the source, None when it is a library's."""
        path = name.replace(".", "/")
        here = dirname(scope.file) if scope is not None else ""
        if level:
            for _ in range(level - 1):
                here = dirname(here)
            bases: Sequence[str] = (here,)
        else:
            bases = (dirname(self.program), self.folder, "", "src", here, "lib", "python")
        for base in bases:
            stem = normpath(join(base, path)) if path else base
            for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                if candidate.lstrip("/") in self.files.tree.files:
                    return candidate.lstrip("/")
            self.files.missed.add(f"{stem}.py")
        return None
