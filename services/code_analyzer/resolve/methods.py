"""What methods of plain values give: texts, lists, records, paths, files, INI sections."""

# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

from collections.abc import Callable, Mapping
from posixpath import dirname, join
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.configs import scalar
from schedmate.services.code_analyzer.resolve.expressions import Expressions
from schedmate.services.code_analyzer.resolve.machine import OpenFile, PathText, Source
from schedmate.services.code_analyzer.resolve.values import HOLE, UNKNOWN, WORLD, Record, V, merged

_TEXT_SAFE: Final = frozenset({"lower", "upper", "strip", "lstrip", "rstrip", "title", "capitalize", "replace", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix", "isdigit", "islower", "isupper", "isidentifier", "partition", "rpartition", "count", "find", "splitlines", "join", "casefold", "index"})  # fmt: skip


def method(machine: Expressions, of: V, name: str, args: list[V], kwargs: dict[str, V]) -> V:
    """Return what a method of a plain value gives, UNKNOWN where it is not known."""
    data = of.data
    if isinstance(data, PathText):
        found = _path(machine, of, name, args)
        if found is not None:
            return found
    if isinstance(data, str):
        return _text(of, name, args, kwargs)
    if isinstance(data, Record):
        return _record(machine, of, data, name, args, kwargs)
    if isinstance(data, list):
        return _list(of, data, name, args)
    if isinstance(data, OpenFile) and name in ("read", "readlines"):
        text = machine.files.text(data.path)
        return V(UNKNOWN) if text is None else V(Source.of(text, data.path), machine.files.place(data.path, 1))
    if isinstance(data, OpenFile) and name == "__enter__":
        return of
    if isinstance(data, int) and name == "bit_length":
        return V(data.bit_length(), of.place)
    return V(UNKNOWN, of.place)


def _text(of: V, name: str, args: list[V], kwargs: dict[str, V]) -> V:
    text: str = of.data
    if name == "format":
        return V(_format(text, args, kwargs), of.place, Basis.COMPUTED)
    if name not in _TEXT_SAFE or not of.known:
        return V(UNKNOWN, of.place)
    if name == "join" and args and isinstance(args[0].data, (list, tuple)):
        parts = [v.data if isinstance(v, V) else v for v in args[0].data]
        return V(text.join(p if isinstance(p, str) else HOLE for p in parts)[:20_000], of.place)
    plain = [tuple(v.data for v in a.data) if isinstance(a.data, tuple) else a.data for a in args]
    if not all(isinstance(p, (str, int, type(None), tuple)) for p in plain):
        return V(UNKNOWN, of.place)
    try:
        result = getattr(text, name)(*plain)
    except (TypeError, ValueError, OverflowError, MemoryError):
        return V(UNKNOWN, of.place)
    if isinstance(result, (list, tuple)):
        return V([V(r, of.place) for r in result[:2000]], of.place)
    return V(result, of.place)


def _format(text: str, args: list[V], kwargs: dict[str, V]) -> str:
    """Return `text.format(…)` for plain fields; no attribute of anything is looked up."""
    out: list[str] = []
    rest, n = text, 0
    while "{" in rest and len(out) < 200:  # noqa: PLR2004 - no template has more fields
        before, _, tail = rest.partition("{")
        inner, closed, rest = tail.partition("}")
        out.append(before)
        name = inner.split(":")[0].split("!")[0]
        if not closed:
            return HOLE
        value = kwargs.get(name) or (args[int(name)] if name.isdigit() and int(name) < len(args) else None)
        if not name and n < len(args):
            value = args[n]
            n += 1
        plain = value is not None and value.known and isinstance(value.data, (str, int, float))
        out.append(str(value.data) if plain and value is not None and ":" not in inner else HOLE)
    return "".join([*out, rest])[:20_000]


def _path(machine: Expressions, of: V, name: str, args: list[V]) -> V | None:
    path = str(of.data)
    if name in ("read_text", "read_bytes", "open"):
        found = machine.files.find(path, machine.folder, dirname(machine.program))
        text = machine.files.text(found) if found is not None else None
        if found is None or text is None:
            return V(UNKNOWN, of.place)
        return V(OpenFile(found)) if name == "open" else V(Source.of(text, found), machine.files.place(found, 1))
    if name in ("exists", "is_file", "is_dir"):
        return V(True if machine.files.find(path, machine.folder) is not None else UNKNOWN, of.place)
    if name in ("resolve", "absolute", "expanduser", "as_posix"):
        return of
    if name in ("joinpath", "with_suffix", "with_name"):
        texts = [a.data for a in args]
        if not all(isinstance(t, str) for t in texts):
            return V(UNKNOWN, of.place)
        if name == "with_suffix":
            return V(PathText(path.rsplit(".", 1)[0] + texts[0]), of.place)
        return V(PathText(join(dirname(path) if name == "with_name" else path, *texts)), of.place)
    return None


_Record = Callable[[Expressions, V, Record, list[V], dict[str, V]], V]


def _record(machine: Expressions, of: V, data: Record, name: str, args: list[V], kwargs: dict[str, V]) -> V:
    rule = _RECORD.get(name)
    if rule is not None:
        return rule(machine, of, data, args, kwargs)
    if name.startswith("get") and data.kind == "ini":
        return _ini_get(data, args, kwargs)
    if name.startswith("get") and data.kind == "section" and args:
        found = data.entries.get(args[0].data)
        if found is None:
            return kwargs.get("fallback", V(UNKNOWN, of.place))
        value = scalar(str(found.data))
        if name == "getboolean":
            value = str(found.data).lower() in ("1", "yes", "true", "on")
        return V(value, found.place)
    return V(UNKNOWN, of.place)


def _get(machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    """`get(key[, default])`; of an INI file, `get(section, key)`."""
    if data.kind == "ini":
        return _ini_get(data, args, kwargs)
    key = args[0] if args else kwargs.get("key", V(UNKNOWN))
    default = args[1] if len(args) > 1 else kwargs.get("default", kwargs.get("fallback", V(None, of.place)))
    if not key.known or isinstance(key.data, (list, Record)):
        return V(UNKNOWN, of.place)
    found = data.entries.get(key.data)
    if found is not None:
        return found
    if data.kind == "environ":
        known_elsewhere = isinstance(key.data, str) and key.data.startswith(("SLURM_", "OMPI_", "PBS_"))
        if known_elsewhere or key.data in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            alone = not machine.world.known or machine.world.data == 1  # nobody sets them for a single process
            return (
                default
                if default.data is not None and alone
                else V(UNKNOWN, of.place, role=WORLD if "SIZE" in str(key.data) else None)
            )
        return default.at(of.place)
    return V(UNKNOWN, of.place) if data.open else default


def _ini_get(data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    section = data.entries.get(args[0].data) if args and args[0].known else None
    key = args[1].data if len(args) > 1 and args[1].known else None
    inner = section.data.entries.get(key) if section is not None and isinstance(section.data, Record) else None
    if inner is None:
        return kwargs.get("fallback", V(UNKNOWN))
    return V(scalar(str(inner.data)), inner.place)


def _set_default(machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del kwargs
    if len(args) < 2 or not args[0].known:  # noqa: PLR2004 - `setdefault(key, value)`
        return V(UNKNOWN, of.place)
    value = data.entries.setdefault(args[0].data, args[1])
    if data.kind == "environ" and isinstance(value.data, str):
        from schedmate.services.code_analyzer.resolve.ran import Arg  # noqa: PLC0415 - only here

        machine.environment.setdefault(str(args[0].data), Arg(value.data, value.place or machine.start))
    return value


def _update(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    for given in args:
        if isinstance(given.data, Record):
            data.entries.update(given.data.entries)
        else:
            data.open = True
    data.entries.update(kwargs)
    return V(None, of.place)


def _merge(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del kwargs
    for given in args:
        if isinstance(given.data, Record):
            flat = Record(attributes=data.attributes)
            for key, value in given.data.entries.items():
                flat.put(str(key), value)
            data.entries = merged(data, flat).entries
        elif isinstance(given.data, list):
            _merge_list(data, given.data)
    return V(None, of.place)


def _merge_list(data: Record, words: list[V]) -> None:
    """Apply `[KEY, VALUE, KEY, VALUE]` or `[KEY=VALUE]`, as yacs and OmegaConf take them."""
    texts = [w for w in words if isinstance(w.data, str)]
    if texts and all("=" in w.data for w in texts):
        for word in texts:
            key, _, value = word.data.partition("=")
            data.put(key, V(scalar(value), word.place))
    else:
        for key_word, value_word in zip(texts[::2], texts[1::2], strict=False):
            data.put(key_word.data, V(scalar(value_word.data), value_word.place))


def _merge_file(machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    """`merge_from_file(path)` of yacs and its like: the file, with what it inherits from, over what there is."""
    from schedmate.services.code_analyzer.resolve.configs import load  # noqa: PLC0415 - only here

    path = args[0] if args else kwargs.get("cfg_filename", V(UNKNOWN))
    known = isinstance(path.data, str) and path.known
    loaded = load(path.data, machine.files, machine.folder, dirname(machine.program)) if known else None
    if loaded is None:
        data.open = True
    else:
        data.entries = merged(data, loaded).entries
        machine.configs.append(data)
    return V(None, of.place)


def _pop(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del kwargs
    if not args or not args[0].known or isinstance(args[0].data, (list, Record)):
        return V(UNKNOWN, of.place)
    found = data.entries.pop(args[0].data, None)
    return found if found is not None else args[1] if len(args) > 1 else V(UNKNOWN, of.place)


def _items(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del args, kwargs
    return V(UNKNOWN if data.open else [V((V(k, v.place), v), v.place) for k, v in data.entries.items()], of.place)


def _keys(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del args, kwargs
    return V(UNKNOWN if data.open else [V(k, v.place) for k, v in data.entries.items()], of.place)


def _values(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del args, kwargs
    return V(UNKNOWN if data.open else list(data.entries.values()), of.place)


def _copy(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del args
    return V(Record({**data.entries, **kwargs}, data.attributes, data.kind, data.open), of.place)


def _read(machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    """`ConfigParser.read(path)`."""
    from schedmate.services.code_analyzer.resolve.configs import load  # noqa: PLC0415 - only here

    del kwargs
    path = args[0].data if args else None
    loaded = load(path, machine.files, machine.folder, dirname(machine.program)) if isinstance(path, str) else None
    if loaded is not None and data.kind == "ini":
        data.entries.update(loaded.entries)
        machine.configs.append(data)
    elif data.kind == "ini":
        data.open = True
    return V(UNKNOWN, of.place)


def _nothing(_machine: Expressions, of: V, data: Record, args: list[V], kwargs: dict[str, V]) -> V:
    del data, args, kwargs
    return V(None, of.place)


_RECORD: Final[Mapping[str, _Record]] = {
    "get": _get, "setdefault": _set_default, "update": _update, "pop": _pop, "items": _items, "keys": _keys, "values": _values,
    "copy": _copy, "to_dict": _copy, "as_dict": _copy, "__dict__": _copy, "_asdict": _copy, "clone": _copy, "to_container": _copy,
    "merge_from_dict": _merge, "merge_from_list": _merge, "merge_from_file": _merge_file, "merge_from_other_cfg": _merge, "merge_with": _merge, "merge": _merge, "merge_with_dotlist": _merge,
    "read": _read, "unlock": _nothing, "lock": _nothing, "freeze": _nothing, "defrost": _nothing, "clear": _nothing, "replace": _copy,
    "copy_and_resolve_references": _copy,
}  # fmt: skip


def _list(of: V, data: list[Any], name: str, args: list[V]) -> V:
    if name == "append" and args and len(data) < 2000:  # noqa: PLR2004 - lists of data are not followed
        data.append(args[0])
    elif name == "extend" and args and isinstance(args[0].data, (list, tuple)) and len(data) < 2000:  # noqa: PLR2004 - see above
        data.extend(v if isinstance(v, V) else V(v) for v in args[0].data)
    elif name == "insert" and len(args) > 1 and isinstance(args[0].data, int) and len(data) < 2000:  # noqa: PLR2004 - see above
        data.insert(args[0].data, args[1])
    elif name == "pop" and data:
        at = args[0].data if args and isinstance(args[0].data, int) else -1
        return data.pop(at) if -len(data) <= at < len(data) else V(UNKNOWN)
    elif name == "copy":
        return V(list(data), of.place)
    elif name in ("index", "count"):
        plain = [v.data if isinstance(v, V) else v for v in data]
        if args and args[0].known and args[0].data in plain:
            return V(plain.index(args[0].data) if name == "index" else plain.count(args[0].data), of.place)
        return V(UNKNOWN, of.place)
    return V(None, of.place)
