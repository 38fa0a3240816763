"""What libraries make of a command line: argparse, click, typer, fire, absl, dataclasses and HfArgumentParser."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import ast
from posixpath import dirname
from typing import TYPE_CHECKING

from schedmate.services.code_analyzer.resolve import parsers, sequences
from schedmate.services.code_analyzer.resolve.composition import override
from schedmate.services.code_analyzer.resolve.configs import load
from schedmate.services.code_analyzer.resolve.library_dataclasses import fields_of, kinds_of
from schedmate.services.code_analyzer.resolve.library_files import find, hydra_main
from schedmate.services.code_analyzer.resolve.machine import Method, Option, Parser
from schedmate.services.code_analyzer.resolve.parsers import parse
from schedmate.services.code_analyzer.resolve.ran import Arg
from schedmate.services.code_analyzer.resolve.values import (
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


# --- arguments -------------------------------------------------------------------------------------------------------


def argument_parser(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the parser that `argparse.ArgumentParser(…)` makes."""
    parser = Parser()
    machine.parsers.append(parser)
    parents = call.kwargs.get("parents")
    for parent in parents.data if parents is not None and isinstance(parents.data, (list, tuple)) else []:
        if isinstance(parent, V) and isinstance(parent.data, Parser):
            parser.options += parent.data.options
    return V(parser, call.place)


def parser_method(  # noqa: C901 - methods of one object, one after another
    machine: Calls, data: Method, args: list[V], kwargs: dict[str, V], scope: Scope, node: ast.AST
) -> V | None:
    """Return what a method of an argument parser gives; None when the value is none."""
    if isinstance(data.of.data, Function):
        return _function_method(machine, data, args)
    parser = data.of.data
    if not isinstance(parser, Parser):
        return None
    if data.name in ("add_argument", "add_arg", "add"):
        return parsers.add_argument(parser, args, kwargs, machine.place(scope, node))
    if data.name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
        argv = _given_words(args[0] if args else kwargs.get("args"))
        namespace = V(parse(machine, parser, argv), machine.start)
        return V((namespace, V([])), machine.start) if data.name == "parse_known_args" else namespace
    if data.name == "add_subparsers":
        dest = kwargs.get("dest")
        parser.child_dest = str(dest.data) if dest is not None else None
        return V(parser)
    if data.name == "add_parser":
        child = Parser()
        if args and isinstance(args[0].data, str):
            parser.children[args[0].data] = child
        for parent in (
            kwargs["parents"].data if "parents" in kwargs and isinstance(kwargs["parents"].data, list) else []
        ):
            child.options += parent.data.options if isinstance(parent.data, Parser) else []
        return V(child)
    if data.name == "set_defaults":
        parser.defaults.update(kwargs)
        for option in parser.options:
            option.default = kwargs.get(option.dest, option.default)
        return V(None)
    return data.of if data.name in ("add_argument_group", "add_mutually_exclusive_group") else V(None)


def _given_words(given: V | None) -> list[Arg] | None:
    if given is None or not isinstance(given.data, list):
        return None
    return [
        Arg(str(w.data), w.place)
        for w in given.data
        if isinstance(w, V) and isinstance(w.data, str) and w.place is not None
    ]


def _function_method(machine: Calls, data: Method, args: list[V]) -> V | None:
    """`@group.command()` of click: the function becomes one of the group's commands."""
    del args
    if data.name in ("command", "group", "callback"):
        return V(External("click.command", Call("__group__", [data.of], {}, machine.start, True)))
    return None


def decorated(machine: Calls, value: V, scope: Scope) -> V:
    """Return what a function becomes under its decorators."""
    function: Function = value.data
    for decorator in reversed(function.decorators):
        data = decorator.data
        if isinstance(data, Function):
            result = machine.call_function(data, [value], {})
            machine.called.discard(id(function.node))
            if isinstance(result.data, Class):
                return result
        elif isinstance(data, (Call, External)) and data.name.rsplit(".", 1)[-1] in ("command", "callback"):
            owner = data.owner if isinstance(data, Call) else data.of
            if owner is not None:
                key = id(owner.args[0].data) if owner.name == "__group__" else id(owner)
                machine.commands.setdefault(key, []).append(function)
    del scope
    return value


