"""Configuration files as records with the line of each value: YAML, JSON, TOML, INI, gin; with what they inherit from."""

# ruff: noqa: FBT003 - truth values are data here

from __future__ import annotations

import ast
import configparser
import json
import re
import tomllib
from posixpath import dirname
from typing import Any, Final

import yaml

from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.values import UNKNOWN, Place, Record, V, merged

NODES_MAX: Final = 50_000
NESTING_MAX: Final = 60
INHERIT_MAX: Final = 10
SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".gin", ".jsonc")
PARENTS: Final = ("_base_", "_BASE_", "__base__", "base", "_base", "inherit", "inherits", "inherit_from", "extends", "parent", "base_config", "include", "includes", "BASE")  # fmt: skip
_FLOAT: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class ConfigError(Exception):
    """The text is no configuration that could be read."""


def is_config(path: str) -> bool:
    """Tell whether a path looks like a configuration file."""
    return path.endswith(SUFFIXES)


def load(path: str, files: Files, *bases: str, inherit: int = INHERIT_MAX) -> Record | None:
    """Return a configuration file's record, with its parents merged below it; None when it is not there or cannot be read."""
    found = files.find(path, *bases)
    text = files.text(found) if found is not None else None
    if found is None or text is None:
        return None
    try:
        record = parse(text, found, files)
    except ConfigError as error:
        files.missing(f"{found}: {error}")
        return None
    return record if inherit <= 0 or found.endswith(".gin") else _with_parents(record, found, files, inherit)


def load_text(text: str, file: str) -> Record | None:
    """Return the record of a configuration that stands in a command."""
    try:
        return _yaml(text, file, None)
    except ConfigError:
        return None


def parse(text: str, path: str, files: Files | None = None) -> Record:
    """Return the record of a configuration's text.

    Raises:
        ConfigError: it is no such configuration, too large or too deep.
    """
    if path.endswith(".toml"):
        return _toml(text, path, files)
    if path.endswith((".ini", ".cfg")):
        return _ini(text, path, files)
    if path.endswith(".gin"):
        return _gin(text, path, files)
    return _yaml(text, path, files)


def _with_parents(record: Record, path: str, files: Files, inherit: int) -> Record:
    for key in PARENTS:
        value = record.entries.get(key)
        if value is None:
            continue
        names = value.data if isinstance(value.data, list) else [value]
        paths = [n.data for n in names if isinstance(n.data, str) and ("." in n.data or "/" in n.data)]
        if not paths or len(paths) != len(names):
            continue
        parents = [load(p, files, dirname(path), inherit=inherit - 1) for p in paths]
        base = Record(attributes=record.attributes)
        for parent in parents:
            if parent is not None:
                base = merged(base, parent)
        entries = {k: v for k, v in record.entries.items() if k != key}
        return merged(base, Record(entries, record.attributes))
    return record


# --- YAML and JSON ---------------------------------------------------------------------------------------------------


def documents(text: str, path: str, files: Files | None = None) -> list[Record]:
    """Return the mappings of a YAML text of several documents."""
    _check_nesting(text)
    builder = _Builder(path, files)
    try:
        nodes = files.unit("yaml", path, text, _composed) if files is not None else _composed(text)
        values = [builder.value(node, 0) for node in nodes]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"it is no YAML: {_first_line(error)}") from error
    return [v.data for v in values if isinstance(v.data, Record)]


def _composed(text: str) -> list[Any]:
    return list(yaml.compose_all(text, Loader=_LOADER))


def _yaml(text: str, path: str, files: Files | None) -> Record:
    if path.endswith((".json", ".jsonc")) and "\t" in text:
        return _json(text, path, files)
    try:
        found = documents(text, path, files)
    except ConfigError:
        if path.endswith((".json", ".jsonc")):
            return _json(text, path, files)
        raise
    return found[0] if found else Record()


def _json(text: str, path: str, files: Files | None) -> Record:
    _check_nesting(text)
    try:
        data = files.unit("json", path, text, _commented_json) if files is not None else _commented_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is no JSON: {_first_line(error)}") from error
    if not isinstance(data, dict):
        return Record()
    return _placed(data, text, path, files)


def _commented_json(text: str) -> Any:
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def _check_nesting(text: str) -> None:
    """Refuse what nests too deeply before a recursive reader sees it."""
    depth = deepest = 0
    for character in re.findall(r"[\[\]{}]", text):
        depth += 1 if character in "[{" else -1
        deepest = max(deepest, depth)
    indents = max((len(m) for m in re.findall(r"^ {200,}", text, flags=re.MULTILINE)), default=0)
    dashes = max((m.count("-") for m in re.findall(r"^[ -]*(?:- ){20,}", text, flags=re.MULTILINE)), default=0)
    if deepest > NESTING_MAX or dashes > NESTING_MAX or indents > 4 * NESTING_MAX:
        raise ConfigError("it is nested too deeply")


