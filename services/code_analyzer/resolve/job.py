"""The whole of a static resolution: from how a job is started and its files to its fields. Pure; never raises for bad input."""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import basename, dirname
from typing import Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve import frameworks, resources
from schedmate.services.code_analyzer.resolve.answering import answers_of
from schedmate.services.code_analyzer.resolve.composition import Composer, chooses, interpolated, override
from schedmate.services.code_analyzer.resolve.configs import gin_value, is_config, load
from schedmate.services.code_analyzer.resolve.facts import (
    ASSIGNED,
    BOUND,
    CALLED,
    CONFIGURED,
    DECLARED,
    ENVIRONMENT,
    GIVEN,
    Facts,
    Found,
)
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.launch import Launch, slurm_environment
from schedmate.services.code_analyzer.resolve.library_files import composed, python_config
from schedmate.services.code_analyzer.resolve.machine import Parser
from schedmate.services.code_analyzer.resolve.parsers import parse
from schedmate.services.code_analyzer.resolve.program import Program
from schedmate.services.code_analyzer.resolve.ran import Arg
from schedmate.services.code_analyzer.resolve.starting import Start, launch_of, program_file
from schedmate.services.code_analyzer.resolve.units import Units
from schedmate.services.code_analyzer.resolve.values import WORLD, Place, Record, V, leaves, merged
from schedmate.services.code_analyzer.source import Tree

_OVERRIDE: Final = re.compile(r"(?:\+\+|\+|~)?([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_UPPER: Final = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)+")
_MENTION: Final = re.compile(r"[A-Za-z][\w.]*(?:[-_][\w.]+)*[-_]\d+(?:\.\d+)?[bBmM]\b")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was resolved: fields with what they rest on, the files that were read or looked for, and why not more."""

    fields: dict[str, Found]
    read: frozenset[str]
    missed: frozenset[str]
    partial: tuple[str, ...]
    launch_read: frozenset[str] = frozenset()
    """Those that were read to find the program: every field rests on them."""
    parsed: frozenset[str] = frozenset()
    reused: frozenset[str] = frozenset()


def resolve(start: Start, tree: Tree, units: Units | None = None) -> Resolved:
    """Return what a job's start and source tell about it. Of files that `units` knows the parsed form is used again."""
    files = Files(tree, units=units if units is not None else Units())
    for why in tree.left_out:
        files.missing(why)
    launch = launch_of(start, files)
    launch_read = frozenset(files.read)
    fields: dict[str, Found] = {}
    if launch is None:
        files.missing("no command that starts a program we know was found")
    else:
        facts = _facts(launch, files, start)
        fields = answers_of(facts)
    return Resolved(
        fields, frozenset(files.read), frozenset(files.missed), tuple(files.partial), launch_read,
        frozenset(files.parsed), frozenset(files.reused),
    )  # fmt: skip


# --- facts -----------------------------------------------------------------------------------------------------------


def _facts(launch: Launch, files: Files, start: Start) -> Facts:
    facts = Facts(launch, files)
    for name, value in launch.options.items():
        facts.add(name, value, GIVEN)
    for word in launch.configs:
        record = load(word.text, files, launch.folder, dirname(launch.place.file))
        if record is not None:
            _from_launcher_config(facts, record)
    path = program_file(launch, files)
    facts.code = path is not None and path.endswith((".py", ".ipynb"))
    if path is None and (launch.program or launch.module):
        known_module = launch.module is not None and any(
            launch.module.startswith(m) for t in knowledge("frameworks")["framework"] for m in t.get("modules", ())
        )
        if not known_module:
            files.missing(
                f"{launch.program or launch.module} is not among the source"
                if files.tree.files
                else "there is no source to read"
            )
    _from_words(facts, path)
    for name, arg in launch.environment.items():
        facts.add(name, V(arg.text, arg.place), ENVIRONMENT)
    nproc = launch.environment.get("NPROC_PER_NODE")
    if nproc is not None and launch.command is not None:
        launch.say("processes_per_node", V(nproc.text, nproc.place))
    _request(facts, start, early=True)
    resources.conclude(facts)
    _request(facts, start, early=False)
    if path is not None and facts.code:
        _follow(facts, path)
    _mentions(facts, path)
    facts.framework = frameworks.detect(facts)
    _short_flags(facts)
    resources.conclude(facts)
    _request(facts, start, early=False)
    resources.alone(facts)
    return facts