def _is_click(function: Function) -> bool:
    names = [d.data.name for d in function.decorators if isinstance(d.data, (Call, External))]
    return any(n.rsplit(".", 1)[-1] in ("command", "group") for n in names)


def command_of(machine: Calls, function: Function, args: list[V], kwargs: dict[str, V]) -> V | None:
    """Return what a decorated function gives when it is called as a program: click's commands, hydra's main."""
    for decorator in function.decorators:
        data = decorator.data
        last = data.name.rsplit(".", 1)[-1] if isinstance(data, (Call, External)) else ""
        if (
            isinstance(data, Call)
            and (data.name in ("hydra.main", "hydra_runner") or last in ("hydra_runner", "hydra_main"))
            and not args
        ):
            return machine.call_function(function, [hydra_main(machine, function, data)], kwargs)
    if args or not _is_click(function):
        return None
    commands = machine.commands.get(id(function), [])
    words = list(machine.argv)
    if commands:
        chosen = _chosen(commands, words) or commands[0]
        own = [w for w in words if w.text.replace("-", "_") not in (chosen.name, _command_name(chosen))]
        return run_command(machine, chosen, own)
    return run_command(machine, function, words)


def run_command(machine: Calls, function: Function, words: list[Arg]) -> V:
    """Return what a function gives when a command line sets its parameters."""
    clicks = any(
        isinstance(d.data, Call) and d.data.name.rsplit(".", 1)[-1] in ("option", "argument")
        for d in function.decorators
    )
    parser = parsers.of_click(machine, function) if clicks else parsers.of_function(machine, function)
    record = parse(machine, parser, words)
    values = {o.dest: record.entries[o.dest] for o in parser.options if o.dest in record.entries}
    return machine.call_function(function, [], values)


def _command_name(function: Function) -> str:
    for decorator in function.decorators:
        data = decorator.data
        if isinstance(data, Call) and data.name.rsplit(".", 1)[-1] == "command":
            name = data.argument(0, "name")
            if name is not None and isinstance(name.data, str):
                return name.data.replace("-", "_")
    return function.name


def _chosen(commands: list[Function], words: list[Arg]) -> Function | None:
    for word in words:
        for function in commands:
            if word.text.replace("-", "_") in (function.name, _command_name(function)):
                return function
    return None


