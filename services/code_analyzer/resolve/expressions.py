"""The value of a Python expression, as far as it follows from what is known."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows
# ruff: noqa: SLF001 - the table of rules names the methods of its own class

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from posixpath import basename, dirname, splitext
from typing import Any, Final

from schedmate.services.code_analyzer.resolve.machine import (
    ELEMENTS_MAX,
    Method,
    OpenFile,
    Parser,
    PathText,
    Source,
)
from schedmate.services.code_analyzer.resolve.operators import Operators, hashable
from schedmate.services.code_analyzer.resolve.sequences import elements_of_range
from schedmate.services.code_analyzer.resolve.values import (
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

PASSING: Final = frozenset({"to", "cuda", "cpu", "half", "float", "bfloat16", "eval", "train", "requires_grad_", "compile", "apply", "with_format", "set_format", "shuffle", "map", "cast_column", "remove_columns", "rename_column", "prefetch", "cache", "repeat", "module", "tokenize", "double", "share_memory", "type", "to_empty", "add_column", "prepare", "flatten_indices", "sort", "with_transform", "set_transform", "unwrap"})  # fmt: skip
_MAIN_PROCESS: Final = frozenset(
    {"is_main_process", "is_local_main_process", "is_global_zero", "is_world_process_zero"}
)
_WORLDS: Final = frozenset(
    {"num_replicas_in_sync", "num_processes", "world_size", "num_replicas", "data_parallel_size", "n_gpu"}
)
_RANKS: Final = frozenset({"process_index", "local_process_index", "global_rank", "local_rank", "rank"})
_CONSTANTS: Final[Mapping[str, Any]] = {"math.pi": math.pi, "math.inf": math.inf, "torch.bfloat16": "bfloat16", "torch.float16": "float16", "torch.half": "float16", "torch.float32": "float32", "torch.float": "float32", "jnp.bfloat16": "bfloat16", "jax.numpy.bfloat16": "bfloat16", "jax.numpy.float32": "float32", "jax.numpy.float16": "float16", "tensorflow.bfloat16": "bfloat16", "tensorflow.float16": "float16", "tensorflow.float32": "float32", "sys.maxsize": 2**63 - 1, "paddle.float16": "float16", "paddle.bfloat16": "bfloat16", "torch.float8_e4m3fn": "fp8"}  # fmt: skip


class Expressions(Operators):
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
            if name.known and isinstance(plain, (str, int, float, bool, tuple, type(None))) and hashable(plain):
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
                if key.known and hashable(key.data):
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
    ast.Subscript: Expressions._subscript, ast.BinOp: Expressions.binary, ast.UnaryOp: Expressions.unary,
    ast.BoolOp: Expressions.boolean, ast.Compare: Expressions.compare, ast.IfExp: Expressions.choice,
    ast.JoinedStr: Expressions.joined, ast.List: Expressions._list, ast.Tuple: Expressions._list, ast.Set: Expressions._list,
    ast.Dict: Expressions._dict, ast.ListComp: Expressions._comprehension, ast.GeneratorExp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension, ast.DictComp: Expressions._comprehension, ast.Call: Expressions._call,
    ast.Lambda: Expressions._lambda, ast.NamedExpr: Expressions._walrus, ast.Await: Expressions._inner, ast.Starred: Expressions._inner,
}  # fmt: skip


def _is_name(value: V, name: str) -> bool:
    return isinstance(value.data, External) and value.data.name.rsplit(".", 1)[-1] == name
