"""The value of a Python expression, as far as it follows from what is known."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows
# ruff: noqa: SLF001 - the table of rules names the methods of its own class

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Mapping
from posixpath import basename, dirname, join, splitext
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.machine import (
    ELEMENTS_MAX,
    Machine,
    Method,
    OpenFile,
    Parser,
    PathText,
    Source,
)
from schedmate.services.code_analyzer.resolve.sequences import elements_of_range
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
PASSING: Final = frozenset({"to", "cuda", "cpu", "half", "float", "bfloat16", "eval", "train", "requires_grad_", "compile", "apply", "with_format", "set_format", "shuffle", "map", "cast_column", "remove_columns", "rename_column", "prefetch", "cache", "repeat", "module", "tokenize", "double", "share_memory", "type", "to_empty", "add_column", "prepare", "flatten_indices", "sort", "with_transform", "set_transform", "unwrap"})  # fmt: skip
_MAIN_PROCESS: Final = frozenset(
    {"is_main_process", "is_local_main_process", "is_global_zero", "is_world_process_zero"}
)
_WORLDS: Final = frozenset(
    {"num_replicas_in_sync", "num_processes", "world_size", "num_replicas", "data_parallel_size", "n_gpu"}
)
_RANKS: Final = frozenset({"process_index", "local_process_index", "global_rank", "local_rank", "rank"})
_CONSTANTS: Final[Mapping[str, Any]] = {"math.pi": math.pi, "math.inf": math.inf, "torch.bfloat16": "bfloat16", "torch.float16": "float16", "torch.half": "float16", "torch.float32": "float32", "torch.float": "float32", "jnp.bfloat16": "bfloat16", "jax.numpy.bfloat16": "bfloat16", "jax.numpy.float32": "float32", "jax.numpy.float16": "float16", "tensorflow.bfloat16": "bfloat16", "tensorflow.float16": "float16", "tensorflow.float32": "float32", "sys.maxsize": 2**63 - 1, "paddle.float16": "float16", "paddle.bfloat16": "bfloat16", "torch.float8_e4m3fn": "fp8"}  # fmt: skip


class Expressions(Machine):
    """Evaluates expressions; calls are left to the subclass."""

    __slots__ = ()

    def call(self, callee: V, args: list[V], kwargs: dict[str, V], scope: Scope, node: ast.AST) -> V:
        """Return what a call gives."""
        raise NotImplementedError

    def flag_record(self) -> Record:
        """Return the values of the flags that the program defines one by one."""
        raise NotImplementedError

    def value(self, node: ast.expr | None, scope: Scope) -> V:
        """Return an expression's value."""
        self.step()
        if node is None:
            return V(None)
        rule = _RULES.get(type(node))
        if rule is None:
            return V(UNKNOWN, self.place(scope, node))
        return rule(self, node, scope)

    # --- names, attributes, elements ---------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant, scope: Scope) -> V:
        data = node.value
        known = isinstance(data, (int, float, str, bool, type(None)))
        return V(data if known else UNKNOWN, self.place(scope, node))

    def _name(self, node: ast.Name, scope: Scope) -> V:
        found = scope.find(node.id)
        if found is not None:
            return found
        if hasattr(builtins, node.id):
            return V(External(f"builtins.{node.id}"))
        starred = self.stars.get(id(scope.module()), [])
        return V(External(f"{starred[-1]}.{node.id}" if starred else node.id), None)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> V:
        return self.attribute(self.value(node.value, scope), node.attr, scope, node)

    def attribute(self, owner: V, name: str, scope: Scope, node: ast.AST) -> V:
        """Return an attribute of a value."""
        data = owner.data
        if isinstance(data, External):
            return owner if name == "__dict__" else self._of_external(data, name, owner)
        if isinstance(data, Call):
            return self._of_call(owner, data, name, scope, node)
        if isinstance(data, Instance):
            return self.of_instance(owner, data, name)
        if isinstance(data, Record):
            if name in data.entries and (data.attributes or data.kind == "namespace"):
                return data.entries[name]
            return V(Method(owner, name), owner.place)
        if isinstance(data, Scope):
            return data.names.get(name, V(External(f"{data.file}.{name}")))
        if isinstance(data, Class):
            found = self.of_class(data, name) or V(External(f"{data.name}.{name}"), owner.place)
            return _of_its_class(found, owner)
        if isinstance(data, str) and isinstance(data, PathText):
            return self._of_path(owner, data, name)
        if isinstance(data, (str, list, tuple, Parser, OpenFile, Function, int, float)):
            return _of_plain(owner, name)
        return self._of_unknown(name, owner)

    def _of_unknown(self, name: str, owner: V) -> V:
        if name in _MAIN_PROCESS:
            return V(True, owner.place)
        if name in _WORLDS and self.world.known:
            return self.world
        return V(External(f"?.{name}"), owner.place)

    def _of_external(self, data: External, name: str, owner: V) -> V:
        path = f"{data.name}.{name}"
        if path in ("os.environ", "sys.argv"):
            return self._of_process(path)
        if path in _CONSTANTS:
            return V(_CONSTANTS[path], owner.place)
        if name in _MAIN_PROCESS:
            return V(True, owner.place)
        if data.name.endswith("flags.FLAGS"):  # read when asked for: flags are defined after the name is taken
            return self.flag_record().entries.get(name, V(External(path)))
        return V(External(path, data.of), owner.place)

    def _of_process(self, path: str) -> V:
        if path == "os.environ":
            entries: dict[Any, V] = {k: self.environ(k) for k in self.environment}
            return V(self.presets.setdefault("os.environ", V(Record(entries, kind="environ"))).data, self.start)
        return V([V(self.program, self.start), *(V(a.text, a.place) for a in self.argv)], self.start)

    def environ(self, name: str) -> V:
        """Return an environment variable; the world's size keeps its role."""
        arg = self.environment[name]
        role = (
            WORLD
            if name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NPROCS")
            else None
        )
        return V(arg.text, arg.place, role=role)

    def _of_call(self, owner: V, data: Call, name: str, scope: Scope, node: ast.AST) -> V:
        del scope, node
        if name in data.attributes:
            return data.attributes[name]
        if name in data.kwargs:
            return data.kwargs[name]
        if name in _MAIN_PROCESS:
            return V(True, owner.place)
        if name in _WORLDS:
            return self.world
        if name in _RANKS:
            return V(0, owner.place)
        if name == "module":
            return owner
        return V(External(f"{data.name}.{name}", data), owner.place)

    def of_instance(self, owner: V, data: Instance, name: str) -> V:
        """Return an attribute of an object: its own, its class's, or its library base's."""
        if name in data.attributes:
            return data.attributes[name]
        found = self.of_class(data.of, name)
        if found is not None:
            if isinstance(found.data, Function) and not any(_is_name(d, "staticmethod") for d in found.data.decorators):
                bound = Function(
                    found.data.name, found.data.node, found.data.scope, found.data.owner, owner, found.data.decorators
                )
                if any(_is_name(d, "property") for d in found.data.decorators):
                    return self.call(V(bound), [], {}, found.data.scope, found.data.node)
                return V(bound, owner.place)
            return found
        base = self.library_base(data.of)
        if name in _MAIN_PROCESS:
            return V(True, owner.place)
        if name == "hparams":
            return V(Record(dict(data.attributes), attributes=True), owner.place)
        return V(External(f"{base or data.of.name}.{name}"), owner.place)

    def of_class(self, data: Class, name: str, depth: int = 0) -> V | None:
        """Return a name of a class or of its bases in the source."""
        if name in data.scope.names:
            return data.scope.names[name]
        for base in data.bases:
            if isinstance(base.data, Class) and depth < 10:  # noqa: PLR2004 - no hierarchy is deeper
                found = self.of_class(base.data, name, depth + 1)
                if found is not None:
                    return found
        return None

    def library_base(self, data: Class, depth: int = 0) -> str | None:
        """Return the library class that a class derives from."""
        for base in data.bases:
            if isinstance(base.data, External):
                return base.data.name
            if isinstance(base.data, Class) and depth < 10:  # noqa: PLR2004 - see above
                found = self.library_base(base.data, depth + 1)
                if found is not None:
                    return found
        return None

    @staticmethod
    def _of_path(owner: V, data: str, name: str) -> V:
        parts: dict[str, str] = {
            "parent": dirname(data),
            "name": basename(data),
            "stem": splitext(basename(data))[0],
            "suffix": splitext(data)[1],
        }
        if name in parts:
            return V(PathText(parts[name]) if name == "parent" else parts[name], owner.place)
        return V(Method(owner, name), owner.place)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> V:
        owner = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            return self._slice(owner, node.slice, scope)
        key = self.value(node.slice, scope)
        return self.element(owner, key, scope, node)

    def element(self, owner: V, key: V, scope: Scope, node: ast.AST) -> V:  # noqa: C901 - cases of one kind, one after another
        """Return an element of a list, a record, or of what a library gave."""
        data = owner.data
        if isinstance(data, Record):
            if not key.known or isinstance(key.data, (list, Record)):
                return V(UNKNOWN, owner.place)
            if isinstance(key.data, str) and data.kind == "environ" and key.data not in data.entries:
                return V(UNKNOWN, owner.place, role=WORLD if key.data == "WORLD_SIZE" else None)
            plain_key = tuple(k.data for k in key.data) if isinstance(key.data, tuple) else key.data
            found = data.entries.get(plain_key, V(UNKNOWN, owner.place))
            if isinstance(plain_key, str) and isinstance(found.data, (int, float, str)) and data.kind == "dict":
                self.name(plain_key, found, "attribute")
            return found
        if isinstance(data, (list, tuple)) and isinstance(key.data, int) and -len(data) <= key.data < len(data):
            inner = data[key.data]
            return inner if isinstance(inner, V) else V(inner, owner.place)
        if isinstance(data, str) and isinstance(key.data, int) and -len(data) <= key.data < len(data):
            return V(data[key.data], owner.place)
        if isinstance(data, Call):
            part = Call(data.name, data.args, data.kwargs, data.place, data.certain, data.owner, data.text)
            if isinstance(key.data, str):
                part.attributes = {"__key__": key}
            return V(part, self.place(scope, node))
        if isinstance(data, Scope):
            return data.names.get(str(key.data), V(UNKNOWN))
        if isinstance(data, External) and isinstance(key.data, str) and key.known and key.data.isidentifier():
            return V(External(f"{data.name}.{key.data}", data.of), key.place)
        return V(UNKNOWN, owner.place)

    def _slice(self, owner: V, node: ast.Slice, scope: Scope) -> V:
        bounds = [self.value(b, scope) if b is not None else V(None) for b in (node.lower, node.upper, node.step)]
        if any(not (isinstance(b.data, int) or b.data is None) for b in bounds):
            return V(UNKNOWN, owner.place)
        cut = slice(*(b.data for b in bounds))
        if isinstance(owner.data, (list, tuple, str)):
            return V(owner.data[cut], owner.place)
        if (
            isinstance(owner.data, (Call, External))
            and cut.start in (None, 0)
            and isinstance(cut.stop, int)
            and cut.stop > 0
        ):
            name = owner.data.name
            part = Call(name, [], {}, self.place(scope, node), self.certain)
            part.attributes = {"__len__": V(cut.stop, bounds[1].place)}
            return V(part, owner.place)
        return V(UNKNOWN, owner.place)

    # --- operators ---------------------------------------------------------------------------------------------------

    def _binary(self, node: ast.BinOp, scope: Scope) -> V:
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

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> V:
        inner = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth(inner)
            return V(UNKNOWN if truth is None else not truth, inner.place)
        if isinstance(inner.data, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return V(-inner.data if isinstance(node.op, ast.USub) else inner.data, inner.place, inner.basis)
        if isinstance(inner.data, int) and isinstance(node.op, ast.Invert):
            return V(-inner.data - 1, inner.place, inner.basis)
        return V(UNKNOWN, inner.place)

    def _boolean(self, node: ast.BoolOp, scope: Scope) -> V:
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

    def _compare(self, node: ast.Compare, scope: Scope) -> V:
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

    def _choice(self, node: ast.IfExp, scope: Scope) -> V:
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

    def _joined(self, node: ast.JoinedStr, scope: Scope) -> V:
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

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> V:
        out: list[V] = []
        for element in node.elts[:ELEMENTS_MAX]:
            if isinstance(element, ast.Starred):
                inner = self.value(element.value, scope)
                out += [v for v in inner.data if isinstance(v, V)] if isinstance(inner.data, (list, tuple)) else []
            else:
                out.append(self.value(element, scope))
        return V(tuple(out) if isinstance(node, ast.Tuple) else out, self.place(scope, node))

    def _dict(self, node: ast.Dict, scope: Scope) -> V:
        record = Record()
        for key, value in zip(node.keys[:ELEMENTS_MAX], node.values[:ELEMENTS_MAX], strict=True):
            inner = self.value(value, scope)
            if key is None:
                if isinstance(inner.data, Record):
                    record.entries.update(inner.data.entries)
                else:
                    record.open = True
                continue
            name = self.value(key, scope)
            plain = tuple(k.data for k in name.data) if isinstance(name.data, tuple) else name.data
            if name.known and isinstance(plain, (str, int, float, bool, tuple, type(None))) and _hashable(plain):
                record.entries[plain] = inner
        return V(record, self.place(scope, node))

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp, scope: Scope) -> V:
        inner = Scope(scope.file, {}, scope)
        generator = node.generators[0]
        source = self.value(generator.iter, scope)
        elements = self.elements(source)
        if elements is None or len(node.generators) > 1 or len(elements) > 64:  # noqa: PLR2004 - small tables are followed, data is not
            for each in node.generators:
                self.bind(each.target, V(UNKNOWN), inner)
            self.value(node.value if isinstance(node, ast.DictComp) else node.elt, inner)
            return V(UNKNOWN, self.place(scope, node))
        return self._comprehended(node, generator, elements, inner)

    def _comprehended(self, node: Any, generator: ast.comprehension, elements: list[V], inner: Scope) -> V:
        out: list[V] = []
        record = Record()
        for element in elements:
            self.bind(generator.target, element, inner)
            truths = [self.truth(self.value(test, inner)) for test in generator.ifs]
            if any(t is None for t in truths):
                return V(UNKNOWN, self.place(inner, node))
            if not all(truths):
                continue
            if isinstance(node, ast.DictComp):
                key = self.value(node.key, inner)
                if key.known and _hashable(key.data):
                    record.entries[key.data] = self.value(node.value, inner)
            else:
                out.append(self.value(node.elt, inner))
        return V(record if isinstance(node, ast.DictComp) else out, self.place(inner, node))

    def elements(self, value: V) -> list[V] | None:
        """Return a value's elements where they are known one by one."""
        data = value.data
        if isinstance(data, (list, tuple)):
            return [v if isinstance(v, V) else V(v, value.place) for v in data]
        if isinstance(data, Record) and not data.open:
            return [V(key, value.place) for key in data.entries]
        if isinstance(data, Call):
            return elements_of_range(data)
        if isinstance(data, str) and value.known and not isinstance(data, Source) and len(data) < 64:  # noqa: PLR2004 - see above
            return [V(c, value.place) for c in data]
        return None

    def bind(self, target: ast.expr, value: V, scope: Scope) -> None:
        """Give a value to the target of an assignment."""
        raise NotImplementedError

    # --- calls and the rest ------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: Scope) -> V:
        callee = self.value(node.func, scope)
        args: list[V] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self.value(argument.value, scope)
                args += self.elements(inner) or []
            else:
                args.append(self.value(argument, scope))
        kwargs: dict[str, V] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value.data, Record):
                kwargs.update({str(k): v for k, v in value.data.entries.items()})
            elif isinstance(value.data, Instance):
                kwargs.update(value.data.attributes)
        return self.call(callee, args, kwargs, scope, node)

    def _lambda(self, node: ast.Lambda, scope: Scope) -> V:
        return V(Function("lambda", node, scope), self.place(scope, node))

    def _walrus(self, node: ast.NamedExpr, scope: Scope) -> V:
        value = self.value(node.value, scope)
        self.bind(node.target, value, scope)
        return value

    def _inner(self, node: ast.Await | ast.Starred, scope: Scope) -> V:
        return self.value(node.value, scope)


