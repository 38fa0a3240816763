"""What operators give: arithmetic, comparisons, truth, choices, formatted texts."""

# ruff: noqa: FBT003 - truth values are data here

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from posixpath import join
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.machine import (
    ELEMENTS_MAX,
    Machine,
    Method,
    OpenFile,
    Parser,
    PathText,
)
from schedmate.services.code_analyzer.resolve.values import (
    GLOBAL,
    HOLE,
    PER_DEVICE,
    UNKNOWN,
    WORLD,
    Call,
    Class,
    External,
    Function,
    Instance,
    Record,
    Scope,
    V,
)

TEXT_MAX: Final = 20_000
NUMBER_MAX: Final = 10**24
_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_, ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip
_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class Operators(Machine):
    """Follows operators over values."""

    def value(self, node: ast.expr | None, scope: Scope) -> V:
        """Return the value of an expression."""
        raise NotImplementedError

    # --- operators ---------------------------------------------------------------------------------------------------

    def binary(self, node: ast.BinOp, scope: Scope) -> V:
        """Return what `a + b` and the like give."""
        return self.operate(
            type(node.op), self.value(node.left, scope), self.value(node.right, scope), self.place(scope, node)
        )

    def operate(self, op: type[ast.operator], left: V, right: V, place: Any) -> V:
        """Return the value of an operator, its place that of what is not a literal, and its role."""
        role = _role(op, left, right)
        where = left.place or right.place or place
        a, b = left.data, right.data
        if isinstance(a, PathText) and op is ast.Div and isinstance(b, str):
            return V(PathText(join(a, b)), where)
        if isinstance(a, Record) and isinstance(b, Record) and op is ast.BitOr:
            return V(Record({**a.entries, **b.entries}, a.attributes), where)
        if isinstance(a, str) and op is ast.Mod:
            return V(_formatted(a, b), where, Basis.COMPUTED)
        if not left.known or not right.known:
            if isinstance(a, str) and isinstance(b, str) and op is ast.Add:
                return V((a + b)[:TEXT_MAX], where, Basis.COMPUTED)
            return V(UNKNOWN, where, role=role)
        return V(_operated(op, a, b), where, Basis.COMPUTED, role)

    def unary(self, node: ast.UnaryOp, scope: Scope) -> V:
        """Return what `-a`, `not a` and the like give."""
        inner = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth(inner)
            return V(UNKNOWN if truth is None else not truth, inner.place)
        if isinstance(inner.data, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return V(-inner.data if isinstance(node.op, ast.USub) else inner.data, inner.place, inner.basis)
        if isinstance(inner.data, int) and isinstance(node.op, ast.Invert):
            return V(-inner.data - 1, inner.place, inner.basis)
        return V(UNKNOWN, inner.place)

    def boolean(self, node: ast.BoolOp, scope: Scope) -> V:
        """Return what `a and b`, `a or b` give."""
        either = isinstance(node.op, ast.Or)
        open_one = False
        last = V(UNKNOWN)
        for part in node.values:
            last = self.value(part, scope)
            truth = self.truth(last)
            if truth is None:
                open_one = True
            elif truth == either:
                return (
                    V(either, last.place)
                    if open_one and isinstance(last.data, bool)
                    else V(UNKNOWN)
                    if open_one
                    else last
                )
        return V(UNKNOWN, last.place) if open_one else last

    def compare(self, node: ast.Compare, scope: Scope) -> V:
        """Return whether a chain of comparisons holds."""
        left = self.value(node.left, scope)
        result: V | None = None
        if any(isinstance(n, ast.Constant) and n.value == "resume" for n in [node.left, *node.comparators]):
            self.name("resume", V(True, self.place(scope, node)), "option")  # a mode of the program's own that resumes
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator, scope)
            answer = self._compared(op, left, right)
            if answer is None:
                return V(UNKNOWN, left.place)
            if not answer:
                return V(False, left.place)
            result, left = V(True, left.place), right
        return result or V(UNKNOWN)

    def _compared(self, op: ast.cmpop, left: V, right: V) -> bool | None:
        if isinstance(op, (ast.Is, ast.IsNot)):
            same = _identical(left, right)
            return None if same is None else same == isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            inside = _contains(right, left)
            return None if inside is None else inside == isinstance(op, ast.In)
        if not left.known or not right.known or isinstance(left.data, (Call, External, Record)):
            return None
        try:
            return bool(_COMPARE[type(op)](left.data, right.data))
        except (TypeError, ValueError, RecursionError):
            return None

    def truth(self, value: V) -> bool | None:
        """Tell whether a value counts as true, None where that is not known."""
        data = value.data
        if isinstance(data, Record):
            return True if data.entries else None if data.open else False
        if isinstance(data, (Call, External)):
            return None if isinstance(data, External) or not data.name[:1].isalpha() else _call_truth(data)
        if isinstance(data, (Function, Class, Instance, Scope, Parser, Method, OpenFile)):
            return True
        return bool(data) if value.known else None

    def choice(self, node: ast.IfExp, scope: Scope) -> V:
        """Return what `a if c else b` gives."""
        truth = self.truth(self.value(node.test, scope))
        if truth is not None:
            return self.value(node.body if truth else node.orelse, scope)
        certain, self.certain = self.certain, False
        first, second = self.value(node.body, scope), self.value(node.orelse, scope)
        self.certain = certain
        if first.known and second.known and type(first.data) is type(second.data) and first.data == second.data:
            return first
        if isinstance(first.data, (Call, Instance, External)):
            return first
        return second if isinstance(second.data, (Call, Instance)) else V(UNKNOWN, first.place, role=first.role)

    # --- texts and containers ----------------------------------------------------------------------------------------

    def joined(self, node: ast.JoinedStr, scope: Scope) -> V:
        """Return a formatted text, with holes where a part is not known."""
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            elif isinstance(part, ast.FormattedValue):
                inner = self.value(part.value, scope)
                plain = inner.known and isinstance(inner.data, (str, int, float, bool))
                parts.append(
                    str(inner.data) if plain and part.format_spec is None else HOLE if not plain else str(inner.data)
                )
        return V("".join(parts)[:TEXT_MAX], self.place(scope, node), Basis.COMPUTED)


