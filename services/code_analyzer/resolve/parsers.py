"""Declared arguments of programs (argparse, click, typer, fire, absl, dataclasses) and what a command line makes of them."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import ast
import re
from typing import Any, Final

from schedmate.services.code_analyzer.resolve.configs import scalar
from schedmate.services.code_analyzer.resolve.expressions import Expressions
from schedmate.services.code_analyzer.resolve.machine import Option, Parser, PathText
from schedmate.services.code_analyzer.resolve.ran import Arg
from schedmate.services.code_analyzer.resolve.values import HOLE, UNKNOWN, Class, External, Function, Record, V

_TRUE: Final = frozenset({"true", "yes", "1", "t", "y", "on"})
_NUMBER: Final = re.compile(r"-\d+(\.\d+)?([eE][-+]?\d+)?")


def add_argument(parser: Parser, args: list[V], kwargs: dict[str, V], place: Any) -> V:
    """Declare one argument of argparse."""
    names = tuple(str(a.data) for a in args if isinstance(a.data, str) and a.known)
    if not names:
        return V(None)
    flags = [n for n in names if n.startswith("-")]
    longest = max(flags, key=lambda n: (n.startswith("--"), 0), default=names[0])
    dest = kwargs.get("dest")
    action = kwargs.get("action", V("store"))
    name = action.data if isinstance(action.data, str) else action.data.name.rsplit(".", 1)[-1] if isinstance(action.data, External) else "store"  # fmt: skip
    nargs = kwargs.get("nargs")
    if nargs is not None and isinstance(nargs.data, External):
        nargs = V(nargs.data.name.rsplit(".", 1)[-1])  # argparse.REMAINDER
    parser.options.append(
        Option(
            names, str(dest.data) if dest is not None else longest.lstrip("-").replace("-", "_"), kwargs.get("default"), place,
            kwargs.get("type"), name, nargs.data if nargs is not None and isinstance(nargs.data, (int, str)) else None,
            kwargs.get("const"), positional=not flags,
        )
    )  # fmt: skip
    return V(None)


def parse(machine: Expressions, parser: Parser, argv: list[Arg] | None = None) -> Record:
    """Return the namespace that a command line gives; what is not declared is taken as it looks."""
    record = Record(attributes=True, kind="namespace", open=True)
    parser.parsed = True
    _Reading(machine, parser, list(machine.argv if argv is None else argv), record).run()
    machine.arguments.append(record)
    return record


class _Reading:
    def __init__(self, machine: Expressions, parser: Parser, words: list[Arg], record: Record) -> None:
        self._machine = machine
        self._parser = parser
        self._words = words
        self._record = record
        self._given: set[str] = set()
        self._by_name = {name: option for option in parser.options for name in option.names}
        self._positional = [option for option in parser.options if option.positional]

    def run(self) -> None:
        words = self._words
        extra: list[Arg] = []
        while words:
            word = words.pop(0)
            if word.text == "--":
                continue
            if word.text.startswith("-") and len(word.text) > 1 and not _NUMBER.fullmatch(word.text):
                self._flag(word)
            elif self._parser.children and word.text in self._parser.children:
                self._child(word)
                return
            elif not self._take_positional(word):
                extra.append(word)
        self._defaults()
        if extra:
            self._record.entries.setdefault("__extra__", V([V(w.text, w.place) for w in extra]))

    def _child(self, word: Arg) -> None:
        if self._parser.child_dest:
            self._record.entries[self._parser.child_dest] = V(word.text, word.place)
        child = self._parser.children[word.text]
        self._defaults()
        _Reading(self._machine, child, self._words, self._record).run()

    def _flag(self, word: Arg) -> None:
        name, joined, value = word.text.partition("=")
        option = self._find(name)
        if option is None and not word.text.startswith("--") and len(word.text) > 2 and word.text[:2] in self._by_name:  # noqa: PLR2004 - `-b64`
            option, name, joined, value = self._by_name[word.text[:2]], word.text[:2], "=", word.text[2:]
        if option is None:
            self._undeclared(name, joined, value, word)
            return
        self._given.add(option.dest)
        if option.action in ("store_true", "store_false", "store_const", "count", "BooleanOptionalAction", "flag"):
            negated = name.startswith(("--no-", "--no_")) and name not in option.names
            self._switch(option, word, negated=negated, value=value if joined else None)
            return
        values = [Arg(value, word.place)] if joined else self._values(option)
        self._store(option, values, word)

    def _find(self, name: str) -> Option | None:
        if name in self._by_name:
            return self._by_name[name]
        bare = name.lstrip("-").replace("-", "_")
        same = [o for n, o in self._by_name.items() if n.lstrip("-").replace("-", "_") == bare and n.startswith("-")]
        if same:
            return same[0]
        if name.startswith(("--no-", "--no_")):
            positive = self._by_name.get("--" + name[5:]) or self._by_name.get("--" + name[5:].replace("-", "_"))
            if positive is not None and positive.action in ("BooleanOptionalAction", "flag"):
                return positive
        if (
            name.startswith("--no")
            and "--" + name[4:] in self._by_name
            and self._by_name["--" + name[4:]].action == "flag"
        ):
            return self._by_name["--" + name[4:]]
        starting = {id(o): o for n, o in self._by_name.items() if name.startswith("--") and n.startswith(name)}
        return next(iter(starting.values())) if len(starting) == 1 else None

    def _undeclared(self, name: str, joined: str, value: str, word: Arg) -> None:
        dest = name.lstrip("-").replace("-", "_")
        if not joined:
            following = self._words[0] if self._words else None
            if following is None or (following.text.startswith("-") and not _NUMBER.fullmatch(following.text)):
                self._record.entries[dest] = V(True, word.place)
                return
            value = self._words.pop(0).text
        self._record.put(dest, V(scalar(value), word.place))

    def _switch(self, option: Option, word: Arg, *, negated: bool, value: str | None) -> None:
        if option.action == "store_const":
            self._record.entries[option.dest] = (option.const or V(UNKNOWN)).at(word.place)
            return
        truth = option.action != "store_false" and not negated and not word.text.startswith("--no" + option.dest)
        if (
            option.action == "flag"
            and value is None
            and self._words
            and self._words[0].text.lower() in ("true", "false")
        ):
            value = self._words.pop(0).text
        if value is not None:
            truth = value.lower() in _TRUE
        self._record.entries[option.dest] = V(truth, word.place)

    def _values(self, option: Option) -> list[Arg]:
        if option.nargs in ("*", "+", "REMAINDER", "...") or (isinstance(option.nargs, int)):
            limit = option.nargs if isinstance(option.nargs, int) else len(self._words)
            taken: list[Arg] = []
            rest = option.nargs in ("REMAINDER", "...")
            while self._words and len(taken) < limit and (rest or not self._words[0].text.startswith("-") or _NUMBER.fullmatch(self._words[0].text)):  # fmt: skip
                taken.append(self._words.pop(0))
            return taken
        if option.nargs == "?" and (not self._words or self._words[0].text.startswith("-")):
            return []
        return [self._words.pop(0)] if self._words else []

    def _store(self, option: Option, words: list[Arg], flag: Arg) -> None:
        several = option.nargs in ("*", "+", "REMAINDER", "...") or isinstance(option.nargs, int)
        values = [self.converted(option, V(w.text, w.place)) for w in words]
        if not several and not values:
            self._record.entries[option.dest] = (option.const or V(None)).at(flag.place)
        elif option.action in ("append", "extend"):
            known = self._record.entries.get(option.dest)
            old = list(known.data) if known is not None and isinstance(known.data, list) else []
            self._record.entries[option.dest] = V(
                old + (values if option.action == "extend" else [V(values)] if several else values), flag.place
            )
        else:
            self._record.entries[option.dest] = V(values, flag.place) if several else values[0]

    def _take_positional(self, word: Arg) -> bool:
        if not self._positional:
            return False
        option = self._positional[0]
        if option.nargs in ("*", "+", "REMAINDER", "..."):
            taken = [word]
            while self._words and (option.nargs in ("REMAINDER", "...") or not self._words[0].text.startswith("-")):
                taken.append(self._words.pop(0))
            self._record.entries[option.dest] = V(
                [self.converted(option, V(w.text, w.place)) for w in taken], word.place
            )
        else:
            self._record.entries[option.dest] = self.converted(option, V(word.text, word.place))
        self._given.add(option.dest)
        self._positional.pop(0)
        return True

    def converted(self, option: Option, value: V) -> V:
        """Return a value after its argument's `type`."""
        if option.type is None or not isinstance(value.data, str) or not value.known:
            if option.type is None and option.action == "scalar" and isinstance(value.data, str):
                return V(scalar(value.data), value.place)
            return value if HOLE not in str(value.data) else V(UNKNOWN, value.place)
        return converted(self._machine, option.type, value)

    def _defaults(self) -> None:
        for option in self._parser.options:
            if option.dest in self._record.entries:
                continue
            if option.default is not None:
                default = option.default
                if isinstance(default.data, str) and option.type is not None:
                    default = self.converted(option, default)
                self._record.entries[option.dest] = V(
                    default.data, default.place or option.place, default.basis, default.role
                )
            else:
                switch = {"store_true": False, "store_false": True, "flag": False}
                self._record.entries[option.dest] = V(switch.get(option.action), option.place)
        for name, value in self._parser.defaults.items():
            self._record.entries.setdefault(name, value)


