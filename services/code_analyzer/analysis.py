"""The whole of an analysis: from a job and its source to fields with the line that each rests on. Pure; never raises for bad input."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath
from typing import Any, Final

from schedmate.schemas.events import WORKLOAD_FIELDS, Basis, WorkloadField
from schedmate.schemas.job import JobSpec
from schedmate.services.code_analyzer import code, shell
from schedmate.services.code_analyzer.arguments import Argument, given
from schedmate.services.code_analyzer.flags import meaning_of, value_of
from schedmate.services.code_analyzer.found import Candidate, Findings, Origin, Place, as_field
from schedmate.services.code_analyzer.launch import Launch, inline_script, recognise, shell_file
from schedmate.services.code_analyzer.source import Tree

SCRIPTS_DEEP: Final = 3
MODULES_MAX: Final = 20
PARTIAL_MAX: Final = 500
ALGORITHM: Final = 1
"""Part of the content hash: a new way to read makes cached analyses void."""

_PARAMETERS: Final = re.compile(r"(?<![A-Za-z0-9.])(?P<n>\d{1,4}(?:\.\d{1,2})?)\s?(?P<unit>[bBmM])(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is analysed: how the job is started, on how much, and which file is named as its entry."""

    command: tuple[str, ...] | None = None
    script: str | None = None
    entry: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    nodes: int | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Subject:
        """Return the subject of a job."""
        return cls(spec.command, spec.script, spec.entry, dict(spec.env), spec.gpus, spec.nodes)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Fields that could be told, and why not more."""

    fields: dict[str, WorkloadField]
    partial_because: str | None


def content_hash(subject: Subject, source: str) -> str:
    """Return the hash of everything that an analysis depends on. `source` identifies the files (a bundle's hash, a tree's)."""
    told: dict[str, Any] = {
        "algorithm": ALGORITHM, "command": subject.command, "script": subject.script, "entry": subject.entry,
        "environment": dict(sorted(subject.environment.items())), "gpus": subject.gpus, "nodes": subject.nodes, "source": source,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(told, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def tree_hash(tree: Tree) -> str:
    """Return a hash of all files of a tree."""
    digest = hashlib.sha256()
    for path in sorted(tree.files):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(tree.files[path]).digest())
    return digest.hexdigest()


def analyze(subject: Subject, tree: Tree) -> Analysis:
    """Return what the launch command and the source say."""
    findings = Findings()
    for why in tree.left_out:
        findings.missing(why)
    launch, place = _find_launch(subject, tree, findings)
    if launch is not None:
        _from_launch(launch, place, subject, tree, findings)
    else:
        _from_entry_alone(subject, tree, findings)
    _from_request(subject, findings)
    return _conclude(findings, launch)


# --- the launch command ----------------------------------------------------------------------------------------------


def _find_launch(subject: Subject, tree: Tree, findings: Findings) -> tuple[Launch | None, Place]:
    if subject.command is not None:
        return _in_words(subject.command, Place("command"), dict(subject.environment), tree, findings, SCRIPTS_DEEP)
    if subject.script is not None:
        return _in_script(subject.script, "script", dict(subject.environment), tree, findings, SCRIPTS_DEEP)
    entry = tree.find(subject.entry) if subject.entry else None
    text = tree.text(entry) if entry is not None else None
    if entry is None or text is None:
        return None, Place("command")
    if entry.endswith(".py"):
        return Launch("python", program=entry), Place(entry, 1)
    return _in_script(text, entry, dict(subject.environment), tree, findings, SCRIPTS_DEEP)


def _in_words(
    words: tuple[str, ...], place: Place, environment: dict[str, str], tree: Tree, findings: Findings, depth: int
) -> tuple[Launch | None, Place]:
    launch = recognise(words)
    if launch is not None:
        return launch, place
    inline = inline_script(words)
    if inline is not None and depth > 0:
        found, inner = _in_script(inline, place.file, environment, tree, findings, depth - 1)
        return found, Place(place.file, place.line) if inner.line is not None else inner
    runs = shell_file(words)
    if runs is None or depth <= 0:
        return _unknown_program(words), place
    path = tree.find(runs[0])
    text = tree.text(path) if path is not None else None
    if path is None or text is None:
        findings.missing(f"{runs[0]} is not among the source")
        return None, place
    numbered = {str(n): value for n, value in enumerate(runs[1], start=1)}
    return _in_script(_with_operands(text, numbered), path, environment, tree, findings, depth - 1)


def _unknown_program(words: tuple[str, ...]) -> Launch | None:
    """Return words that start a program we do not know, when it takes flags whose names are well known."""
    arguments = tuple(words[1:])
    told = [g for g in given(arguments, ()) if (meaning := meaning_of(g.name)) is not None and not meaning.loose]
    return Launch("", arguments=arguments) if told else None


def _with_operands(text: str, operands: Mapping[str, str]) -> str:
    """Put a script's own arguments in for `$1` to `$9` and `$@`."""
    text = re.sub(r"\$\{?([1-9])(?::?-[^}]{0,200})?\}?", lambda m: operands.get(m[1], m[0]), text)
    return re.sub(r"\"?\$\{?@\}?(?::\d)?\"?", " ".join(operands.values()), text) if operands else text


