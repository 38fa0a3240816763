"""Python's functions over sequences whose elements are known one by one: map, filter, zip, enumerate and their like."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.values import UNKNOWN, Call, Record, Scope, V

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.calls import Calls

_Rule = Callable[["Calls", Call, Scope], V | None]
SMALL: Final = 64  # elements; small tables are followed, data is not


def elements_of_range(call: Call) -> list[V] | None:
    """Return the numbers of `range(…)` where they are few and known."""
    if call.name != "builtins.range" or not call.args or call.kwargs:
        return None
    numbers = [a.data for a in call.args]
    if not all(type(n) is int for n in numbers) or len(numbers) > len(("start", "stop", "step")):
        return None
    try:
        counted = range(*numbers)
    except ValueError:
        return None
    return [V(n, call.place, Basis.COMPUTED) for n in counted] if len(counted) <= SMALL else None


def _given(machine: Calls, values: Iterable[V]) -> list[list[V]] | None:
    """Return the elements of each value; None where one is data, or not known: then the call stays what it is."""
    out: list[list[V]] = []
    for value in values:
        found = machine.elements(value)
        if found is None or len(found) > SMALL:
            return None
        out.append(found)
    return out


def _map(machine: Calls, call: Call, scope: Scope) -> V | None:
    given = _given(machine, call.args[1:])
    if not given:
        return None
    return V(
        [machine.call(call.args[0], list(row), {}, scope, ast.Constant(0)) for row in zip(*given, strict=False)],
        call.place,
    )


def _filter(machine: Calls, call: Call, scope: Scope) -> V | None:
    given = _given(machine, call.args[1:2])
    if not given:
        return None
    keep: list[V] = []
    for element in given[0]:
        told = element if call.args[0].data is None else machine.call(call.args[0], [element], {}, scope, ast.Constant(0))  # fmt: skip
        truth = machine.truth(told)
        if truth is None:
            return V(UNKNOWN, call.place)
        if truth:
            keep.append(element)
    return V(keep, call.place)


def _zip(machine: Calls, call: Call, _scope: Scope) -> V | None:
    given = _given(machine, call.args)
    return V([V(row, call.place) for row in zip(*given, strict=False)], call.place) if given else None


def _enumerate(machine: Calls, call: Call, _scope: Scope) -> V | None:
    if not call.args or isinstance(call.args[0].data, Call):
        return None  # `enumerate(range(n))` and `enumerate(loader)` are loops that count
    given = _given(machine, call.args[:1])
    start = call.argument(1, "start")
    first = 0 if start is None else start.data
    if not given or not isinstance(first, int):
        return None
    return V([V((V(n, call.place), value), call.place) for n, value in enumerate(given[0], first)], call.place)


def _reversed(machine: Calls, call: Call, _scope: Scope) -> V | None:
    if not call.args or isinstance(call.args[0].data, Call):
        return None
    given = _given(machine, call.args[:1])
    return V(given[0][::-1], call.place) if given else None


def _divmod(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    numbers = [a.data for a in call.args]
    if len(numbers) != len(("dividend", "divisor")) or not all(isinstance(n, (int, float)) for n in numbers):
        return V(UNKNOWN, call.place)
    try:
        return V(
            tuple(V(n, call.place, Basis.COMPUTED) for n in divmod(numbers[0], numbers[1])),
            call.place,
        )
    except ArithmeticError:
        return V(UNKNOWN, call.place)


def _quantified(*, every: bool) -> _Rule:
    def rule(machine: Calls, call: Call, _scope: Scope) -> V | None:
        given = _given(machine, call.args[:1])
        truths = [machine.truth(element) for element in given[0]] if given else [None]
        if (not every) in truths:
            return V(not every, call.place)
        return V(UNKNOWN if None in truths else every, call.place)

    return rule


def _chain(machine: Calls, call: Call, _scope: Scope) -> V | None:
    given = _given(machine, call.args)
    return V([element for each in given for element in each], call.place) if given else None


def _product(machine: Calls, call: Call, _scope: Scope) -> V | None:
    given = _given(machine, call.args)
    if not given or call.kwargs:
        return None
    rows = list(itertools.islice(itertools.product(*given), SMALL * SMALL))
    return V([V(row, call.place) for row in rows], call.place) if len(rows) < SMALL * SMALL else None


def _named_tuple(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """`namedtuple("P", "a b")(1, b=2)`: a record read by its attributes."""
    kind = call.owner
    if kind is None or kind.name.rsplit(".", 1)[-1] != "namedtuple" or len(kind.args) < len(("name", "fields")):
        return None
    fields = kind.args[1].data
    names = (
        fields.replace(",", " ").split()
        if isinstance(fields, str)
        else [str(f.data) for f in fields if isinstance(f, V)]
        if isinstance(fields, (list, tuple))
        else []
    )
    entries = dict(zip(names, call.args, strict=False)) | call.kwargs
    return V(Record({str(k): v for k, v in entries.items()}, attributes=True), call.place) if entries else None


def called(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return what a call of a call's result gives, where that is a named tuple's class."""
    return _named_tuple(machine, call, scope)


BUILTINS: Final[Mapping[str, _Rule]] = {
    "map": _map, "filter": _filter, "zip": _zip, "enumerate": _enumerate, "reversed": _reversed, "divmod": _divmod,
    "all": _quantified(every=True), "any": _quantified(every=False),
}  # fmt: skip
BY_PATH: Final[Mapping[str, _Rule]] = {
    "itertools.chain": _chain,
    "itertools.product": _product,
    "chain.from_iterable": lambda machine, call, scope: (
        _chain(machine, Call(call.name, given[0], {}, call.place, call.certain), scope)
        if (given := _given(machine, call.args[:1]))
        else None
    ),
}