def converted(machine: Expressions, kind: V, value: V) -> V:
    """Return a text as a type makes it: int, float, bool, Path, or a function of the source."""
    text = str(value.data).strip()
    if isinstance(kind.data, (Function, Class)) and not isinstance(kind.data, Class):
        node = ast.Constant(value=text)
        result = machine.call(kind, [value], {}, kind.data.scope, node)
        return result.at(value.place) if result.known else V(scalar(text), value.place)
    name = kind.data.name.rsplit(".", 1)[-1] if isinstance(kind.data, External) else ""
    if name in ("int", "INT"):
        found = scalar(text.replace(",", ""))
        return V(int(found) if isinstance(found, (int, float)) else UNKNOWN, value.place)
    if name in ("float", "FLOAT"):
        found = scalar(text)
        return V(float(found) if isinstance(found, (int, float)) else UNKNOWN, value.place)
    if "bool" in name.lower():
        return V(text.lower() in _TRUE, value.place)
    if name == "Path":
        return V(PathText(text), value.place)
    if name in ("str", "STRING"):
        return V(text, value.place)
    return V(scalar(text) if name else text, value.place)


# --- from functions and dataclasses ----------------------------------------------------------------------------------


def of_function(machine: Expressions, function: Function) -> Parser:
    """Return the arguments that a function's parameters declare, as fire and typer take them."""
    parser = Parser()
    spec = function.node.args
    names = [*spec.posonlyargs, *spec.args]
    defaults: dict[str, ast.expr] = {a.arg: d for a, d in zip(reversed(names), reversed(spec.defaults), strict=False)}
    defaults.update({a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None})
    for argument in [*names, *spec.kwonlyargs]:
        if argument.arg in ("self", "cls"):
            continue
        node = defaults.get(argument.arg)
        default = machine.value(node, function.scope) if node is not None else None
        extra: list[str] = []
        default, extra = _typer_default(default, extra)
        kind = annotation(machine, argument.annotation, function)
        place = machine.place(function.scope, argument)
        boolean = _is_bool(kind) or (default is not None and isinstance(default.data, bool))
        option = Option(
            (argument.arg, "--" + argument.arg, "--" + argument.arg.replace("_", "-"), *extra), argument.arg, default, place,
            kind, "flag" if boolean else "store" if kind is not None else "scalar", positional=node is None,
        )  # fmt: skip
        parser.options.append(option)
    return parser


