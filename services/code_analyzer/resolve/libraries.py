"""What calls of libraries give, where a program's values depend on it: configuration readers, argument parsers, the environment."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from posixpath import basename, dirname, join, splitext
from typing import TYPE_CHECKING, Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve import lengths, parsers, sequences
from schedmate.services.code_analyzer.resolve.composition import Composer, interpolated, override
from schedmate.services.code_analyzer.resolve.configs import load, scalar
from schedmate.services.code_analyzer.resolve.configs import parse as parse_config
from schedmate.services.code_analyzer.resolve.machine import Method, OpenFile, Option, Parser, PathText, Source
from schedmate.services.code_analyzer.resolve.parsers import parse
from schedmate.services.code_analyzer.resolve.shell import Arg
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
    from schedmate.services.code_analyzer.resolve.program import Program

_Rule = Callable[["Program", Call, Scope], V | None]
CONFIG_KINDS: Final = frozenset({"ConfigDict", "FrozenConfigDict", "EasyDict", "AttrDict", "Munch", "SimpleNamespace", "Namespace", "Box", "DotDict", "Dict", "CfgNode", "AttributeDict", "dotdict", "edict"})  # fmt: skip
_COUNTERS: Final = frozenset({"range", "trange", "xrange", "arange"})
_WRAPPERS: Final = frozenset({"tqdm", "enumerate", "track", "iter", "prefetch", "islice", "cycle", "log_every", "tqdm_notebook", "auto", "notebook", "progress_bar", "list"})  # fmt: skip


def library_call(machine: Program, call: Call, scope: Scope, node: ast.AST) -> V | None:
    """Return what a library's call gives where that is known; None makes it a call of the unknown."""
    del node
    last = call.name.rsplit(".", 1)[-1]
    if call.name.startswith("builtins."):
        rule = _BUILTINS.get(last) or sequences.BUILTINS.get(last)
        return rule(machine, call, scope) if rule is not None else None
    short = ".".join(call.name.split(".")[-2:])
    rule = _BY_PATH.get(call.name) or _BY_PATH.get(short) or sequences.BY_PATH.get(short) or _BY_NAME.get(last)
    if rule is not None:
        found = rule(machine, call, scope)
        if found is not None:
            return found
    if last in CONFIG_KINDS and not call.name.startswith(("torch.", "gym", "spaces")):
        return _record_of(call)
    for argument in [*call.args, *call.kwargs.values()]:
        if isinstance(argument.data, Parser) and last != "Trainer":
            return argument  # `deepspeed.add_config_arguments(parser)` and its like give the parser back
    return None


# --- numbers of devices and processes --------------------------------------------------------------------------------


def _world(machine: Program, _call: Call, _scope: Scope) -> V | None:
    return machine.world


def _gpus(machine: Program, _call: Call, _scope: Scope) -> V | None:
    return machine.gpus


def _zero(_machine: Program, call: Call, _scope: Scope) -> V | None:
    return V(0, call.place)


def _yes(_machine: Program, call: Call, _scope: Scope) -> V | None:
    return V(True, call.place)


# --- environment, files, modules -------------------------------------------------------------------------------------


def _getenv(machine: Program, call: Call, _scope: Scope) -> V | None:
    name = call.argument(0, "key")
    if name is None or not isinstance(name.data, str):
        return V(UNKNOWN)
    if name.data in machine.environment:
        return machine.environ(name.data)
    if name.data in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        return V(UNKNOWN, role=WORLD if name.data == "WORLD_SIZE" else None)
    return call.argument(1, "default") or V(None, call.place)


def _open(machine: Program, call: Call, scope: Scope) -> V | None:
    path = call.argument(0, "file")
    found = find(machine, path, scope)
    return V(OpenFile(found)) if found is not None else None


def find(machine: Program, path: V | None, scope: Scope) -> str | None:
    """Return the file of the source that a value names."""
    if path is None or not isinstance(path.data, str) or not path.known:
        return None
    return machine.files.find(str(path.data), machine.folder, dirname(machine.program), dirname(scope.file))