def _from_launcher_config(facts: Facts, record: Record) -> None:
    facts.configs.append(record)
    for key, meaning in (("num_machines", "nodes"), ("num_processes", "processes"), ("gpu_ids", "visible")):
        value = record.entries.get(key)
        if value is not None and value.data not in (None, "all") and key not in facts.launch.facts:
            known = facts.launch.facts.setdefault(meaning, [])
            known.insert(0, V(str(value.data), value.place))
    for name, value in leaves(record):
        facts.add(str(name), value, CONFIGURED)


def _request(facts: Facts, start: Start, *, early: bool) -> None:
    """Take what the job asks for where nothing else tells: it is how much it gets."""
    if early:
        return
    if facts.nodes is None and start.nodes is not None:
        facts.nodes = Found(start.nodes, Place("job"), Basis.INFERRED, 0.7)
    if facts.gpus is None and start.gpus is not None and start.gpus > 0 and not facts.launch.facts.get("hostfile"):
        facts.gpus = Found(start.gpus, Place("job"), Basis.INFERRED, 0.7)
    if facts.nodes is not None and facts.gpus is not None:
        facts.world = facts.nodes.value * facts.gpus.value


def _from_words(facts: Facts, path: str | None) -> None:
    """Take flags, configuration files and overrides from the program's words, as most programs read them."""
    launch, files = facts.launch, facts.files
    record = Record(attributes=True)
    words = list(launch.words)
    machine = Program(files, words, path or launch.program or "command", launch.folder, launch.environment)
    flags = parse(machine, Parser(), words)
    whole = _configurations(facts, words, machine)
    overrides = _overrides(words)
    several = any(w.text in ("-m", "--multirun") for w in words)
    for key, arg in overrides:
        override(whole, key, arg, several=several)
        if key and not (several and chooses(arg.text)):
            facts.add(key, V(whole.get(key).data if whole.get(key) is not None else arg.text, arg.place), GIVEN)  # type: ignore[union-attr]
    for name, value in flags.entries.items():
        key = str(name)
        if isinstance(value.data, Record):
            for inner, leaf in leaves(value.data):
                whole.put(
                    f"{key}.{inner}",
                    V(gin_value(str(leaf.data), leaf.place).data if key == "gin" else leaf.data, leaf.place),
                )
                facts.add(f"{key}.{inner}", leaf, GIVEN)
                if key == "gin":
                    whole.put(str(inner), gin_value(str(leaf.data), leaf.place))
        elif key != "__extra__":
            facts.add(key, value, GIVEN)
    for n, word in enumerate(words[:-1]):
        if _UPPER.fullmatch(word.text) and not words[n + 1].text.startswith("-"):
            override(whole, word.text, words[n + 1])
    whole = interpolated(merged(record, whole), launch.environment)
    facts.configs.insert(0, whole)
    facts.add_record(whole, CONFIGURED)
    _positional(facts, flags)


def _positional(facts: Facts, flags: Record) -> None:
    """A bare word of an opaque program may be its data: `train.py /imagenet`."""
    extra = flags.entries.get("__extra__")
    for word in extra.data if extra is not None and isinstance(extra.data, list) else []:
        text = str(word.data)
        if (
            ("/" in text or facts.launch.command is not None)
            and not is_config(text)
            and "=" not in text
            and not text.endswith((".py", ".pt", ".pth", ".ckpt"))
        ):
            if facts.launch.command in ("vllm", "sglang") and text not in ("serve", "bench"):
                facts.add("model_name_or_path", word, GIVEN)
            elif "/" in text:
                facts.add("data", word, CONFIGURED)


def _overrides(words: list[Arg]) -> list[tuple[str, Arg]]:
    """Return `key=value` words, those behind flags such as `--cfg-options` and `-o` included."""
    found: list[tuple[str, Arg]] = []
    for word in words:
        match = _OVERRIDE.fullmatch(word.text)
        if match is not None and "://" not in match[1]:
            found.append((match[1].lstrip("+~"), Arg(match[2], word.place)))
    return found