def _in_script(
    text: str, name: str, environment: dict[str, str], tree: Tree, findings: Findings, depth: int
) -> tuple[Launch | None, Place]:
    """Return the last launch of a script: what comes before it is preparation."""
    read = shell.read_script(text, environment)
    if read.cut:
        findings.missing(f"{name} is longer than {shell.LINES_MAX} lines")
    _from_directives(read.directives, name, findings)
    for command in reversed(read.commands):
        launch, place = _in_words(command.words, Place(name, command.line), dict(read.variables), tree, findings, depth)
        if launch is not None:
            if command.open:
                findings.missing(f"{name}: line {command.line} holds what only running it could tell")
            return launch, place
    return None, Place(name)


def _from_directives(directives: Mapping[str, tuple[str, int]], name: str, findings: Findings) -> None:
    for option, field_name in (
        ("nodes", "nodes"),
        ("N", "nodes"),
        ("gpus-per-node", "gpus_per_node"),
        ("gres", "gpus_per_node"),
    ):
        if option in directives:
            value, line = directives[option]
            count = re.search(r"(\d{1,5})$", value)
            if count is not None and int(count[1]) > 0 and (option != "gres" or "gpu" in value):
                findings.add(field_name, int(count[1]), Origin.LAUNCHER, Place(name, line), 0.8)


