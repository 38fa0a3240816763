"""The fields of dataclasses and of what is built like them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from schedmate.services.code_analyzer.resolve import parsers
from schedmate.services.code_analyzer.resolve.values import (
    UNKNOWN,
    Call,
    Class,
    External,
    Function,
    V,
)

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.calls import Calls


def kinds_of(machine: Calls, made: Class) -> dict[str, V | None]:
    """Return the plain types of a class's annotated fields."""
    kinds: dict[str, V | None] = {}
    for base in made.bases:
        if isinstance(base.data, Class):
            kinds.update(kinds_of(machine, base.data))
    for node in made.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kinds[node.target.id] = parsers.annotation(machine, node.annotation, made)
    return kinds


_DATA_DECORATORS: Final = ("dataclass", "define", "frozen", "attrs", "s", "chz", "configclass")
_DATA_BASES: Final = (
    "BaseModel",
    "NamedTuple",
    "BaseSettings",
    "Tap",
    "Module",
    "PretrainedConfig",
    "Serializable",
    "FlattenedAccess",
)


def fields_of(machine: Calls, made: Class) -> dict[str, V] | None:
    """Return the fields of a dataclass and its like with their defaults; None for another class."""
    bases = [b.data for b in made.bases]
    own = any(d.rsplit(".", 1)[-1] in _DATA_DECORATORS for d in made.decorators)
    named = [b.name.rsplit(".", 1)[-1] for b in bases if isinstance(b, External)]
    linen = any(isinstance(b, External) and "linen" in b.name for b in bases) or any(b.name.startswith("nn.") and "flax" in str(machine.imports) for b in bases if isinstance(b, External))  # fmt: skip
    if not own and not linen and not any(n in _DATA_BASES and n != "Module" for n in named):
        inherited = [fields_of(machine, b) for b in bases if isinstance(b, Class)]
        return (
            next((f for f in inherited if f is not None), None) if machine.of_class(made, "__init__") is None else None
        )
    fields: dict[str, V] = {}
    for base in bases:
        if isinstance(base, Class):
            fields.update(fields_of(machine, base) or {})
    for node in made.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = made.scope.names.get(node.target.id)
            fields[node.target.id] = (
                V(UNKNOWN, machine.place(made.scope, node))
                if default is None
                else _field_default(machine, default, made)
            )
    return fields


def _field_default(machine: Calls, default: V, made: Class) -> V:
    call = default.data
    if isinstance(call, Call) and call.name.rsplit(".", 1)[-1] in ("field", "Field", "attrib", "ib", "list_field"):
        factory = call.kwargs.get("default_factory", call.kwargs.get("factory"))
        if factory is not None and isinstance(factory.data, (Function, Class)):
            return machine.call(factory, [], {}, made.scope, made.node)
        value = call.argument(0, "default")
        return V(UNKNOWN, default.place) if value is None else V(value.data, value.place or default.place, value.basis)
    return default