def _parsed_file(suffix: str) -> _Rule:
    def rule(machine: Program, call: Call, scope: Scope) -> V | None:
        source = call.argument(0, "stream", "fp", "f", "path", "config_file", "yaml_file", "filename", "s", "file")
        if source is None:
            return None
        data = source.data
        if isinstance(data, OpenFile):
            return _loaded(machine, data.path, suffix, attributes=False)
        if isinstance(data, Source):
            return _loaded(machine, data.path, suffix, attributes=False)
        if isinstance(data, str) and source.known and ("\n" in data or data.lstrip().startswith("{")):
            try:
                return V(parse_config(data, (source.place.file if source.place else "command") + suffix), source.place)
            except Exception:  # noqa: BLE001 - any text may stand there
                return V(UNKNOWN)
        found = find(machine, source, scope)
        return _loaded(machine, found, suffix, attributes=False) if found is not None else None

    return rule


def _loaded(machine: Program, path: str, suffix: str, *, attributes: bool, inherit: int = 0) -> V:
    name = path if path.endswith((".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")) else path + suffix
    text = machine.files.text(path)
    if text is None:
        return V(UNKNOWN)
    record = load(path, machine.files, inherit=inherit) if name == path else None
    if record is None:
        return V(Record(open=True))
    record = _attributed(record, attributes=attributes)
    machine.configs.append(record)
    return V(record, machine.files.place(path, 1))


def _attributed(record: Record, *, attributes: bool, depth: int = 0) -> Record:
    """Return a copy of a record that is read by attributes, or by keys only."""
    if depth > 20:  # noqa: PLR2004 - deeper than any configuration
        return record
    entries: dict[Any, V] = {}
    for key, value in record.entries.items():
        data = value.data
        if isinstance(data, Record):
            data = _attributed(data, attributes=attributes, depth=depth + 1)
        elif isinstance(data, list):
            data = [V(_attributed(v.data, attributes=attributes, depth=depth + 1), v.place) if isinstance(v, V) and isinstance(v.data, Record) else v for v in data]  # fmt: skip
        entries[key] = V(data, value.place, value.basis, value.role)
    return Record(entries, attributes, record.kind, record.open)


def _conf_load(machine: Program, call: Call, scope: Scope) -> V | None:
    found = find(machine, call.argument(0, "file_", "f", "filename", "path"), scope)
    if found is None:
        return V(Record(attributes=True, open=True))
    if found.endswith(".py"):
        return V(python_config(machine, found))
    return _loaded(machine, found, ".yaml", attributes=True)


def _conf_file(machine: Program, call: Call, scope: Scope) -> V | None:
    """`Config.fromfile(path)`: with what the file inherits from."""
    found = find(machine, call.argument(0, "filename", "path"), scope)
    if found is None:
        return V(Record(attributes=True, open=True))
    record = python_config(machine, found) if found.endswith(".py") else None
    if record is None:
        loaded = load(found, machine.files)
        record = _attributed(loaded, attributes=True) if loaded is not None else Record(attributes=True, open=True)
    machine.configs.append(record)
    return V(record, machine.files.place(found, 1))


def python_config(machine: Program, path: str, depth: int = 0) -> Record:
    """Return a configuration that is a Python file, with its `_base_` files below it."""
    scope = machine.module(path)
    if scope is None:
        return Record(attributes=True, open=True)
    own = Record({k: v for k, v in scope.names.items() if not k.startswith("__") and not isinstance(v.data, (External, Scope, Function, Class))}, attributes=True)  # fmt: skip
    base = own.entries.pop("_base_", None)
    names = base.data if base is not None and isinstance(base.data, list) else [base] if base is not None else []
    out = Record(attributes=True)
    for name in names:
        text = name.data if isinstance(name, V) else None
        found = machine.files.find(text, dirname(path)) if isinstance(text, str) else None
        if found is not None and depth < 10:  # noqa: PLR2004 - no inheritance is deeper
            inner = (
                python_config(machine, found, depth + 1)
                if found.endswith(".py")
                else load(found, machine.files) or Record()
            )
            out = merged(out, inner)
    return _attributed(merged(out, own), attributes=True)