def _typer_default(default: V | None, extra: list[str]) -> tuple[V | None, list[str]]:
    """Return what `typer.Option(4, "--x")` declares: its first argument, and further names."""
    call = default.data if default is not None else None
    if call is not None and hasattr(call, "name") and hasattr(call, "args") and str(call.name).rsplit(".", 1)[-1] in ("Option", "Argument", "Field", "field"):  # fmt: skip
        texts = [a.data for a in call.args if isinstance(a.data, str) and a.data.startswith("-")]
        names = [part for text in texts for part in text.split("/")]
        first = call.argument(0, "default")
        if (
            first is None
            or (isinstance(first.data, str) and first.data.startswith("-"))
            or repr(first.data) == "Ellipsis"
        ):
            return call.kwargs.get("default"), names
        return (None if first.data is UNKNOWN else first), names
    return default, extra


def annotation(machine: Expressions, node: ast.expr | None, function: Any) -> V | None:
    """Return the plain type that an annotation names: `Optional[int]`, `int | None` and `Annotated[int, …]` are int."""
    if node is None:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return V(External("builtins." + node.value)) if node.value in ("int", "float", "bool", "str") else None
    if isinstance(node, ast.BinOp):
        left = annotation(machine, node.left, function)
        return left if left is not None and not _is_none(node.left) else annotation(machine, node.right, function)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        outer = ast.unparse(node.value).rsplit(".", 1)[-1]
        return annotation(machine, inner, function) if outer in ("Optional", "Annotated", "Final") else None
    if isinstance(node, ast.Name) and node.id in ("int", "float", "bool", "str"):
        return V(External("builtins." + node.id))
    return V(External("pathlib.Path")) if isinstance(node, ast.Name) and node.id == "Path" else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_bool(kind: V | None) -> bool:
    return kind is not None and isinstance(kind.data, External) and kind.data.name.endswith(".bool")