def _role(op: type[ast.operator], left: V, right: V) -> str | None:
    worlds = (left.role == WORLD, right.role == WORLD)
    if op is ast.Mult and any(worlds):
        return WORLD if all(worlds) else GLOBAL
    if op in (ast.Div, ast.FloorDiv) and worlds[1]:
        return None if worlds[0] else PER_DEVICE
    if op in (ast.Mult, ast.Div, ast.FloorDiv):
        return left.role or right.role
    return None


def _operated(op: type[ast.operator], a: Any, b: Any) -> Any:
    if op is ast.Pow:
        small = isinstance(a, (int, float)) and isinstance(b, (int, float)) and abs(a) <= 10**6 and abs(b) <= 64  # noqa: PLR2004 - keeps powers small
        return a**b if small and not (a == 0 and b < 0) else UNKNOWN
    operation = _BINARY.get(op)
    if operation is None or _too_large(op, a, b):
        return UNKNOWN
    try:
        result = operation(a, b)
    except (TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return UNKNOWN
    if isinstance(result, int) and abs(result) > NUMBER_MAX:
        return UNKNOWN
    return result if isinstance(result, (int, float, str, bool, list, tuple)) else UNKNOWN


def _too_large(op: type[ast.operator], a: Any, b: Any) -> bool:
    """Tell whether an operator would make something that no memory should hold."""
    if op == ast.Mult:
        for text, times in ((a, b), (b, a)):
            if (
                isinstance(text, (str, list, tuple))
                and isinstance(times, int)
                and len(text) * max(0, times) > ELEMENTS_MAX
            ):
                return True
    if op is ast.LShift and isinstance(b, int) and b > 64:  # noqa: PLR2004 - keeps shifts small
        return True
    return (
        op is ast.Add
        and isinstance(a, (str, list, tuple))
        and isinstance(b, (str, list, tuple))
        and len(a) + len(b) > TEXT_MAX
    )


def _formatted(text: str, given: Any) -> str:
    """Return `text % given`, a hole for each part that is not known."""
    values = list(given) if isinstance(given, tuple) else [given]
    plain = [v.data if isinstance(v, V) else v for v in values]
    plain = [p if isinstance(p, (int, float, str)) else HOLE for p in plain]
    try:
        return (text % tuple(plain))[:TEXT_MAX] if "*" not in text and len(text) < TEXT_MAX else HOLE
    except (TypeError, ValueError, OverflowError, MemoryError):
        return HOLE


def _identical(left: V, right: V) -> bool | None:
    for one, other in ((left, right), (right, left)):
        if one.data is None:
            if other.data is UNKNOWN or isinstance(other.data, External):
                return None
            return other.data is None
    if isinstance(left.data, bool) and isinstance(right.data, bool):
        return left.data is right.data
    return None


def _contains(container: V, element: V) -> bool | None:
    if not element.known or not container.known:
        return None
    data = container.data
    if isinstance(data, Record):
        inside = hashable(element.data) and element.data in data.entries
        return True if inside else None if data.open else False
    if isinstance(data, (list, tuple)):
        plain = [v.data if isinstance(v, V) else v for v in data]
        if element.data in [p for p in plain if p is not UNKNOWN and not isinstance(p, (Record, Call, External))]:
            return True
        return None if any(p is UNKNOWN or isinstance(p, (Call, External)) for p in plain) else False
    if isinstance(data, str) and isinstance(element.data, str):
        return element.data in data
    return None


def _call_truth(data: Call) -> bool | None:
    """A call's result counts as true where it makes an object: its name ends in a capitalised word."""
    last = data.name.rsplit(".", 1)[-1]
    return True if last[:1].isupper() else None


def hashable(value: Any) -> bool:
    """Return a value that can be the key of a mapping."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