def _configurations(facts: Facts, words: list[Arg], machine: Program) -> Record:
    """Return the configuration files that the words name, in order, the later over the earlier."""
    files, launch = facts.files, facts.launch
    whole = Record(attributes=True)
    seen: set[str] = set()
    here = (launch.folder, dirname(launch.program or ""), dirname(launch.place.file))
    for word in words:
        if word.text.startswith("-") and "=" not in word.text:
            continue
        key, _, text = word.text.rpartition("=") if re.match(r"-{0,2}[\w.-]+=", word.text) else ("", "", word.text)
        text = text.strip("\"'")
        wanted = text if is_config(text) or text.endswith(".py") else ""
        found = files.find(wanted, *here) if wanted else None
        if found is None or found in seen or found == launch.program:
            continue
        if found.endswith(".py"):
            if "config" not in found and "cfg" not in found and "config" not in key:
                continue
            record: Record | None = python_config(machine, found)
        else:
            record = load(found, files)
        seen.add(found)
        if record is not None:
            facts.configs.append(record)
            whole = merged(whole, record)
    hydra = _hydra(facts, words, machine) if not seen else None
    return hydra if hydra is not None else _environment_section(whole, words)


def _environment_section(whole: Record, words: list[Arg]) -> Record:
    """A file whose sections are named by a word of the command (`ppo.yml` with one section an environment): that section."""
    texts = {w.text for w in words}
    for key, value in list(whole.entries.items()):
        if str(key) in texts and isinstance(value.data, Record):
            return merged(whole, value.data)
    return whole


def _hydra(facts: Facts, words: list[Arg], machine: Program) -> Record | None:
    """Return the composed configuration of a program that is composed by Hydra and whose own code may not be there."""
    files = facts.files
    folder, name = "", ""
    for n, word in enumerate(words):
        flag, joined, value = word.text.partition("=")
        if flag in ("--config-dir", "--config-path", "-cd", "-cp", "--config-name", "-cn"):
            value = value if joined else words[n + 1].text if n + 1 < len(words) else ""
            folder, name = (folder, value) if flag in ("--config-name", "-cn") else (value, name)
    if name:
        base = dirname(facts.launch.program or "")
        for where in (folder, f"{base}/{folder}", "conf", "configs", "config", f"{base}/conf"):
            record = composed(machine, re.sub(r"^(\.\./)+", "", where), name) if _has(files, where, name) else None
            if record is not None:
                return record
    if not any(_OVERRIDE.fullmatch(w.text) for w in words) and facts.launch.words:
        return None
    return _by_defaults(facts, words)


def _has(files: Files, folder: str, name: str) -> bool:
    stem = re.sub(r"^(\.\./|\./)+", "", f"{folder}/{name}").removesuffix(".yaml").lstrip("/")
    return f"{stem}.yaml" in files.tree.files


def _by_defaults(facts: Facts, words: list[Arg]) -> Record | None:
    stem = basename(facts.launch.program or facts.launch.module or "").removesuffix(".py")
    roots = [
        p
        for p in facts.files.tree.files
        if p.endswith((".yaml", ".yml")) and re.search(r"(^|/)(conf|config|configs|cfg|cfgs)/[^/]+$", p)
    ]
    listing = [p for p in roots if re.search(r"^defaults:", facts.files.text(p) or "", re.MULTILINE)]
    order = sorted(listing, key=lambda p: (basename(p).rsplit(".", 1)[0] not in (stem, "config", "main", "default"), p))
    if not order:
        return None
    several = any(w.text in ("-m", "--multirun") for w in words)
    record = Composer(facts.files, dirname(order[0])).compose(basename(order[0]), words, several=several)
    return interpolated(record, facts.launch.environment) if record is not None else None