_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Final = yaml.SafeLoader("")


class _Builder:
    """Turns YAML nodes into values; an alias gives the same object again, so nothing grows by being referred to."""

    def __init__(self, path: str, files: Files | None) -> None:
        self._path = path
        self._files = files
        self._known: dict[int, V] = {}
        self._count = 0

    def value(self, node: yaml.Node, depth: int) -> V:
        known = self._known.get(id(node))
        if known is not None:
            return known
        self._count += 1
        if self._count > NODES_MAX or depth > NESTING_MAX:
            raise ConfigError("it is too large or nested too deeply")
        line = node.start_mark.line + 1
        place = self._files.place(self._path, line) if self._files is not None else Place(self._path, line)
        if isinstance(node, yaml.MappingNode):
            value = V(Record(attributes=True), place)
            self._known[id(node)] = value
            self._mapping(node, value.data, depth)
        elif isinstance(node, yaml.SequenceNode):
            value = V([], place)
            self._known[id(node)] = value
            value.data.extend(self.value(inner, depth + 1) for inner in node.value)
        else:
            value = V(_scalar(node) if isinstance(node, yaml.ScalarNode) else UNKNOWN, place)
            self._known[id(node)] = value
        return value

    def _mapping(self, node: yaml.MappingNode, record: Record, depth: int) -> None:
        for key_node, value_node in node.value:
            key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            value = self.value(value_node, depth + 1)
            if key_node.tag == "tag:yaml.org,2002:merge" or key == "<<":
                for inner in value.data if isinstance(value.data, list) else [value]:
                    if isinstance(inner, V) and isinstance(inner.data, Record) and inner.data is not record:
                        record.entries = {**inner.data.entries, **record.entries}
            elif key is not None or isinstance(key_node, yaml.ScalarNode):
                place = value.place
                line = key_node.start_mark.line + 1
                if place is not None and not isinstance(value.data, (Record, list)):
                    place = self._files.place(self._path, line) if self._files is not None else Place(self._path, line)
                    value = V(value.data, place)
                record.entries[key] = value


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.style in ("'", '"', "|", ">") and node.tag in ("tag:yaml.org,2002:str", "!"):
        return text
    kind = node.tag.rsplit(":", 1)[-1]
    if kind in ("int", "float", "bool", "null"):
        try:
            return _converted(node, kind, text)
        except (ValueError, OverflowError, yaml.YAMLError):
            return text
    if kind == "str" and _FLOAT.fullmatch(text):
        return float(text)  # `1e-3`: YAML 1.1 reads a text, and every program that reads it means the number
    return text


def _converted(node: yaml.ScalarNode, kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return _RESOLVER.construct_yaml_bool(node)
    if kind == "int":
        return _RESOLVER.construct_yaml_int(node)
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else _RESOLVER.construct_yaml_float(node)


def scalar(text: str) -> Any:
    """Return the value that a text on a command line stands for: a number, a truth value, null, a list, or itself."""
    stripped = text.strip()
    if stripped in ("None", "null", "~"):
        return None
    if stripped in ("True", "False"):
        return stripped == "True"
    if re.fullmatch(r"[-+]?\d[\d_]*", stripped):
        return int(stripped) if len(stripped) < 30 else text  # noqa: PLR2004 - no count has more digits
    if _FLOAT.fullmatch(stripped) or re.fullmatch(r"[-+]?\d+\.\d*|[-+]?\.\d+", stripped):
        return float(stripped)
    return {"true": True, "false": False}.get(stripped, text)


def given_value(text: str, place: Place | None) -> V:
    """Return an override's value, lists and dictionaries included."""
    stripped = text.strip()
    if stripped[:1] in ("[", "{") and len(stripped) < 5000:  # noqa: PLR2004 - an override is a line
        record = load_text(f"value: {stripped}", place.file if place is not None else "command")
        inner = record.entries.get("value") if record is not None else None
        if inner is not None:
            return _placed_at(inner, place, 0)
    return V(scalar(text), place)


def _placed_at(value: V, place: Place | None, depth: int) -> V:
    if depth > NESTING_MAX:
        return V(UNKNOWN, place)
    if isinstance(value.data, Record):
        return V(Record({k: _placed_at(v, place, depth + 1) for k, v in value.data.entries.items()}, True), place)
    if isinstance(value.data, list):
        return V([_placed_at(v, place, depth + 1) for v in value.data], place)
    return V(value.data, place)


# --- TOML, INI, gin --------------------------------------------------------------------------------------------------


def _toml(text: str, path: str, files: Files | None) -> Record:
    _check_nesting(text)
    try:
        data = files.unit("toml", path, text, tomllib.loads) if files is not None else tomllib.loads(text)
        return _placed(data, text, path, files)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"it is no TOML: {_first_line(error)}") from error