def of_click(machine: Expressions, function: Function) -> Parser:
    """Return the arguments that click's decorators declare."""
    parser = Parser()
    for decorator in function.decorators:
        call = decorator.data
        kind = str(getattr(call, "name", "")).rsplit(".", 1)[-1]
        if kind not in ("option", "argument"):
            continue
        texts = [str(a.data) for a in call.args if isinstance(a.data, str)]
        names = [part.strip() for text in texts for part in text.split("/")]
        flags = [n for n in names if n.startswith("-")]
        bare = [n for n in names if not n.startswith("-")]
        longest = max(flags, key=len, default="")
        dest = bare[0] if bare else (flags[0] if "/" in texts[0] else longest).lstrip("-").replace("-", "_")
        default = call.kwargs.get("default")
        switch = "/" in "".join(texts) or _true(call.kwargs.get("is_flag"))
        type_ = call.kwargs.get("type")
        multiple = _true(call.kwargs.get("multiple"))
        positive = tuple(f for f in flags if not f.startswith(("--no-", "--no_"))) or tuple(flags)
        option = Option(
            positive or (dest,), dest, default, call.place, type_, "flag" if switch else "append" if multiple else "scalar" if type_ is None else "store",
            positional=kind == "argument",
        )  # fmt: skip
        if switch and default is None:
            option.default = V(False, call.place)
        parser.options.append(option)
    del machine
    return parser


def _true(value: V | None) -> bool:
    return value is not None and value.data is True


def of_fields(machine: Expressions, fields: dict[str, V], kinds: dict[str, V | None], prefix: str = "") -> Parser:
    """Return the arguments that a dataclass's fields declare."""
    parser = Parser()
    for name, default in fields.items():
        kind = kinds.get(name)
        boolean = _is_bool(kind) or isinstance(default.data, bool)
        missing = default.data is UNKNOWN
        names = (f"--{prefix}{name}", f"--{prefix}{name}".replace("_", "-"))
        place = default.place or machine.start
        option = Option(names, prefix + name, None if missing else default, place, kind, "flag" if boolean else "store" if kind else "scalar")  # fmt: skip
        parser.options.append(option)
    return parser