def _follow(facts: Facts, path: str) -> None:
    """Follow the program itself."""
    launch = facts.launch
    environment = dict(launch.environment)
    world = facts.world
    spawned = any(
        n
        in (
            "torchrun",
            "torch.distributed.launch",
            "accelerate",
            "deepspeed",
            "composer",
            "srun",
            "mpirun",
            "horovodrun",
        )
        for n, _ in launch.launchers
    )
    if spawned:
        environment.setdefault("RANK", Arg("0", launch.place))
        environment.setdefault("LOCAL_RANK", Arg("0", launch.place))
        for name in ("SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
            environment.setdefault(name, Arg("0", launch.place))
        if world is not None:
            for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
                environment[name] = Arg(str(world), launch.place)
            environment.setdefault(
                "LOCAL_WORLD_SIZE", Arg(str(facts.gpus.value if facts.gpus is not None else world), launch.place)
            )
    for name, variable in slurm_environment(launch.facts).items():
        if isinstance(variable.value, str):
            environment.setdefault(name, Arg(variable.value, variable.place or launch.place))
    machine = Program(facts.files, list(launch.words), path, launch.folder, environment)
    gpus = facts.gpus.value if facts.gpus is not None else None
    machine.gpus = V(gpus, facts.gpus.place if facts.gpus else None, role=WORLD) if gpus is not None else machine.gpus
    machine.world = V(world, launch.place, role=WORLD) if world is not None else machine.world
    machine.start = launch.place
    for name, arg in launch.parameters.items():
        machine.presets[name] = gin_value(arg.text, arg.place)
    _run(facts, machine, path)


def _run(facts: Facts, machine: Program, path: str) -> None:  # noqa: C901, PLR0912 - one kind of fact after another
    from schedmate.services.code_analyzer.resolve.machine import StopError  # noqa: PLC0415 - only here

    scope = None
    try:
        scope = machine.run(path)
    except StopError:
        facts.files.missing("the program is longer than what is followed of it")
    except RecursionError:
        facts.files.missing("the program is nested too deeply")
    except Exception as error:  # noqa: BLE001 - a program that we follow wrongly costs its later values, never the analysis
        facts.files.missing(f"the program could not be followed to its end ({type(error).__name__})")
    scope = scope or machine.modules.get(path)
    for parser in machine.parsers:
        if parser.options and not parser.parsed:
            parse(machine, parser)  # its arguments count, even where we do not see it parse them
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        facts.launch.environment.setdefault("CUDA_VISIBLE_DEVICES", visible)
    facts.events, facts.loops, facts.created = machine.events, machine.loops, machine.created
    facts.imports, facts.models = machine.imports, machine.model_calls
    given = {w.place for w in facts.launch.words}
    for record in reversed(machine.arguments):
        for name, value in record.entries.items():
            rank = GIVEN if value.place in given else DECLARED
            if isinstance(value.data, Record):
                facts.add_record(value.data, rank)
            elif name != "__extra__":
                facts.add(str(name), value, rank)
    for record in reversed(machine.configs):
        facts.configs.append(record)
        facts.add_record(record, CONFIGURED)
    for named in machine.named:
        called = bool(named.inside) and named.inside != "attribute"
        facts.add(
            named.name,
            named.value,
            CALLED if called else ASSIGNED if named.inside else BOUND,
            certain=named.certain,
            inside=named.inside,
        )
    if scope is not None:
        for name, value in scope.names.items():
            facts.add(name, value, BOUND)


def _mentions(facts: Facts, path: str | None) -> None:
    """Keep the names that the launch mentions (comments, output paths, run names), and the program's comments."""
    files = facts.files
    for word in facts.launch.words:
        facts.mentions += [(m[0], word.place) for m in _MENTION.finditer(word.text)]
    text = files.text(facts.launch.place.file) if facts.launch.place.file in files.tree.files else None
    for number, line in enumerate((text or "").splitlines()[:400], start=1):
        if line.lstrip().startswith("#") and not line.startswith("#!"):
            facts.mentions += [(m[0], Place(facts.launch.place.file, number)) for m in _MENTION.finditer(line)]
    program = files.text(path) if path is not None and path.endswith(".py") else None
    for number, line in enumerate((program or "").splitlines()[:3000], start=1):
        comment = re.search(r"(?:^|\s)(#\s.*)$", line)
        if comment is not None:
            facts.mentions.append((comment[1], files.place(path or "", number)))


def _short_flags(facts: Facts) -> None:
    """Name a framework's short flags: timm's `-b` is its batch size."""
    table = facts.framework.table.get("short", {}) if facts.framework is not None else {}
    for setting in list(facts.settings):
        if setting.rank == GIVEN and setting.path in table:
            facts.add(table[setting.path], setting.value, GIVEN)
