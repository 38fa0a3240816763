"""Calls followed: of functions of the program, of classes, and of libraries."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from schedmate.services.code_analyzer.resolve import (
    libraries,
    library_arguments,
    library_dataclasses,
    library_files,
    library_values,
    parsers,
)
from schedmate.services.code_analyzer.resolve.expressions import PASSING, Expressions
from schedmate.services.code_analyzer.resolve.machine import (
    CALLS_DEEP_MAX,
    LeaveLoopError,
    Method,
    ReturnError,
)
from schedmate.services.code_analyzer.resolve.methods import method
from schedmate.services.code_analyzer.resolve.values import (
    UNKNOWN,
    Call,
    Class,
    External,
    Function,
    Instance,
    Record,
    Scope,
    V,
)

RECURSION_MAX: Final = 5
"""How often a function may be on the way at once: loaders of configurations call themselves for what a file inherits from."""
_QUIET: Final = frozenset({"self", "cls"})
_MODEL: Final = re.compile(
    r"(^|[\s_])(model|net|network|backbone|policy|actor|generator|unet|engine|agent|learn|learner)(\s|_|$)"
)

SWEEP_MAX: Final = 400


class Calls(Expressions):
    """Follows calls; what a body does is for whoever follows statements."""

    def block(self, body: list[ast.stmt], scope: Scope) -> None:
        """Follow statements."""
        raise NotImplementedError

    def module(self, path: str, *, main: bool = False) -> Scope | None:
        """Return a module's names, following it when it is new; None when it cannot be read."""
        raise NotImplementedError

    def execute(self, text: str, path: str, scope: Scope) -> None:
        """Follow `exec(TEXT)`."""
        raise NotImplementedError

    def set_attribute(self, owner: V, name: str, value: V) -> None:
        """Set an attribute of a value."""
        raise NotImplementedError

    def call(self, callee: V, args: list[V], kwargs: dict[str, V], scope: Scope, node: ast.AST) -> V:
        """Return what a call gives: by following it, by what is known of the library, or as a call of the unknown."""
        self.step()
        data = callee.data
        if _MODEL.search(self.statement) and not isinstance(data, Method):
            made = getattr(data, "name", "") or (data.of.name if isinstance(data, Instance) else "?")
            self.model_calls.append(
                Call(str(made), args, kwargs, self.place(scope, node), self.certain, None, self.statement)
            )
        if isinstance(data, Function):
            command = library_arguments.command_of(self, data, args, kwargs)
            return command if command is not None else self.call_function(data, args, kwargs)
        if isinstance(data, Class):
            return self.instantiate(data, args, kwargs, self.place(scope, node))
        if isinstance(data, Method):
            return library_arguments.parser_method(self, data, args, kwargs, scope, node) or method(
                self, data.of, data.name, args, kwargs
            )
        if isinstance(data, Instance):
            return self._call_instance(data, args, kwargs)
        name = f"{data.name}.__call__" if isinstance(data, Call) else data.name if isinstance(data, External) else "?"
        if isinstance(data, External) and data.of is not None:
            passing = name.rsplit(".", 1)[-1]
            if passing in PASSING and not (
                passing == "train" and data.of.name.rsplit(".", 1)[-1].endswith(("Trainer", "YOLO"))
            ):
                return library_values.passed(self, data, args, kwargs, self.place(scope, node))
        return self._library(name, data, args, kwargs, scope, node)

    def _library(self, name: str, data: Any, args: list[V], kwargs: dict[str, V], scope: Scope, node: ast.AST) -> V:
        owner = data.of if isinstance(data, External) else data if isinstance(data, Call) else None
        call = Call(name, args, kwargs, self.place(scope, node), self.certain, owner, self.statement)
        if not name.startswith("builtins.") and name.rsplit(".", 1)[-1] not in library_files.CONFIG_KINDS:
            for key, value in kwargs.items():
                self.name(key, value, name)
        known = libraries.library_call(self, call, scope, node)
        if known is not None:
            return known
        value = self.record(call)
        library_values.call_back(self, call)
        return value

    def _call_instance(self, data: Instance, args: list[V], kwargs: dict[str, V]) -> V:
        for name in ("__call__", "forward"):
            found = self.of_class(data.of, name)
            if found is not None and isinstance(found.data, Function):
                bound = Function(found.data.name, found.data.node, found.data.scope, found.data.owner, V(data))
                return self.call_function(bound, args, kwargs)
        return V(UNKNOWN)

    def call_function(self, function: Function, args: list[V], kwargs: dict[str, V]) -> V:
        """Return what a function of the source gives, following its body; recursion and depth are bounded."""
        node = function.node
        if self.stack.count(id(node)) >= RECURSION_MAX or len(self.stack) >= CALLS_DEEP_MAX:
            return V(UNKNOWN)
        self.called.add(id(node))
        args = function.partial[0] + args
        kwargs = {**function.partial[1], **kwargs}
        if function.bound is not None and not any(_named(d, "staticmethod") for d in function.decorators):
            args = [function.bound, *args]
        inner = Scope(function.scope.file, {}, function.scope)
        self._parameters(node, args, kwargs, inner, function)
        self.stack.append(id(node))
        depth, self.loop_depth = self.loop_depth, 0
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, inner)
            self.block(node.body, inner)
        except ReturnError as returned:
            value: V = returned.args[0]
            early = inner.names.get("__returned__")
            return early if early is not None and not value.known and early.known else value
        except LeaveLoopError:
            pass
        except RecursionError:
            self.files.missing(f"{inner.file} is nested too deeply")
        finally:
            self.stack.pop()
            self.loop_depth = depth
        return inner.names.get("__returned__", V(None))

    def _parameters(self, node: Any, args: list[V], kwargs: dict[str, V], inner: Scope, function: Function) -> None:
        spec = node.args
        names = [a.arg for a in [*spec.posonlyargs, *spec.args]]
        defaults = dict(zip(reversed(names), reversed(spec.defaults), strict=False))
        defaults.update({a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None})
        for name, value in zip(names, args, strict=False):
            inner.names[name] = value
        rest = dict(kwargs)
        for name in [*names, *(a.arg for a in spec.kwonlyargs)]:
            if name in rest:
                inner.names[name] = rest.pop(name)
            elif name not in inner.names:
                default = defaults.get(name)
                inner.names[name] = self.value(default, function.scope) if default is not None else V(UNKNOWN)
            if name not in _QUIET:
                self.name(name, inner.names[name], function.name)
        if spec.vararg is not None:
            inner.names[spec.vararg.arg] = V(args[len(names) :])
        if spec.kwarg is not None:
            inner.names[spec.kwarg.arg] = V(Record(rest))

    def instantiate(self, made: Class, args: list[V], kwargs: dict[str, V], place: Any) -> V:
        """Return an object of a class of the source."""
        instance = Instance(made, {})
        value = V(instance, place)
        if len(self.created) < SWEEP_MAX:
            self.created.append((instance, place))
        fields = library_dataclasses.fields_of(self, made)
        if fields is not None:
            instance.attributes.update(fields)
            instance.attributes.update(dict(zip(fields, args, strict=False)))
            instance.attributes.update(kwargs)
            for key, inner in instance.attributes.items():
                self.name(key, inner, made.name)
            after = self.of_class(made, "__post_init__")
            if after is not None and isinstance(after.data, Function):
                self.call_function(Function(after.data.name, after.data.node, after.data.scope, made, value), [], {})
            return value
        for key, inner in kwargs.items():
            self.name(key, inner, made.name)
        start = self.of_class(made, "__init__")
        if start is not None and isinstance(start.data, Function):
            self.call_function(Function("__init__", start.data.node, start.data.scope, made, value), args, kwargs)
            for key, inner in kwargs.items():
                instance.attributes.setdefault(key, inner)
        else:
            instance.attributes.update(kwargs)
            base = self.library_base(made)
            if base is not None:
                self.record(Call(base, args, kwargs, place, self.certain, text=self.statement))
        return value

    def flag_record(self) -> Record:
        """Return the values of the flags that the program defines one by one (absl, TensorFlow 1)."""
        if self.flag_values is None:
            self.flag_values = parsers.parse(self, self.flags)
        return self.flag_values


def _named(value: V, name: str) -> bool:
    return isinstance(value.data, External) and value.data.name.rsplit(".", 1)[-1] == name