def _from_launch(launch: Launch, place: Place, subject: Subject, tree: Tree, findings: Findings) -> None:
    findings.add("launcher", launch.launcher, Origin.LAUNCHER, place, 0.95)
    findings.add("nodes", launch.nodes, Origin.LAUNCHER, place, 0.95)
    findings.add("gpus_per_node", launch.processes_per_node, Origin.LAUNCHER, place, 0.95)
    if launch.processes is not None:
        nodes = launch.nodes or subject.nodes or 1
        if launch.processes % nodes == 0:
            findings.add("gpus_per_node", launch.processes // nodes, Origin.LAUNCHER, place, 0.9, basis=Basis.COMPUTED)
    for option, value in launch.options.items():
        _from_flag(option, value or True, Origin.LAUNCHER, place, findings, only={"precision"})
    modules = _modules(launch, subject, tree, findings)
    declared = tuple(a for m in modules for a in m.arguments)
    for argument in given(launch.arguments, declared):
        _from_flag(argument.name, argument.value, Origin.COMMAND, place, findings)
    for number, module in enumerate(modules):
        _from_defaults(module.arguments, module.path, findings)
        code.look(module, findings, entry=number == 0)


def _from_entry_alone(subject: Subject, tree: Tree, findings: Findings) -> None:
    """No launch is recognised: a Python file that is named as the entry still tells something."""
    entry = tree.find(subject.entry) if subject.entry else None
    if entry is None or not entry.endswith(".py"):
        findings.missing("no command that starts a program we know was found")
        return
    for number, module in enumerate(_reachable(entry, tree, findings)):
        _from_defaults(module.arguments, module.path, findings)
        code.look(module, findings, entry=number == 0)


def _from_flag(
    name: str, value: object, origin: Origin, place: Place, findings: Findings, *, only: set[str] | None = None
) -> None:
    meaning = meaning_of(name)
    if meaning is None or value is None or (only is not None and meaning.field not in only):
        return
    findings.add(meaning.field, value_of(name, meaning, value), origin, place, meaning.confidence)


def _from_defaults(arguments: tuple[Argument, ...], path: str, findings: Findings) -> None:
    for argument in arguments:
        meaning = meaning_of(argument.dest)
        if meaning is None:
            continue
        place = Place(path, argument.line)
        if meaning.kind == "presence" and meaning.field == "resume_supported":
            findings.add("resume_supported", value=True, origin=Origin.ARGUMENT_DEFAULT, place=place, confidence=0.85)
        elif argument.default is not None:
            _from_flag(argument.dest, argument.default, Origin.ARGUMENT_DEFAULT, place, findings)


# --- the files -------------------------------------------------------------------------------------------------------


def _modules(launch: Launch, subject: Subject, tree: Tree, findings: Findings) -> list[code.Module]:
    wanted = launch.program
    if launch.module is not None:
        wanted = launch.module.replace(".", "/") + ".py"
    path = tree.find(wanted) if wanted is not None else None
    if path is None and launch.module is not None:
        path = tree.find(launch.module.replace(".", "/") + "/__main__.py")
    if path is None and subject.entry is not None and subject.entry.endswith(".py"):
        path = tree.find(subject.entry)
    if path is None:
        if wanted is not None:
            findings.missing(f"{wanted} is not among the source" if tree.files else "there is no source to read")
        return []
    return _reachable(path, tree, findings)


def _reachable(entry: str, tree: Tree, findings: Findings) -> list[code.Module]:
    """Parse the entry and the files of the tree that it imports, nearest first, within a bound."""
    queue, seen = [entry], {entry}
    modules: list[code.Module] = []
    while queue:
        path = queue.pop(0)
        if len(modules) >= MODULES_MAX:
            findings.missing(f"more than {MODULES_MAX} files are imported")
            break
        text = tree.text(path)
        if text is None or not path.endswith(".py"):
            continue
        try:
            module = code.parse(path, text)
        except code.UnreadableSourceError as error:
            findings.missing(str(error))
            continue
        modules.append(module)
        for relative in code.local_imports(module):
            for base in (dirname(path), dirname(entry), ""):
                candidate = normpath(join(base, relative))
                if candidate in tree.files and candidate not in seen:
                    seen.add(candidate)
                    queue.append(candidate)
    return modules


# --- what follows from the rest --------------------------------------------------------------------------------------


def _from_request(subject: Subject, findings: Findings) -> None:
    place = Place("job")
    findings.add("gpus_per_node", subject.gpus, Origin.JOB, place, 0.6, basis=Basis.INFERRED)
    findings.add("nodes", subject.nodes, Origin.JOB, place, 0.6, basis=Basis.INFERRED)


def _conclude(findings: Findings, launch: Launch | None) -> Analysis:
    chosen = {name: best for name in WORKLOAD_FIELDS if (best := findings.best(name)) is not None}
    _merge_loggers(chosen, findings)
    _compute(chosen, launch)
    partial = "; ".join(findings.partial)[:PARTIAL_MAX] or None
    return Analysis({name: as_field(chosen[name]) for name in WORKLOAD_FIELDS if name in chosen}, partial)


def _merge_loggers(chosen: dict[str, Candidate], findings: Findings) -> None:
    best = chosen.get("logging")
    if best is None or best.origin < Origin.SIGN:
        return
    names = {n for c in findings.all_of("logging") if isinstance(c.value, tuple) for n in c.value}
    chosen["logging"] = Candidate("logging", tuple(sorted(names)), best.origin, best.basis, best.place, best.confidence)


def _compute(chosen: dict[str, Candidate], launch: Launch | None) -> None:
    """Derive what follows by arithmetic; each result rests on the weakest of its parts."""
    if "total_steps" not in chosen and "max_steps" in chosen:
        _derive(chosen, "total_steps", chosen["max_steps"].value, ["max_steps"])
    if "model_params" not in chosen and "model_name" in chosen:
        size = _PARAMETERS.search(str(chosen["model_name"].value))
        if size is not None:
            count = float(size["n"]) * (1e9 if size["unit"] in "bB" else 1e6)
            _derive(chosen, "model_params", count, ["model_name"], basis=Basis.INFERRED, factor=0.8)
    parts = ["batch_size_per_device", "gpus_per_node", "nodes"]
    if "global_batch_size" in chosen or launch is None or not all(p in chosen for p in parts):
        return
    if (
        launch.launcher == "python"
        and chosen["gpus_per_node"].origin is Origin.JOB
        and chosen["gpus_per_node"].value != 1
    ):
        return  # plain python on several GPUs: nobody says that it uses them all
    product = 1
    for part in [*parts, *(["grad_accum"] if "grad_accum" in chosen else [])]:
        value = chosen[part].value
        if isinstance(value, bool) or not isinstance(value, int):
            return
        product *= value
    _derive(chosen, "global_batch_size", product, parts, factor=0.9)


def _derive(
    chosen: dict[str, Candidate],
    name: str,
    value: Any,
    parts: list[str],
    *,
    basis: Basis = Basis.COMPUTED,
    factor: float = 1.0,
) -> None:
    weakest = min((chosen[p] for p in parts), key=lambda c: c.confidence)
    first = chosen[parts[0]]
    chosen[name] = Candidate(name, value, first.origin, basis, first.place, round(weakest.confidence * factor, 3))
