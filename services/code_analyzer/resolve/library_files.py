"""What libraries read: files, configurations, Hydra's and OmegaConf's objects, other Python files."""

from __future__ import annotations

import ast
from collections.abc import Callable
from posixpath import dirname, join
from typing import TYPE_CHECKING, Any, Final

from schedmate.services.code_analyzer.resolve.composition import Composer, interpolated, override
from schedmate.services.code_analyzer.resolve.configs import load
from schedmate.services.code_analyzer.resolve.configs import parse as parse_config
from schedmate.services.code_analyzer.resolve.library_dataclasses import fields_of
from schedmate.services.code_analyzer.resolve.machine import OpenFile, Source
from schedmate.services.code_analyzer.resolve.ran import Arg
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
    merged,
)

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.calls import Calls

Rule = Callable[["Calls", Call, Scope], V | None]
CONFIG_KINDS: Final = frozenset({"ConfigDict", "FrozenConfigDict", "EasyDict", "AttrDict", "Munch", "SimpleNamespace", "Namespace", "Box", "DotDict", "Dict", "CfgNode", "AttributeDict", "dotdict", "edict"})  # fmt: skip


def opened(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return the open file that `open(…)` gives, of the job's own files."""
    path = call.argument(0, "file")
    found = find(machine, path, scope)
    return V(OpenFile(found)) if found is not None else None


def find(machine: Calls, path: V | None, scope: Scope) -> str | None:
    """Return the file of the source that a value names."""
    if path is None or not isinstance(path.data, str) or not path.known:
        return None
    return machine.files.find(str(path.data), machine.folder, dirname(machine.program), dirname(scope.file))


def parsed_file(suffix: str) -> Rule:
    """Return the rule of a call that parses a file or a text; `suffix` says what its text is."""

    def rule(machine: Calls, call: Call, scope: Scope) -> V | None:
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


def _loaded(machine: Calls, path: str, suffix: str, *, attributes: bool, inherit: int = 0) -> V:
    name = path if path.endswith((".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")) else path + suffix
    text = machine.files.text(path)
    if text is None:
        return V(UNKNOWN)
    record = load(path, machine.files, inherit=inherit) if name == path else None
    if record is None:
        return V(Record(open=True))
    record = attributed(record, attributes=attributes)
    machine.configs.append(record)
    return V(record, machine.files.place(path, 1))


def attributed(record: Record, *, attributes: bool, depth: int = 0) -> Record:
    """Return a copy of a record that is read by attributes, or by keys only."""
    if depth > 20:  # noqa: PLR2004 - deeper than any configuration
        return record
    entries: dict[Any, V] = {}
    for key, value in record.entries.items():
        data = value.data
        if isinstance(data, Record):
            data = attributed(data, attributes=attributes, depth=depth + 1)
        elif isinstance(data, list):
            data = [V(attributed(v.data, attributes=attributes, depth=depth + 1), v.place) if isinstance(v, V) and isinstance(v.data, Record) else v for v in data]  # fmt: skip
        entries[key] = V(data, value.place, value.basis, value.role)
    return Record(entries, attributes, record.kind, record.open)


def conf_load(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return what `OmegaConf.load(…)` reads."""
    found = find(machine, call.argument(0, "file_", "f", "filename", "path"), scope)
    if found is None:
        return V(Record(attributes=True, open=True))
    if found.endswith(".py"):
        return V(python_config(machine, found))
    return _loaded(machine, found, ".yaml", attributes=True)


def conf_file(machine: Calls, call: Call, scope: Scope) -> V | None:
    """`Config.fromfile(path)`: with what the file inherits from."""
    found = find(machine, call.argument(0, "filename", "path"), scope)
    if found is None:
        return V(Record(attributes=True, open=True))
    record = python_config(machine, found) if found.endswith(".py") else None
    if record is None:
        loaded = load(found, machine.files)
        record = attributed(loaded, attributes=True) if loaded is not None else Record(attributes=True, open=True)
    machine.configs.append(record)
    return V(record, machine.files.place(found, 1))


def python_config(machine: Calls, path: str, depth: int = 0) -> Record:
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
    return attributed(merged(out, own), attributes=True)


def imported_module(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return the names of the module that `import_module(…)` imports."""
    name = call.argument(0, "name")
    if name is None or not isinstance(name.data, str) or not name.known:
        return V(UNKNOWN)
    path = machine.module_file(name.data.lstrip("."), scope)
    module = machine.module(path) if path is not None else None
    return V(module) if module is not None else V(External(name.data))


def executed(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Follow `exec(…)` of a text or of a file of the job."""
    source = call.args[0] if call.args else V(UNKNOWN)
    if isinstance(source.data, str) and source.known:
        path = source.data.path if isinstance(source.data, Source) else ""
        machine.execute(source.data, path, scope.module())
    return V(None)


def evaluated(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return the value of the expression that `eval(…)` or `literal_eval(…)` is given."""
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


def conf_create(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the configuration that `OmegaConf.create(…)` or `structured(…)` makes."""
    given = call.args[0] if call.args else V(Record())
    if isinstance(given.data, Record):
        return V(attributed(given.data, attributes=True), given.place)
    if isinstance(given.data, (Class, Instance)):
        made = given.data if isinstance(given.data, Instance) else None
        fields = made.attributes if made is not None else fields_of(machine, given.data) or {}  # type: ignore[arg-type]
        return V(attributed(Record(dict(fields)), attributes=True), given.place)
    return V(Record(attributes=True, open=True))


def conf_merge(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the merge of configurations, the last one first in rank."""
    out = Record(attributes=True)
    for given in call.args:
        if isinstance(given.data, Record):
            out = merged(out, given.data)
        elif isinstance(given.data, Instance):
            out = merged(out, Record(dict(given.data.attributes), attributes=True))
        else:
            out.open = True
    out = attributed(interpolated(out, {}), attributes=True)
    _machine.configs.append(out)
    return V(out, call.place)


def conf_cli(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return the overrides of the command line, as `OmegaConf.from_cli()` reads them."""
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


def hydra_main(machine: Calls, function: Function, decorator: Call) -> V:
    """Return the configuration that `@hydra.main` hands to its function."""
    folder = decorator.kwargs.get("config_path", decorator.args[0] if decorator.args else V(None))
    name = decorator.kwargs.get("config_name", decorator.args[1] if len(decorator.args) > 1 else V("config"))
    here = dirname(function.scope.file)
    return V(composed(machine, join(here, str(folder.data or "")), str(name.data), here))


def composed(machine: Calls, folder: str, name: str, here: str = "") -> Record:
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
    record = attributed(interpolated(record, machine.environment), attributes=True)
    machine.configs.append(record)
    return record


def hydra_compose(machine: Calls, call: Call, scope: Scope) -> V | None:
    """Return what `hydra.compose(…)` composes."""
    name = call.argument(0, "config_name")
    given = call.argument(1, "overrides")
    words = [Arg(str(w.data), w.place or call.place) for w in given.data if isinstance(w, V)] if given is not None and isinstance(given.data, list) else machine.argv  # fmt: skip
    folder = machine.presets.get("hydra.folder", V("conf")).data
    record = Composer(machine.files, join(dirname(scope.file), str(folder))).compose(
        str(name.data) if name else "config", words
    )
    return V(attributed(interpolated(record, machine.environment), attributes=True)) if record is not None else None


def hydra_initialize(machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Remember the folder that `hydra.initialize(…)` names."""
    folder = call.argument(0, "config_path", "config_dir", "version_base")
    folder = call.kwargs.get("config_path", call.kwargs.get("config_dir", folder))
    if folder is not None:
        machine.presets["hydra.folder"] = folder
    return None


def ini_parser(_machine: Calls, call: Call, _scope: Scope) -> V | None:
    """Return an empty `ConfigParser`."""
    return V(Record(attributes=False, kind="ini"), call.place)
