"""Follows a Python program: modules, statements, functions, classes. What libraries would do is in `libraries`."""

# ruff: noqa: SLF001 - the table of rules names the methods of its own class

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schedmate.services.code_analyzer.resolve import (
    library_arguments,
    library_values,
)
from schedmate.services.code_analyzer.resolve.calls import SWEEP_MAX
from schedmate.services.code_analyzer.resolve.imports import Imports
from schedmate.services.code_analyzer.resolve.machine import (
    MODULES_MAX,
    SOURCE_MAX,
    LeaveLoopError,
    Loop,
    Parser,
    ReturnError,
    StopError,
)
from schedmate.services.code_analyzer.resolve.notebook import python_of
from schedmate.services.code_analyzer.resolve.python_2 import python_2
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

SMALL_LOOP: Final = 64
_LEAVES: Final = (ast.Break, ast.Return)


@dataclass(slots=True)
class Program(Imports):
    """One program, from its first file on."""

    def run(self, path: str) -> Scope | None:
        """Follow the program whose first file is `path`, then what it defines and never calls; return its names."""
        scope = self.module(path, main=True)
        try:
            self._sweep()
        except StopError:
            self.files.missing("the program is longer than what is followed of it")
        return scope

    def module(self, path: str, *, main: bool = False) -> Scope | None:
        """Return a module's names, following it when it is new; None when it cannot be read."""
        known = self.modules.get(path)
        if known is not None:
            return known
        if len(self.modules) >= MODULES_MAX:
            self.files.missing(f"more than {MODULES_MAX} files are imported")
            return None
        tree = self._parsed(path)
        if tree is None:
            return None
        scope = Scope(path)
        scope.names["__name__"] = V("__main__" if main else path.removesuffix(".py").replace("/", "."))
        scope.names["__file__"] = V(path)
        if main:
            scope.names.update(self.presets)
        self.modules[path] = scope
        outer, self.stack = self.stack, []
        try:
            self._guarded(tree.body, scope)
        finally:
            self.stack = outer
        return scope

    def _parsed(self, path: str) -> ast.Module | None:
        text = self.files.text(path)
        if text is None:
            return None
        if len(text) > SOURCE_MAX:
            self.files.missing(f"{path} is longer than {SOURCE_MAX} characters")
            return None
        try:
            if path.endswith(".ipynb"):
                text, self.files.lines[path] = self.files.unit("notebook", path, text, python_of)
            return self.files.unit("python", path, text, ast.parse)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            older = self.files.unit("python 2", path, text, python_2) if isinstance(error, SyntaxError) else None
            if older is not None:
                self.files.missing(f"{path} is Python 2: it is read as far as it resembles Python 3")
                return older
            reason = (
                f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else "it is nested too deeply"
            )
            self.files.missing(f"{path} is no Python 3: {reason}")
            return None

    def _guarded(self, body: list[ast.stmt], scope: Scope) -> None:
        """Follow statements; what stops one of them does not stop the analysis."""
        try:
            self.block(body, scope)
        except (ReturnError, LeaveLoopError):
            pass
        except RecursionError:
            self.files.missing(f"{scope.file} is nested too deeply")

    def execute(self, text: str, path: str, scope: Scope) -> None:
        """Follow `exec(TEXT)`."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        outer, scope.file = scope.file, path or scope.file
        self._guarded(tree.body, scope)
        scope.file = outer

    def _sweep(self) -> None:
        """Follow what is defined and was never called: hooks of trainers, callbacks, methods."""
        self.certain = False
        done = 0
        while done < len(self.functions) and done < SWEEP_MAX:
            function = self.functions[done]
            done += 1
            if id(function.node) in self.called or isinstance(function.node, ast.Lambda):
                continue
            if function.owner is not None:
                bound = next((i for i, _ in self.created if i.of is function.owner), None)
                function = Function(
                    function.name,
                    function.node,
                    function.scope,
                    function.owner,
                    V(bound or Instance(function.owner, {})),
                )
            self.call_function(function, [], {})

    # --- statements --------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], scope: Scope) -> None:
        """Follow statements in order."""
        for statement in body:
            self.step()
            rule = _STATEMENTS.get(type(statement))
            if rule is not None:
                rule(self, statement, scope)

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        self.statement = ""
        self.value(node.value, scope)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        self.statement = _target_names(node.targets)
        value = self.value(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.statement = _target_names([node.target])
            self.bind(node.target, self.value(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        load: Any = node.target
        old = self.value(load, scope) if isinstance(load, (ast.Name, ast.Attribute, ast.Subscript)) else V(UNKNOWN)
        value = self.operate(type(node.op), old, self.value(node.value, scope), self.place(scope, node))
        if self.loop_depth and not isinstance(value.data, (list, str, Record)):
            value = V(UNKNOWN, value.place, role=value.role)
        self.bind(node.target, value, scope)

    def bind(self, target: ast.expr, value: V, scope: Scope) -> None:
        """Give a value to the target of an assignment."""
        if isinstance(target, ast.Name):
            home = scope.module() if target.id in scope.globals else scope.owners.get(target.id, scope)
            if target.id in self.presets and home.parent is None and home.file == self.program:
                return  # a notebook's parameter that the command sets: it is set after the cell that has the default
            home.names[target.id] = value
            self.name(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, scope)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.value(target.value, scope), target.attr, value)
        elif isinstance(target, ast.Subscript):
            self._set_element(self.value(target.value, scope), self.value(target.slice, scope), value)

    def _unpack(self, target: ast.Tuple | ast.List, value: V, scope: Scope) -> None:
        elements = self.elements(value)
        starred = next((n for n, part in enumerate(target.elts) if isinstance(part, ast.Starred)), None)
        if elements is not None and starred is not None and len(elements) >= len(target.elts) - 1:
            behind = len(elements) - (len(target.elts) - starred - 1)
            rest = V(elements[starred:behind], value.place)
            self._unpack_each(target, [*elements[:starred], rest, *elements[behind:]], scope)
            return
        if elements is None or len(elements) != len(target.elts):
            elements = [V(UNKNOWN, value.place)] * len(target.elts)
            if isinstance(value.data, Call):
                elements = _returned(value.data, len(target.elts))
        self._unpack_each(target, elements, scope)

    def _unpack_each(self, target: ast.Tuple | ast.List, elements: list[V], scope: Scope) -> None:
        for part, element in zip(target.elts, elements, strict=True):
            self.bind(part.value if isinstance(part, ast.Starred) else part, element, scope)

    def set_attribute(self, owner: V, name: str, value: V) -> None:
        """Set an attribute of an instance, a record or what is not known."""
        data = owner.data
        self.name(name, value, "attribute")
        if isinstance(data, (Instance, Call)):
            data.attributes[name] = value
        elif isinstance(data, Record):
            if not (not self.certain and name in data.entries and not value.known):
                data.entries[name] = value
        elif isinstance(data, Scope):
            data.names[name] = value
        elif isinstance(data, Class):
            data.scope.names[name] = value
        elif isinstance(data, External):
            self.record(Call(f"{data.name}.{name}=", [value], {}, value.place or self.start, self.certain))

    def _set_element(self, owner: V, key: V, value: V) -> None:
        data = owner.data
        if isinstance(data, Record):
            if key.known and isinstance(key.data, (str, int, float, tuple)):
                plain: Any = tuple(k.data for k in key.data) if isinstance(key.data, tuple) else key.data
                data.entries[plain] = value
                if isinstance(plain, str):
                    self.name(plain, value, "attribute")
            else:
                data.open = True
        elif isinstance(data, list) and isinstance(key.data, int) and -len(data) <= key.data < len(data):
            data[key.data] = value
        elif isinstance(data, Scope) and isinstance(key.data, str):
            data.names[key.data] = value

    def _if(self, node: ast.If, scope: Scope) -> None:
        truth = self.truth(self.value(node.test, scope))
        if truth is not None:
            self.block(node.body if truth else node.orelse, scope)
            return
        self._bound_by(node, scope)
        before = dict(scope.names)
        first = self._maybe(node.body, scope)
        after = dict(scope.names)
        scope.names.clear()
        scope.names.update(before)
        second = self._maybe(node.orelse, scope)
        self._join(scope, before, after, dead=(first, second))

    def _maybe(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Follow a branch that may not be taken; tell whether it ended by leaving."""
        certain, self.certain = self.certain, False
        try:
            self.block(body, scope)
        except ReturnError as left:
            scope.names.setdefault("__returned__", left.args[0])
            return True
        except LeaveLoopError:
            return True
        finally:
            self.certain = certain
        return bool(body) and isinstance(body[-1], ast.Raise)

    @staticmethod
    def _join(scope: Scope, before: Mapping[str, V], after: Mapping[str, V], *, dead: tuple[bool, bool]) -> None:
        """Keep of two branches what they agree on; a branch that left does not count, a default gives way to a value."""
        if dead[0]:
            return
        for name, value in after.items():
            other = scope.names.get(name)
            if other is None or dead[1]:
                scope.names[name] = value
            elif other is not value:
                known, old = value.data, before.get(name)
                if isinstance(known, (Call, Instance, Parser, Function)):
                    scope.names[name] = value
                elif old is not None and old is other and isinstance(old.data, (Call, Instance)):
                    scope.names[name] = other
                else:
                    same = value.known and other.known and type(known) is type(other.data) and known == other.data
                    scope.names[name] = value if same else V(UNKNOWN, value.place, role=value.role or other.role)

    def _bound_by(self, node: ast.If, scope: Scope) -> None:
        """Take `if step >= N: break` as the loop's bound."""
        leaves = any(isinstance(n, _LEAVES) for n in node.body)
        test = node.test
        if (
            leaves
            and self.loop_depth
            and isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.ops[0], (ast.GtE, ast.Gt, ast.Eq))
        ):
            bound = self.value(test.comparators[0], scope)
            self.loops.append(
                Loop(_last_name(test.left), bound, self.place(scope, node), self.certain, self.loop_depth)
            )

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        source = self.value(node.iter, scope)
        elements = self.elements(source) if not isinstance(source.data, (str, Call)) else None
        if elements is not None and len(elements) <= SMALL_LOOP and not _is_counter(node):
            self._each(node, elements, scope)
            return
        count, element = library_values.iteration(self, source)
        name = _last_name(node.target) if not isinstance(node.target, ast.Tuple) else _last_name(node.target.elts[0])
        if count is not None:
            self.loops.append(Loop(name, count, self.place(scope, node), self.certain, self.nesting))
        self.bind(node.target, element, scope)
        self._body(node.body, scope)
        self.block(node.orelse, scope)

    def _each(self, node: ast.For | ast.AsyncFor, elements: list[V], scope: Scope) -> None:
        for element in elements:
            self.bind(node.target, element, scope)
            try:
                self.block(node.body, scope)
            except LeaveLoopError:
                break

    def _body(self, body: list[ast.stmt], scope: Scope) -> None:
        self.loop_depth += 1
        self.nesting += 1
        for name in _counted(body):
            known = scope.find(name)
            if known is not None and not isinstance(known.data, (list, str, Record)):
                scope.names[name] = V(UNKNOWN, known.place, role=known.role)
        try:
            self.block(body, scope)
        except LeaveLoopError:
            pass
        finally:
            self.loop_depth -= 1
            self.nesting -= 1

    def _while(self, node: ast.While, scope: Scope) -> None:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Lt, ast.LtE)):
            bound = self.value(test.comparators[0], scope)
            self.loops.append(
                Loop(_last_name(test.left), bound, self.place(scope, node), self.certain, self.loop_depth)
            )
        else:
            self.value(test, scope)
        self._body(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        self.block(node.body, scope)
        for handler in node.handlers:
            self._maybe(handler.body, Scope(scope.file, {}, scope))
        self.block(node.orelse, scope)
        self.block(node.finalbody, scope)

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, scope)
        self.block(node.body, scope)

    def _match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            pattern = case.pattern
            options = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
            values = [self.value(p.value, scope).data for p in options if isinstance(p, ast.MatchValue)]
            wild = isinstance(pattern, ast.MatchAs) and pattern.pattern is None
            if subject.known and (wild or subject.data in values):
                self.block(case.body, scope)
                return
            if not subject.known:
                self._maybe(case.body, scope)

    def _return(self, node: ast.Return, scope: Scope) -> None:
        raise ReturnError(self.value(node.value, scope))

    def _leave_loop(self, node: ast.stmt, scope: Scope) -> None:
        del node, scope
        if self.loop_depth:
            return  # the rest of the body runs in another round
        raise LeaveLoopError

    def _global(self, node: ast.Global, scope: Scope) -> None:
        scope.globals |= frozenset(node.names)

    def _nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            outer = scope.parent
            while outer is not None and name not in outer.names:
                outer = outer.parent
            if outer is not None:
                scope.owners[name] = outer

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)

    # --- functions and classes ---------------------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        function = Function(node.name, node, scope)
        decorators = tuple(self.value(d, scope) for d in node.decorator_list)
        function.decorators = decorators
        self.functions.append(function)
        value = V(function, self.place(scope, node))
        scope.names[node.name] = library_arguments.decorated(self, value, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        inner = Scope(scope.file, {}, scope)
        bases = tuple(self.value(b, scope) for b in node.bases)
        made = Class(node.name, node, inner, bases, tuple(_dotted(d) for d in node.decorator_list))
        self.classes.append(made)
        first = len(self.functions)
        self._guarded(node.body, inner)
        for function in self.functions[first:]:
            if function.owner is None and function.scope is inner:
                function.owner = made
                function.scope = Scope(scope.file, {"__class__": V(made)}, scope)
        value = V(made, self.place(scope, node))
        scope.names[node.name] = value
        for decorator in node.decorator_list:
            result = self.value(decorator, scope)
            if isinstance(result.data, Function):
                self.call_function(result.data, [value], {})


_STATEMENTS: Final[Mapping[type[ast.stmt], Callable[[Program, Any, Scope], None]]] = {
    ast.Expr: Program._expression, ast.Assign: Program._assign, ast.AnnAssign: Program._annotated, ast.AugAssign: Program._augmented,
    ast.If: Program._if, ast.For: Program._for, ast.AsyncFor: Program._for, ast.While: Program._while, ast.Try: Program._try,
    ast.With: Program._with, ast.AsyncWith: Program._with, ast.Match: Program._match, ast.Return: Program._return,
    ast.Break: Program._leave_loop, ast.Continue: Program._leave_loop, ast.Global: Program._global, ast.Nonlocal: Program._nonlocal, ast.Delete: Program._delete,
    ast.Import: Program.import_, ast.ImportFrom: Program.import_from, ast.FunctionDef: Program._function,
    ast.AsyncFunctionDef: Program._function, ast.ClassDef: Program._class,
}  # fmt: skip


def _returned(call: Call, count: int) -> list[V]:
    """Return what a library's tuple holds: `prepare(a, b)` gives back what it got, `initialize(model=…)` an engine first."""
    last = call.name.rsplit(".", 1)[-1]
    if last == "prepare" and len(call.args) == count:
        return [library_values.prepared(a) for a in call.args]
    return [V(call, call.place), *([V(UNKNOWN, call.place)] * (count - 1))]


def _is_counter(node: ast.For | ast.AsyncFor) -> bool:
    return isinstance(node.iter, ast.Call) and _dotted(node.iter.func).rsplit(".", 1)[-1] in ("range", "trange", "tqdm")


def _counted(body: list[ast.stmt]) -> set[str]:
    """Return the names that a loop's body counts up."""
    names: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return _last_name(node.args[0]) if isinstance(node, ast.Call) and node.args else ""


def _target_names(targets: list[ast.expr]) -> str:
    names = [
        n.id if isinstance(n, ast.Name) else n.attr
        for t in targets
        for n in ast.walk(t)
        if isinstance(n, (ast.Name, ast.Attribute))
    ]
    return " ".join(names)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