def _of_plain(owner: V, name: str) -> V:
    """Return a method of a plain value; the member of an enumeration stands for its value here."""
    if name == "value" and isinstance(owner.data, (str, int, float)) and owner.known:
        return owner
    return V(Method(owner, name), owner.place, role=owner.role)


def _of_its_class(found: V, owner: V) -> V:
    """Return a class method bound to its class, anything else as it is."""
    data = found.data
    if isinstance(data, Function) and any(_is_name(d, "classmethod") for d in data.decorators):
        return V(Function(data.name, data.node, data.scope, data.owner, owner, data.decorators), found.place)
    return found


_RULES: Final[Mapping[type[ast.expr], Callable[[Expressions, Any, Scope], V]]] = {
    ast.Constant: Expressions._constant, ast.Name: Expressions._name, ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript, ast.BinOp: Expressions._binary, ast.UnaryOp: Expressions._unary,
    ast.BoolOp: Expressions._boolean, ast.Compare: Expressions._compare, ast.IfExp: Expressions._choice,
    ast.JoinedStr: Expressions._joined, ast.List: Expressions._list, ast.Tuple: Expressions._list, ast.Set: Expressions._list,
    ast.Dict: Expressions._dict, ast.ListComp: Expressions._comprehension, ast.GeneratorExp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension, ast.DictComp: Expressions._comprehension, ast.Call: Expressions._call,
    ast.Lambda: Expressions._lambda, ast.NamedExpr: Expressions._walrus, ast.Await: Expressions._inner, ast.Starred: Expressions._inner,
}  # fmt: skip


def _is_name(value: V, name: str) -> bool:
    return isinstance(value.data, External) and value.data.name.rsplit(".", 1)[-1] == name


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
        inside = _hashable(element.data) and element.data in data.entries
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


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