def _import_module(machine: Program, call: Call, scope: Scope) -> V | None:
    name = call.argument(0, "name")
    if name is None or not isinstance(name.data, str) or not name.known:
        return V(UNKNOWN)
    path = machine.module_file(name.data.lstrip("."), scope)
    module = machine.module(path) if path is not None else None
    return V(module) if module is not None else V(External(name.data))


def _exec(machine: Program, call: Call, scope: Scope) -> V | None:
    source = call.args[0] if call.args else V(UNKNOWN)
    if isinstance(source.data, str) and source.known:
        path = source.data.path if isinstance(source.data, Source) else ""
        machine.execute(source.data, path, scope.module())
    return V(None)


def _eval(machine: Program, call: Call, scope: Scope) -> V | None:
    source = call.args[0] if call.args else V(UNKNOWN)
    if not isinstance(source.data, str) or not source.known or len(source.data) > 2000:  # noqa: PLR2004 - an expression is a line
        return V(UNKNOWN)
    try:
        node = ast.parse(source.data.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return V(source.data if call.name.endswith("literal_eval") else UNKNOWN, source.place)
    result = machine.value(node, scope)
    return V(result.data, source.place or result.place, result.basis, result.role)


# --- OmegaConf and Hydra ---------------------------------------------------------------------------------------------


def _conf_create(machine: Program, call: Call, _scope: Scope) -> V | None:
    given = call.args[0] if call.args else V(Record())
    if isinstance(given.data, Record):
        return V(_attributed(given.data, attributes=True), given.place)
    if isinstance(given.data, (Class, Instance)):
        made = given.data if isinstance(given.data, Instance) else None
        fields = made.attributes if made is not None else fields_of(machine, given.data) or {}  # type: ignore[arg-type]
        return V(_attributed(Record(dict(fields)), attributes=True), given.place)
    return V(Record(attributes=True, open=True))


def _conf_merge(_machine: Program, call: Call, _scope: Scope) -> V | None:
    out = Record(attributes=True)
    for given in call.args:
        if isinstance(given.data, Record):
            out = merged(out, given.data)
        elif isinstance(given.data, Instance):
            out = merged(out, Record(dict(given.data.attributes), attributes=True))
        else:
            out.open = True
    out = _attributed(interpolated(out, {}), attributes=True)
    _machine.configs.append(out)
    return V(out, call.place)


def _conf_cli(machine: Program, call: Call, _scope: Scope) -> V | None:
    words = machine.argv
    if call.args and isinstance(call.args[0].data, list):
        words = [
            Arg(str(w.data), w.place or call.place)
            for w in call.args[0].data
            if isinstance(w, V) and isinstance(w.data, str)
        ]
    record = Record(attributes=True)
    for word in words:
        key, joined, value = word.text.lstrip("-").partition("=")
        if joined:
            override(record, key, Arg(value, word.place))
    return V(record, call.place)


def _hydra(machine: Program, function: Function, decorator: Call) -> V:
    """Return the configuration that `@hydra.main` hands to its function."""
    folder = decorator.kwargs.get("config_path", decorator.args[0] if decorator.args else V(None))
    name = decorator.kwargs.get("config_name", decorator.args[1] if len(decorator.args) > 1 else V("config"))
    here = dirname(function.scope.file)
    return V(composed(machine, join(here, str(folder.data or "")), str(name.data), here))


def composed(machine: Program, folder: str, name: str, here: str = "") -> Record:
    """Return the composed configuration of the program's command line."""
    overrides: list[Arg] = []
    several = False
    words = list(machine.argv)
    while words:
        word = words.pop(0)
        flag, joined, value = word.text.partition("=")
        if flag in ("-m", "--multirun"):
            several = True
        elif flag in ("--config-path", "-cp", "--config-dir", "-cd", "--config-name", "-cn"):
            if not joined and words:
                value = words.pop(0).text
            if flag in ("--config-name", "-cn"):
                name = value
            else:
                folder = join(here if flag in ("--config-path", "-cp") else machine.folder, value)
        else:
            overrides.append(word)
    record = Composer(machine.files, folder).compose(name, overrides, several=several)
    if record is None:
        record = Record(attributes=True, open=True)
        for word in overrides:
            key, joined, value = word.text.lstrip("+~").partition("=")
            if joined:
                override(record, key, Arg(value, word.place), several=several)
    record = _attributed(interpolated(record, machine.environment), attributes=True)
    machine.configs.append(record)
    return record


def _compose(machine: Program, call: Call, scope: Scope) -> V | None:
    name = call.argument(0, "config_name")
    given = call.argument(1, "overrides")
    words = [Arg(str(w.data), w.place or call.place) for w in given.data if isinstance(w, V)] if given is not None and isinstance(given.data, list) else machine.argv  # fmt: skip
    folder = machine.presets.get("hydra.folder", V("conf")).data
    record = Composer(machine.files, join(dirname(scope.file), str(folder))).compose(
        str(name.data) if name else "config", words
    )
    return V(_attributed(interpolated(record, machine.environment), attributes=True)) if record is not None else None


def _initialize(machine: Program, call: Call, _scope: Scope) -> V | None:
    folder = call.argument(0, "config_path", "config_dir", "version_base")
    folder = call.kwargs.get("config_path", call.kwargs.get("config_dir", folder))
    if folder is not None:
        machine.presets["hydra.folder"] = folder
    return None


# --- arguments -------------------------------------------------------------------------------------------------------


def _argument_parser(machine: Program, call: Call, _scope: Scope) -> V | None:
    parser = Parser()
    machine.parsers.append(parser)
    parents = call.kwargs.get("parents")
    for parent in parents.data if parents is not None and isinstance(parents.data, (list, tuple)) else []:
        if isinstance(parent, V) and isinstance(parent.data, Parser):
            parser.options += parent.data.options
    return V(parser, call.place)


def parser_method(  # noqa: C901 - methods of one object, one after another
    machine: Program, data: Method, args: list[V], kwargs: dict[str, V], scope: Scope, node: ast.AST
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


def _function_method(machine: Program, data: Method, args: list[V]) -> V | None:
    """`@group.command()` of click: the function becomes one of the group's commands."""
    del args
    if data.name in ("command", "group", "callback"):
        return V(External("click.command", Call("__group__", [data.of], {}, machine.start, True)))
    return None


def decorated(machine: Program, value: V, scope: Scope) -> V:
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


def command_of(machine: Program, function: Function, args: list[V], kwargs: dict[str, V]) -> V | None:
    """Return what a decorated function gives when it is called as a program: click's commands, hydra's main."""
    for decorator in function.decorators:
        data = decorator.data
        last = data.name.rsplit(".", 1)[-1] if isinstance(data, (Call, External)) else ""
        if (
            isinstance(data, Call)
            and (data.name in ("hydra.main", "hydra_runner") or last in ("hydra_runner", "hydra_main"))
            and not args
        ):
            return machine.call_function(function, [_hydra(machine, function, data)], kwargs)
    if args or not _is_click(function):
        return None
    commands = machine.commands.get(id(function), [])
    words = list(machine.argv)
    if commands:
        chosen = _chosen(commands, words) or commands[0]
        own = [w for w in words if w.text.replace("-", "_") not in (chosen.name, _command_name(chosen))]
        return run_command(machine, chosen, own)
    return run_command(machine, function, words)


def run_command(machine: Program, function: Function, words: list[Arg]) -> V:
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


def _typer_app(machine: Program, call: Call, _scope: Scope) -> V | None:
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


def _run_function(machine: Program, call: Call, scope: Scope) -> V | None:
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


def _fire_class(machine: Program, call: Call, data: Class, words: list[Arg]) -> V:
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


def from_words(machine: Program, made: Class, fields: dict[str, V], words: list[Arg], call: Call) -> V:
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


def _hf_parser(_machine: Program, call: Call, _scope: Scope) -> V | None:
    given = call.argument(0, "dataclass_types")
    kinds = (
        given.data
        if given is not None and isinstance(given.data, (list, tuple))
        else [given]
        if given is not None
        else []
    )
    return V(Call("HfArgumentParser()", [k for k in kinds if isinstance(k, V)], {}, call.place, call.certain))


def _hf_parse(machine: Program, call: Call, scope: Scope) -> V | None:
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


def _hf_one(machine: Program, kind: V, given: Record | None, call: Call) -> V:
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


def _define_flag(machine: Program, call: Call, _scope: Scope) -> V | None:
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


def _define_config(machine: Program, call: Call, name: str, default: V | None) -> V | None:
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


def kinds_of(machine: Program, made: Class) -> dict[str, V | None]:
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


def fields_of(machine: Program, made: Class) -> dict[str, V] | None:
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


def _field_default(machine: Program, default: V, made: Class) -> V:
    call = default.data
    if isinstance(call, Call) and call.name.rsplit(".", 1)[-1] in ("field", "Field", "attrib", "ib", "list_field"):
        factory = call.kwargs.get("default_factory", call.kwargs.get("factory"))
        if factory is not None and isinstance(factory.data, (Function, Class)):
            return machine.call(factory, [], {}, made.scope, made.node)
        value = call.argument(0, "default")
        return V(UNKNOWN, default.place) if value is None else V(value.data, value.place or default.place, value.basis)
    return default


# --- data and loops --------------------------------------------------------------------------------------------------


def iteration(machine: Program, source: V) -> tuple[V | None, V]:
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


def passed(machine: Program, data: External, args: list[V], kwargs: dict[str, V], place: Any) -> V:
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


def _dataset_method(machine: Program, call: Call, _scope: Scope) -> V | None:
    """`.select(range(n))`, `.filter(…)`: the data set again, of another length."""
    if call.owner is None:
        return None
    owner = call.owner
    part = Call(owner.name, owner.args, owner.kwargs, owner.place, owner.certain, owner.owner, owner.text)
    known = lengths.changed(machine, call.name.rsplit(".", 1)[-1], owner, call.args, call.kwargs)
    part.attributes = {**owner.attributes, "__len__": known or V(UNKNOWN)}
    return V(part, owner.place)


def call_back(machine: Program, call: Call) -> None:
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


def _number(kind: Callable[[Any], Any]) -> _Rule:
    def rule(_machine: Program, call: Call, _scope: Scope) -> V | None:
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


def _mathematics(kind: Callable[..., Any]) -> _Rule:
    def rule(_machine: Program, call: Call, _scope: Scope) -> V | None:
        if call.args and all(isinstance(a.data, (int, float)) for a in call.args):
            try:
                return V(kind(*(a.data for a in call.args)), call.args[0].place, Basis.COMPUTED, call.args[0].role)
            except (ValueError, TypeError, OverflowError, ArithmeticError):
                return V(UNKNOWN)
        return V(UNKNOWN, role=call.args[0].role if call.args else None)

    return rule


def _extreme(kind: Callable[[list[Any]], Any]) -> _Rule:
    def rule(machine: Program, call: Call, _scope: Scope) -> V | None:
        values = call.args if len(call.args) > 1 else machine.elements(call.args[0]) if call.args else None
        if values and all(isinstance(v.data, (int, float)) and not isinstance(v.data, bool) for v in values):
            result = kind([v.data for v in values])
            where = next((v for v in values if v.data == result), values[0])
            return V(result, where.place, Basis.COMPUTED, where.role)
        return V(UNKNOWN)

    return rule


def _text(_machine: Program, call: Call, _scope: Scope) -> V | None:
    value = call.args[0] if call.args else V("")
    if isinstance(value.data, (str, int, float, bool)):
        return V(value.data if isinstance(value.data, PathText) else str(value.data), value.place, value.basis)
    return V(HOLE, value.place)


def _bool(machine: Program, call: Call, _scope: Scope) -> V | None:
    truth = machine.truth(call.args[0]) if call.args else False
    return V(UNKNOWN if truth is None else truth, call.args[0].place if call.args else call.place)


def _len(machine: Program, call: Call, _scope: Scope) -> V | None:
    found = lengths.length(machine, call.args[0]) if call.args else None
    return found if found is not None else V(UNKNOWN, call.place)


def _list(machine: Program, call: Call, _scope: Scope) -> V | None:
    elements = machine.elements(call.args[0]) if call.args else []
    if elements is None:
        return None if isinstance(call.args[0].data, Call) else V(UNKNOWN, call.place)
    return V(tuple(elements) if call.name.endswith("tuple") else list(elements), call.place)


def _sorted(machine: Program, call: Call, _scope: Scope) -> V | None:
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


def _dict(_machine: Program, call: Call, _scope: Scope) -> V | None:
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


def _record_of(call: Call) -> V:
    record = Record(attributes=True)
    for given in call.args:
        if isinstance(given.data, Record):
            record = merged(record, _attributed(given.data, attributes=True))
        elif given.data is UNKNOWN:
            record.open = True
    record.entries.update(call.kwargs)
    return V(record, call.place)


def _getattr(machine: Program, call: Call, scope: Scope) -> V | None:
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


def _setattr(machine: Program, call: Call, scope: Scope) -> V | None:
    del scope
    if len(call.args) == 3 and isinstance(call.args[1].data, str) and call.args[1].known:  # noqa: PLR2004 - object, name, value
        machine._set_attribute(call.args[0], call.args[1].data, call.args[2])  # noqa: SLF001 - one thing in two modules
    return V(None)


def _hasattr(machine: Program, call: Call, scope: Scope) -> V | None:
    del machine, scope
    owner = call.args[0].data if call.args else None
    name = call.args[1].data if len(call.args) > 1 else None
    if isinstance(owner, Record):
        return V(True if name in owner.entries else UNKNOWN if owner.open else False)
    return V(UNKNOWN)


def _vars(machine: Program, call: Call, scope: Scope) -> V | None:
    if not call.args:
        names = (scope.module() if call.name.endswith("globals") else scope).names
        return V(Record(names, kind="scope", open=False))
    data = call.args[0].data
    if isinstance(data, Instance):
        return V(Record(data.attributes))
    del machine
    return V(Record(data.entries, open=data.open)) if isinstance(data, Record) else V(UNKNOWN)


def _isinstance(_machine: Program, call: Call, _scope: Scope) -> V | None:
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


def _path(_machine: Program, call: Call, _scope: Scope) -> V | None:
    texts = [a.data for a in call.args]
    if texts and all(isinstance(t, str) for t in texts):
        return V(PathText(join(*texts)), call.args[0].place)
    return V(UNKNOWN)


def _path_function(kind: Callable[..., str]) -> _Rule:
    def rule(_machine: Program, call: Call, _scope: Scope) -> V | None:
        texts = [a.data for a in call.args]
        return V(kind(*texts), call.args[0].place) if texts and all(isinstance(t, str) for t in texts) else V(UNKNOWN)

    return rule


def _split_suffix(_machine: Program, call: Call, _scope: Scope) -> V | None:
    path = call.args[0] if call.args else V(UNKNOWN)
    if not isinstance(path.data, str) or not path.known:
        return V(UNKNOWN, path.place)
    return V(tuple(V(part, path.place) for part in splitext(path.data)), path.place)


def _exists(machine: Program, call: Call, scope: Scope) -> V | None:
    return V(True if find(machine, call.argument(0, "path"), scope) is not None else UNKNOWN)


def _partial(_machine: Program, call: Call, _scope: Scope) -> V | None:
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
    return None


def _super(machine: Program, _call: Call, scope: Scope) -> V | None:
    own = scope.find("__class__")
    self_ = scope.find("self")
    if own is None or self_ is None or not isinstance(own.data, Class):
        return V(UNKNOWN)
    for base in own.data.bases:
        if isinstance(base.data, Class):
            return V(Instance(base.data, self_.data.attributes if isinstance(self_.data, Instance) else {}))
    return V(External(machine.library_base(own.data) or "object"))


def _vars_of_class(_machine: Program, call: Call, _scope: Scope) -> V | None:
    given = call.args[0].data if call.args else None
    return V(Record(dict(given.attributes))) if isinstance(given, Instance) else None


def _replace(machine: Program, call: Call, _scope: Scope) -> V | None:
    given = call.args[0].data if call.args else None
    if isinstance(given, Instance):
        return machine.instantiate(given.of, [], {**given.attributes, **call.kwargs}, call.place)
    return None


def _copied(_machine: Program, call: Call, _scope: Scope) -> V | None:
    given = call.args[0] if call.args else V(UNKNOWN)
    return (
        V(_attributed(given.data, attributes=given.data.attributes), given.place)
        if isinstance(given.data, Record)
        else given
    )


def _ini(_machine: Program, call: Call, _scope: Scope) -> V | None:
    return V(Record(attributes=False, kind="ini"), call.place)


def _raw_text(_machine: Program, call: Call, _scope: Scope) -> V | None:
    return (
        V(scalar(str(call.args[0].data)), call.args[0].place)
        if call.args and isinstance(call.args[0].data, str)
        else None
    )


_BUILTINS: Final[Mapping[str, _Rule]] = {
    "int": _number(int), "float": _number(float), "round": _mathematics(round), "abs": _mathematics(abs), "str": _text, "bool": _bool,
    "len": _len, "list": _list, "tuple": _list, "set": _list, "sorted": _sorted, "dict": _dict, "min": _extreme(min), "max": _extreme(max),
    "sum": _extreme(sum), "getattr": _getattr, "setattr": _setattr, "hasattr": _hasattr, "vars": _vars, "globals": _vars, "locals": _vars,
    "isinstance": _isinstance, "open": _open, "exec": _exec, "eval": _eval, "super": _super, "pow": _mathematics(pow), "__import__": _import_module,
}  # fmt: skip

_BY_PATH: Final[Mapping[str, _Rule]] = {
    "os.getenv": _getenv, "environ.get": _getenv, "os.path.join": _path_function(join), "path.join": _path_function(join),
    "path.dirname": _path_function(dirname), "path.basename": _path_function(basename), "path.splitext": _split_suffix, "path.exists": _exists, "path.isfile": _exists,
    "math.ceil": _mathematics(math.ceil), "math.floor": _mathematics(math.floor), "math.sqrt": _mathematics(math.sqrt),
    "math.prod": _extreme(math.prod), "np.ceil": _mathematics(math.ceil), "numpy.ceil": _mathematics(math.ceil),
    "yaml.safe_load": _parsed_file(".yaml"), "yaml.load": _parsed_file(".yaml"), "yaml.full_load": _parsed_file(".yaml"),
    "yaml.unsafe_load": _parsed_file(".yaml"), "json.load": _parsed_file(".json"), "json.loads": _parsed_file(".json"),
    "tomllib.load": _parsed_file(".toml"), "tomllib.loads": _parsed_file(".toml"), "tomli.load": _parsed_file(".toml"),
    "toml.load": _parsed_file(".toml"), "yaml.load_all": _parsed_file(".yaml"), "pyhocon.load": _parsed_file(".json"),
    "OmegaConf.load": _conf_load, "OmegaConf.create": _conf_create, "OmegaConf.structured": _conf_create, "OmegaConf.merge": _conf_merge,
    "OmegaConf.unsafe_merge": _conf_merge, "OmegaConf.from_cli": _conf_cli, "OmegaConf.from_dotlist": _conf_cli, "OmegaConf.to_container": _copied,
    "OmegaConf.to_object": _copied, "OmegaConf.resolve": _copied, "Config.fromfile": _conf_file, "Config.from_file": _conf_file, "mmcv.Config.fromfile": _conf_file,
    "hydra.compose": _compose, "hydra.initialize": _initialize, "hydra.initialize_config_dir": _initialize,
    "importlib.import_module": _import_module, "ast.literal_eval": _eval, "copy.deepcopy": _copied, "copy.copy": _copied,
    "dataclasses.asdict": _vars_of_class, "dataclasses.replace": _replace, "functools.partial": _partial,
    "argparse.ArgumentParser": _argument_parser, "configargparse.ArgumentParser": _argument_parser, "typer.run": _run_function,
    "fire.Fire": _run_function, "app.run": _run_function, "tyro.cli": _run_function, "draccus.parse": _run_function, "pyrallis.parse": _run_function,
    "simple_parsing.parse": _run_function, "chz.entrypoint": _run_function, "chz.nested_entrypoint": _run_function, "jsonargparse.CLI": _run_function,
    "cuda.device_count": _gpus, "jax.local_device_count": _gpus, "jax.device_count": _world, "hvd.size": _world, "hvd.local_size": _gpus,
    "cuda.is_available": _yes, "dist.is_available": _yes, "dist.is_initialized": _yes, "distributed.is_initialized": _yes,
    "hvd.rank": _zero, "hvd.local_rank": _zero, "jax.process_index": _zero, "jax.process_count": _world,
    "configparser.ConfigParser": _ini, "configparser.RawConfigParser": _ini, "configparser.SafeConfigParser": _ini,
    "pathlib.Path": _path, "cuda.set_device": _zero,
}  # fmt: skip

_BY_NAME: Final[Mapping[str, _Rule]] = {
    "get_world_size": _world, "get_rank": _zero, "get_local_rank": _zero, "local_rank": _zero, "ArgumentParser": _argument_parser,
    "FlexibleArgumentParser": _argument_parser, "HfArgumentParser": _hf_parser, "PdArgumentParser": _hf_parser, "TrlParser": _hf_parser,
    "parse_args_into_dataclasses": _hf_parse, "parse_json_file": _hf_parse, "parse_yaml_file": _hf_parse, "parse_dict": _hf_parse,
    "parse_args_and_config": _hf_parse, "Path": _path, "PurePath": _path, "select": _dataset_method, "filter": _dataset_method, "take": _dataset_method,
    "skip": _dataset_method, "shard": _dataset_method, "train_test_split": _dataset_method, "is_main_process": _yes, "is_master": _yes,
    "is_rank_zero": _yes, "is_rank_0": _yes, "__call__": _typer_app, "DEFINE_integer": _define_flag,
    "DEFINE_string": _define_flag, "DEFINE_float": _define_flag, "DEFINE_bool": _define_flag, "DEFINE_boolean": _define_flag,
    "DEFINE_enum": _define_flag, "DEFINE_list": _define_flag, "DEFINE_multi_string": _define_flag, "DEFINE_config_file": _define_flag, "DEFINE_config_dict": _define_flag, "Fire": _run_function, "cli": _run_function, "deepcopy": _copied, "partial": _partial,
    "ConfigParser": _ini, "safe_load": _parsed_file(".yaml"), "asdict": _vars_of_class, "device_count": _gpus, "num_replicas": _world,
    "import_module": _import_module, "literal_eval": _eval, "ceil": _mathematics(math.ceil), "compose": _compose,
    "fromfile": _conf_file, "getenv": _getenv,
}  # fmt: skip