def _placed(data: dict[str, Any], text: str, path: str, files: Files | None) -> Record:
    """Give each value the line that its key stands on, sections in order."""
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for key in re.findall(r"([\w.-]+)[\"']?\s*[=:]", line):
            lines.setdefault(key.rsplit(".", 1)[-1], []).append(number)

    def placed(value: Any, key: str) -> V:
        numbers = lines.get(key, [])
        line = (numbers.pop(0) if len(numbers) > 1 else numbers[0]) if numbers else None
        place = files.place(path, line) if files is not None else Place(path, line)
        if isinstance(value, dict):
            return V(Record({k: placed(v, k) for k, v in value.items()}, attributes=True), place)
        if isinstance(value, list):
            return V([placed(v, key) if isinstance(v, dict) else V(v, place) for v in value], place)
        return V(value, place)

    return Record({k: placed(v, k) for k, v in data.items()}, attributes=True)


def _ini(text: str, path: str, files: Files | None) -> Record:
    parser = configparser.ConfigParser(strict=False, allow_no_value=True, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ConfigError(f"it is no INI file: {_first_line(error)}") from error
    lines: dict[tuple[str, str], int] = {}
    section = "DEFAULT"
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[([^\]]+)\]", line)
        section = header[1] if header is not None else section
        key = re.match(r"([\w.-]+)\s*[=:]", line)
        if key is not None:
            lines[section, key[1]] = number
    record = Record(attributes=True)
    for name in parser.sections():
        entries: dict[Any, V] = {}
        for key_name, value in parser.items(name):
            at = lines.get((name, key_name)) or lines.get(("DEFAULT", key_name))
            place = files.place(path, at) if files is not None else Place(path, at)
            entries[key_name] = V(value, place)
        record.entries[name] = V(Record(entries, kind="section"), Place(path))
    return record


_BINDING: Final = re.compile(r"(\s*)([\w./-]+)\s*=\s*(.+)")


def _gin(text: str, path: str, files: Files | None) -> Record:
    record = Record(attributes=True)
    base = Record(attributes=True)
    block = ""
    for number, line in enumerate(_joined(text), start=1):
        code = line.split("#", 1)[0].rstrip()
        include = re.match(r"include\s+['\"]([^'\"]+)['\"]", code)
        if include is not None and files is not None:
            parent = load(include[1], files, dirname(path))
            base = merged(base, parent) if parent is not None else base
            record.entries.setdefault("include", V([], Place(path, number))).data.append(
                V(include[1], Place(path, number))
            )
            continue
        header = re.fullmatch(r"([\w./]+):", code)
        if header is not None:
            block = header[1]
            continue
        binding = _BINDING.fullmatch(code)
        if binding is not None:
            name = f"{block}.{binding[2]}" if binding[1] and block else binding[2]
            place = files.place(path, number) if files is not None else Place(path, number)
            record.put(name.rsplit("/", 1)[-1], gin_value(binding[3], place))
    whole = merged(base, record)
    return _with_macros(whole)


def _joined(text: str) -> list[str]:
    """Join a gin file's lines that go on inside brackets, keeping their count."""
    lines: list[str] = []
    open_at: int | None = None
    for line in text.splitlines():
        if open_at is not None:
            lines[open_at] += " " + line.strip()
            lines.append("")
        else:
            lines.append(line)
        at = open_at if open_at is not None else len(lines) - 1
        balance = sum(lines[at].count(c) for c in "([{") - sum(lines[at].count(c) for c in ")]}")
        open_at = at if balance > 0 else None
    return lines


def gin_value(text: str, place: Place | None) -> V:
    """Return a gin value: a literal, else its text."""
    try:
        data = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return V(text.strip().strip("\"'"), place)
    return V(
        list(map(V, data)) if isinstance(data, (list, tuple)) else data if not isinstance(data, dict) else UNKNOWN,
        place,
    )


def _with_macros(record: Record) -> Record:
    def resolved(value: V, depth: int) -> V:
        if isinstance(value.data, Record):
            return V(Record({k: resolved(v, depth + 1) for k, v in value.data.entries.items()}, True), value.place)
        if isinstance(value.data, str) and value.data.startswith("%") and depth < NESTING_MAX:
            macro = record.entries.get(value.data[1:])
            return V(value.data, value.place) if macro is None else macro
        return value

    return Record({k: resolved(v, 0) for k, v in record.entries.items()}, attributes=True)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:120]
