"""What built-ins and small library calls give: numbers, texts, containers, paths, attributes; what passes through."""

# ruff: noqa: FBT003 - truth values are data here

from __future__ import annotations

import ast
from collections.abc import Callable
from posixpath import join, splitext
from typing import TYPE_CHECKING, Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve import lengths
from schedmate.services.code_analyzer.resolve.library_files import Rule, attributed, find
from schedmate.services.code_analyzer.resolve.machine import Method, PathText
from schedmate.services.code_analyzer.resolve.values import (
    HOLE,
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
    merged,
)

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.calls import Calls
_COUNTERS: Final = frozenset({"range", "trange", "xrange", "arange"})
_WRAPPERS: Final = frozenset({"tqdm", "enumerate", "track", "iter", "prefetch", "islice", "cycle", "log_every", "tqdm_notebook", "auto", "notebook", "progress_bar", "list"})  # fmt: skip


# --- numbers of devices and processes --------------------------------------------------------------------------------


def world_size(machine: Calls, _call: Call, _scope: Scope) -> V | None:
    """Return the number of processes."""
    return machine.world


def gpus_seen(machine: Calls, _call: Call, _scope: Scope) -> V | None:
    """Return the number of devices of the first node."""
    return machine.gpus


def process_count(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return JAX's number of processes: one a node, each of which drives the node's devices."""
    world, gpus = machine.world.data, machine.gpus.data
    if isinstance(world, int) and isinstance(gpus, int) and gpus > 0:
        return V(max(1, world // gpus), call.place)
    return machine.world


def zero(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the first process's number."""
    return V(0, call.place)


def yes(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return true: the first process, on a machine with devices."""
    return V(True, call.place)


# --- environment, files, modules -------------------------------------------------------------------------------------


def environment_value(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return what the environment has, or the default that is given."""
    name = call.argument(0, "key")
    if name is None or not isinstance(name.data, str):
        return V(UNKNOWN)
    if name.data in machine.environment:
        return machine.environ(name.data)
    if name.data in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        return V(UNKNOWN, role=WORLD if name.data == "WORLD_SIZE" else None)
    return call.argument(1, "default") or V(None, call.place)


# --- data and loops --------------------------------------------------------------------------------------------------


def iteration(machine: Calls, source: V) -> tuple[V | None, V]:
    """Return how often a loop over a value turns, None when it counts nothing known, and what an element is."""
    data = source.data
    if isinstance(data, Call):
        last = data.name.rsplit(".", 1)[-1]
        if last in _COUNTERS:
            stop = data.args[1] if len(data.args) > 1 else data.args[0] if data.args else V(UNKNOWN)
            if len(data.args) > 1 and data.args[0].data == 1 and isinstance(stop.data, int):
                stop = V(stop.data - 1, stop.place, stop.basis)  # counted from one
            return stop, V(UNKNOWN, data.place)
        if last in _WRAPPERS and data.args:
            return iteration(machine, data.args[0])
        count = lengths.length(machine, source)
        return count, V(UNKNOWN, data.place)
    count = lengths.length(machine, source) if isinstance(data, Instance) else None
    return count, V(UNKNOWN, source.place)


def passed(machine: Calls, data: External, args: list[V], kwargs: dict[str, V], place: Any) -> V:
    """Return what a method gives that gives its object back: `.cuda()`, `.map(…)`, `prepare(…)`."""
    owner = data.of
    assert owner is not None
    name = data.name.rsplit(".", 1)[-1]
    machine.record(Call(data.name, args, kwargs, place, machine.certain, owner, machine.statement))
    if name == "prepare" and args:
        return prepared(args[0]) if len(args) == 1 else V(tuple(prepared(a) for a in args), place)
    if name in ("map", "apply"):
        for argument in args:
            if isinstance(argument.data, Function):
                machine.call_function(argument.data, [], {})
    known = lengths.changed(machine, name, owner, args, kwargs)
    if known is None:
        return V(owner, owner.place)
    part = Call(owner.name, owner.args, owner.kwargs, owner.place, owner.certain, owner.owner, owner.text)
    part.attributes = {**owner.attributes, "__len__": known}
    return V(part, owner.place)


def prepared(value: V) -> V:
    """Return a value as `accelerator.prepare` gives it back: a loader is shared among the processes."""
    if isinstance(value.data, Call) and value.data.name.rsplit(".", 1)[-1].endswith("DataLoader"):
        data = value.data
        part = Call(data.name, data.args, data.kwargs, data.place, data.certain, data.owner, data.text)
        part.attributes = {**data.attributes, "__sharded__": V(True)}
        return V(part, value.place)
    return value


def dataset_method(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """`.select(range(n))`, `.filter(…)`: the data set again, of another length."""
    if call.owner is None:
        return None
    owner = call.owner
    part = Call(owner.name, owner.args, owner.kwargs, owner.place, owner.certain, owner.owner, owner.text)
    known = lengths.changed(machine, call.name.rsplit(".", 1)[-1], owner, call.args, call.kwargs)
    part.attributes = {**owner.attributes, "__len__": known or V(UNKNOWN)}
    return V(part, owner.place)


def call_back(machine: Calls, call: Call) -> None:
    """Follow a function of the source that a library is given: `mp.spawn(worker, args=…)`, `launch(main, …)`, a trainer's loop."""
    last = call.name.rsplit(".", 1)[-1]
    given = call.kwargs.get("args", call.kwargs.get("args_tuple"))
    config = call.kwargs.get("train_loop_config", call.kwargs.get("config"))
    for argument in [*call.args, *call.kwargs.values()]:
        if not isinstance(argument.data, Function) or isinstance(argument.data.node, ast.Lambda):
            continue
        if last == "spawn":
            rest = given if given is not None else call.args[1] if len(call.args) > 1 else V(())
            words = [V(0, call.place), *(rest.data if isinstance(rest.data, (tuple, list)) else [])]
            machine.call_function(argument.data, words, {})
        elif given is not None and isinstance(given.data, (tuple, list)):
            machine.call_function(argument.data, [v for v in given.data if isinstance(v, V)], {})
        elif last == "partial":
            return
        else:
            machine.call_function(argument.data, [config] if config is not None else [], {})


# --- built-ins -------------------------------------------------------------------------------------------------------


def number_of(kind: Callable[[Any], Any]) -> Rule:
    """Return the rule of a conversion to a number."""

    def rule(_machine: Calls, call: Call, _scope: Scope) -> V | None:
        value = call.args[0] if call.args else V(0)
        if isinstance(value.data, (int, float, str)) and value.known:
            base = call.argument(1, "base")
            try:
                if base is not None and kind is int and isinstance(value.data, str) and isinstance(base.data, int):
                    return V(int(value.data, base.data), value.place, value.basis, value.role)
                number = kind(float(value.data) if kind is int and isinstance(value.data, str) and "." not in value.data and "e" in value.data else value.data)  # fmt: skip
            except (ValueError, OverflowError):
                return V(UNKNOWN, value.place, role=value.role)
            return V(number, value.place, value.basis, value.role)
        return V(UNKNOWN, value.place, role=value.role)

    return rule


def mathematics(kind: Callable[..., Any]) -> Rule:
    """Return the rule of a function of numbers."""

    def rule(_machine: Calls, call: Call, _scope: Scope) -> V | None:
        if call.args and all(isinstance(a.data, (int, float)) for a in call.args):
            try:
                return V(kind(*(a.data for a in call.args)), call.args[0].place, Basis.COMPUTED, call.args[0].role)
            except (ValueError, TypeError, OverflowError, ArithmeticError):
                return V(UNKNOWN)
        return V(UNKNOWN, role=call.args[0].role if call.args else None)

    return rule


def extreme(kind: Callable[[list[Any]], Any]) -> Rule:
    """Return the rule of a function of several numbers."""

    def rule(machine: Calls, call: Call, _scope: Scope) -> V | None:
        values = call.args if len(call.args) > 1 else machine.elements(call.args[0]) if call.args else None
        if values and all(isinstance(v.data, (int, float)) and not isinstance(v.data, bool) for v in values):
            result = kind([v.data for v in values])
            where = next((v for v in values if v.data == result), values[0])
            return V(result, where.place, Basis.COMPUTED, where.role)
        return V(UNKNOWN)

    return rule


def text_of(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return a value as text."""
    value = call.args[0] if call.args else V("")
    if isinstance(value.data, (str, int, float, bool)):
        return V(value.data if isinstance(value.data, PathText) else str(value.data), value.place, value.basis)
    return V(HOLE, value.place)


def truth_of(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return whether a value counts as true."""
    truth = machine.truth(call.args[0]) if call.args else False
    return V(UNKNOWN if truth is None else truth, call.args[0].place if call.args else call.place)


def length_of(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return how many elements there are."""
    found = lengths.length(machine, call.args[0]) if call.args else None
    return found if found is not None else V(UNKNOWN, call.place)


def list_of(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the elements as a list."""
    elements = machine.elements(call.args[0]) if call.args else []
    if elements is None:
        return None if isinstance(call.args[0].data, Call) else V(UNKNOWN, call.place)
    return V(tuple(elements) if call.name.endswith("tuple") else list(elements), call.place)


def in_order(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the elements in order."""
    elements = machine.elements(call.args[0]) if call.args else None
    if (
        elements is None
        or call.kwargs
        or not (
            all(isinstance(e.data, str) for e in elements) or all(isinstance(e.data, (int, float)) for e in elements)
        )
    ):
        return V(UNKNOWN)
    return V(sorted(elements, key=lambda v: v.data), call.place)


def dictionary_of(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the mapping that `dict(…)` makes."""
    record = Record()
    for given in call.args:
        if isinstance(given.data, Record):
            record.entries.update(given.data.entries)
        elif isinstance(given.data, (list, tuple)):
            for pair in given.data:
                if (
                    isinstance(pair, V)
                    and isinstance(pair.data, (tuple, list))
                    and len(pair.data) == len(("key", "value"))
                    and isinstance(pair.data[0].data, str)
                ):
                    record.entries[pair.data[0].data] = pair.data[1]
        else:
            record.open = True
    record.entries.update(call.kwargs)
    return V(record, call.place)


def record_of(call: Call) -> V:
    """Return the mapping of a call's keyword arguments, with attributes."""
    record = Record(attributes=True)
    for given in call.args:
        if isinstance(given.data, Record):
            record = merged(record, attributed(given.data, attributes=True))
        elif given.data is UNKNOWN:
            record.open = True
    record.entries.update(call.kwargs)
    return V(record, call.place)


def attribute_got(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return what `getattr(…)` gives."""
    if len(call.args) < 2 or not isinstance(call.args[1].data, str) or not call.args[1].known:  # noqa: PLR2004 - object and name
        owner = call.args[0].data if call.args else None
        return V(External(f"{owner.name}.?") if isinstance(owner, External) else UNKNOWN, call.place)
    found = machine.attribute(call.args[0], call.args[1].data, scope, ast.Constant(0))
    missing = isinstance(found.data, Method) or (
        isinstance(found.data, External) and isinstance(call.args[0].data, (Instance, Record, Class))
    )
    if missing and len(call.args) > 2:  # noqa: PLR2004 - with a default
        return call.args[2]
    return V(found.data, found.place or call.args[1].place, found.basis, found.role)


def attribute_set(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Set what `setattr(…)` names."""
    del scope
    if len(call.args) == 3 and isinstance(call.args[1].data, str) and call.args[1].known:  # noqa: PLR2004 - object, name, value
        machine.set_attribute(call.args[0], call.args[1].data, call.args[2])
    return V(None)


def attribute_there(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return whether `hasattr(…)` holds."""
    del machine, scope
    owner = call.args[0].data if call.args else None
    name = call.args[1].data if len(call.args) > 1 else None
    if isinstance(owner, Record):
        return V(True if name in owner.entries else UNKNOWN if owner.open else False)
    return V(UNKNOWN)


def names_of(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return the mapping that `vars(…)`, `globals()` or `locals()` gives."""
    if not call.args:
        names = (scope.module() if call.name.endswith("globals") else scope).names
        return V(Record(names, kind="scope", open=False))
    data = call.args[0].data
    if isinstance(data, Instance):
        return V(Record(data.attributes))
    del machine
    return V(Record(data.entries, open=data.open)) if isinstance(data, Record) else V(UNKNOWN)


def instance_check(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return whether `isinstance(…)` holds, where that can be told."""
    kinds = {"str": str, "int": int, "float": float, "bool": bool, "dict": Record, "list": list, "tuple": tuple}
    if len(call.args) == 2 and isinstance(call.args[1].data, External) and call.args[0].known:  # noqa: PLR2004 - value and type
        kind = kinds.get(call.args[1].data.name.rsplit(".", 1)[-1])
        if kind is not None and isinstance(call.args[0].data, (str, int, float, Record, list, tuple)):
            return V(isinstance(call.args[0].data, kind))
    if len(call.args) == 2 and isinstance(call.args[1].data, tuple) and call.args[0].known and isinstance(call.args[0].data, (str, int, float, Record, list)):  # fmt: skip  # noqa: PLR2004
        named = [kinds.get(k.data.name.rsplit(".", 1)[-1]) for k in call.args[1].data if isinstance(k.data, External)]
        if len(named) == len(call.args[1].data) and all(named):
            return V(any(isinstance(call.args[0].data, k) for k in named if k is not None))
    return V(UNKNOWN)


def path_of(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return a path."""
    texts = [a.data for a in call.args]
    if texts and all(isinstance(t, str) for t in texts):
        return V(PathText(join(*texts)), call.args[0].place)
    return V(UNKNOWN)


def path_function(kind: Callable[..., str]) -> Rule:
    """Return the rule of a function of paths."""

    def rule(_machine: Calls, call: Call, _scope: Scope) -> V | None:
        texts = [a.data for a in call.args]
        return V(kind(*texts), call.args[0].place) if texts and all(isinstance(t, str) for t in texts) else V(UNKNOWN)

    return rule


def split_suffix(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return a path without its suffix, and the suffix."""
    path = call.args[0] if call.args else V(UNKNOWN)
    if not isinstance(path.data, str) or not path.known:
        return V(UNKNOWN, path.place)
    return V(tuple(V(part, path.place) for part in splitext(path.data)), path.place)


def path_exists(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return whether a path exists: nobody can know."""
    return V(True if find(machine, call.argument(0, "path"), scope) is not None else UNKNOWN)


def partial_of(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return a function with arguments given beforehand."""
    target = call.args[0] if call.args else None
    if target is not None and isinstance(target.data, Function):
        inner = target.data
        return V(
            Function(
                inner.name,
                inner.node,
                inner.scope,
                inner.owner,
                inner.bound,
                inner.decorators,
                (call.args[1:], dict(call.kwargs)),
            )
        )
    if target is not None and isinstance(target.data, External):
        machine.record(Call(target.data.name, call.args[1:], dict(call.kwargs), call.place, machine.certain, None, ""))
    return None


def of_super(machine: Calls, _call: Call, scope: Scope) -> V | None:
    """Return what `super()` gives: the instance, seen as its base."""
    own = scope.find("__class__")
    self_ = scope.find("self")
    if own is None or self_ is None or not isinstance(own.data, Class):
        return V(UNKNOWN)
    for base in own.data.bases:
        if isinstance(base.data, Class):
            return V(Instance(base.data, self_.data.attributes if isinstance(self_.data, Instance) else {}))
    return V(External(machine.library_base(own.data) or "object"))


def vars_of_class(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the mapping of an instance's fields."""
    given = call.args[0].data if call.args else None
    return V(Record(dict(given.attributes))) if isinstance(given, Instance) else None


def replaced_fields(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return a copy of an instance with some fields set."""
    given = call.args[0].data if call.args else None
    if isinstance(given, Instance):
        return machine.instantiate(given.of, [], {**given.attributes, **call.kwargs}, call.place)
    return None


def copied(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the value itself: a copy is as good."""
    given = call.args[0] if call.args else V(UNKNOWN)
    return (
        V(attributed(given.data, attributes=given.data.attributes), given.place)
        if isinstance(given.data, Record)
        else given
    )