def typer_app(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """`app()`: a call of what `typer.Typer()` gave."""
    if call.owner is None or id(call.owner) not in machine.commands:
        return sequences.called(machine, call, _scope)
    commands = machine.commands[id(call.owner)]
    words = list(machine.argv)
    if len(commands) == 1:
        return run_command(machine, commands[0], words)
    chosen = _chosen(commands, words)
    if chosen is None:
        return None
    return run_command(
        machine, chosen, [w for w in words if w.text.replace("-", "_") not in (chosen.name, _command_name(chosen))]
    )


def run_function(machine: Calls, call: Call, scope: Scope) -> V | None:
    """`typer.run(f)`, `fire.Fire(f)`, `app.run(main)`, `tyro.cli(f)`."""
    target = call.argument(0, "main", "component", "f", "config_class")
    if target is None:
        target = scope.find("main") if call.name.endswith(("app.run", "Fire")) else None
    if target is None:
        return None
    if call.name.endswith("app.run"):
        return machine.call(target, [V([])], {}, scope, ast.Constant(0))
    words = list(machine.argv)
    data = target.data
    if isinstance(data, Record) and words:
        chosen = data.entries.pop(words[0].text, None) if words[0].text in data.entries else None
        data, words = (chosen.data, words[1:]) if chosen is not None else (data, words)
    if isinstance(data, Class):
        return _fire_class(machine, call, data, words)
    return run_command(machine, data, words) if isinstance(data, Function) else None


def _fire_class(machine: Calls, call: Call, data: Class, words: list[Arg]) -> V:
    fields = fields_of(machine, data)
    if fields is not None:
        return from_words(machine, data, fields, words, call)
    start = machine.of_class(data, "__init__")
    parser = (
        parsers.of_function(machine, start.data) if start is not None and isinstance(start.data, Function) else Parser()
    )
    name = next(
        (w.text for w in words if not w.text.startswith("-") and machine.of_class(data, w.text.replace("-", "_"))), ""
    )
    record = parse(machine, parser, [w for w in words if w.text != name])
    values = {o.dest: record.entries[o.dest] for o in parser.options if o.dest in record.entries}
    made = machine.instantiate(data, [], values, call.place)
    method_ = machine.of_class(data, name.replace("-", "_")) if name else None
    if method_ is not None and isinstance(method_.data, Function):
        bound = Function(name, method_.data.node, method_.data.scope, data, made)
        inner = parsers.of_function(machine, bound)
        given = parse(machine, inner, [w for w in words if w.text != name])
        return machine.call_function(
            bound, [], {o.dest: given.entries[o.dest] for o in inner.options if o.dest in given.entries}
        )
    return made


def from_words(machine: Calls, made: Class, fields: dict[str, V], words: list[Arg], call: Call) -> V:
    """Return an object of a dataclass whose fields a command line sets; fields that are dataclasses take dotted flags."""
    kinds = kinds_of(machine, made)
    parser = parsers.of_fields(machine, fields, kinds)
    for name, default in fields.items():
        if isinstance(default.data, Instance):
            inner = parsers.of_fields(machine, default.data.attributes, kinds_of(machine, default.data.of), name + ".")
            parser.options += inner.options
    record = parse(machine, parser, words)
    values: dict[str, V] = {}
    for name, default in fields.items():
        value = record.entries.get(name, default)
        if isinstance(default.data, Instance):
            prefix = name + "."
            over = {str(k)[len(prefix) :]: v for k, v in record.entries.items() if str(k).startswith(prefix)}
            value = machine.instantiate(default.data.of, [], {**default.data.attributes, **over}, call.place)
        values[name] = value
    return machine.instantiate(made, [], values, call.place)


def hf_parser(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the parser of dataclasses that `HfArgumentParser(…)` makes."""
    given = call.argument(0, "dataclass_types")
    kinds = (
        given.data
        if given is not None and isinstance(given.data, (list, tuple))
        else [given]
        if given is not None
        else []
    )
    return V(Call("HfArgumentParser()", [k for k in kinds if isinstance(k, V)], {}, call.place, call.certain))


def hf_parse(machine: Calls, call: Call, scope: Scope) -> V | None:
    """`parse_args_into_dataclasses` and its like: each dataclass with what a command line or a file says."""
    if call.owner is None or call.owner.name != "HfArgumentParser()":
        return None
    last = call.name.rsplit(".", 1)[-1]
    given: Record | None = None
    if last in ("parse_json_file", "parse_yaml_file", "parse_dict"):
        source = call.argument(0, "json_file", "yaml_file", "args")
        path = find(machine, source, scope)
        given = load(path, machine.files) if path is not None else source.data if source is not None and isinstance(source.data, Record) else Record(open=True)  # fmt: skip
    elif machine.argv and machine.argv[0].text.endswith((".json", ".yaml", ".yml")):
        given = load(machine.argv[0].text, machine.files, machine.folder, dirname(machine.program))
    return V(tuple(_hf_one(machine, kind, given, call) for kind in call.owner.args), call.place)


def _hf_one(machine: Calls, kind: V, given: Record | None, call: Call) -> V:
    fields = fields_of(machine, kind.data) if isinstance(kind.data, Class) else None
    parser = parsers.of_fields(
        machine, fields or {}, kinds_of(machine, kind.data) if isinstance(kind.data, Class) else {}
    )
    words = list(machine.argv)
    for n, word in enumerate(words):
        if word.text == "--config" and n + 1 < len(words):
            loaded = load(words[n + 1].text, machine.files, machine.folder, dirname(machine.program))
            given = merged(loaded, given or Record()) if loaded is not None else given
    flags = parse(machine, parser, [w for w in words if not w.text.endswith((".json", ".yaml", ".yml"))])
    known = {o.dest for o in parser.options}
    base = dict(given.entries) if given is not None else {}
    if fields is not None:
        values = {
            n: flags.entries[n] if n in _given_flags(words) else base.get(n, flags.entries.get(n, d))
            for n, d in fields.items()
        }
        extra = {n: v for n, v in {**base, **flags.entries}.items() if n not in known}
        made = machine.instantiate(kind.data, [], values, call.place)
        made.data.attributes.update({k: v for k, v in extra.items() if k not in values})
        base_name = machine.library_base(kind.data)
        if base_name is not None:
            machine.record(
                Call(base_name, [], {str(k): v for k, v in {**extra, **values}.items()}, call.place, call.certain)
            )
        return made
    name = kind.data.name if isinstance(kind.data, External) else "?"
    entries = {**base, **{k: v for k, v in flags.entries.items() if k not in known and k != "__extra__"}}
    return machine.record(Call(name, [], {str(k): v for k, v in entries.items()}, call.place, call.certain))


def _given_flags(words: list[Arg]) -> set[str]:
    return {w.text.partition("=")[0].lstrip("-").replace("-", "_") for w in words if w.text.startswith("--")}


def define_flag(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """`flags.DEFINE_integer(name, default, help)`."""
    kind = call.name.rsplit("DEFINE_", 1)[-1]
    name, default = call.argument(0, "name"), call.argument(1, "default")
    if name is None or not isinstance(name.data, str):
        return V(None)
    names = {"integer": "int", "float": "float", "bool": "bool", "boolean": "bool"}
    type_ = V(External("builtins." + names[kind])) if kind in names else None
    machine.flag_values = None
    if kind in ("config_file", "config_dict"):
        return _define_config(machine, call, name.data, default)
    action = "flag" if kind in ("bool", "boolean") else "store"
    option = Option(("--" + name.data, "-" + name.data), name.data, default, call.place, type_, action)
    machine.flags.options.append(option)
    return V(Call("absl.flag", [V(name.data)], {}, call.place, True))


def _define_config(machine: Calls, call: Call, name: str, default: V | None) -> V | None:
    """`config_flags.DEFINE_config_file(name, path)`: the file's `get_config()`, with `--name.key=value` applied."""
    config = default if default is not None and isinstance(default.data, Record) else None
    path = default.data if default is not None and isinstance(default.data, str) else None
    place, argument = call.place, ""
    for word in machine.argv:
        flag, joined, value = word.text.lstrip("-").partition("=")
        if flag == name and joined:
            path, place = value, word.place
    if path is not None:
        path, _, argument = path.partition(":")
        found = machine.files.find(path, machine.folder, dirname(machine.program))
        module = machine.module(found) if found is not None else None
        get = module.names.get("get_config") if module is not None else None
        if get is not None and isinstance(get.data, Function):
            config = machine.call_function(get.data, [V(argument, place)] if get.data.node.args.args else [], {})
    record = (
        config.data if config is not None and isinstance(config.data, Record) else Record(attributes=True, open=True)
    )
    for n, word in enumerate(machine.argv):
        flag, joined, value = word.text.lstrip("-").partition("=")
        if flag.startswith(name + "."):
            text = value if joined else machine.argv[n + 1].text if n + 1 < len(machine.argv) else ""
            override(record, flag[len(name) + 1 :], Arg(text, word.place))
    machine.configs.append(record)
    machine.flags.defaults[name] = V(record, place)
    machine.flags.options = [o for o in machine.flags.options if o.dest != name]
    return V(None)
