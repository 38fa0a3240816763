"""Which program is the job: from a command, a script or an entry, of several the one that trains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import basename, dirname
from typing import Final

from schedmate.services.code_analyzer.resolve import manifests
from schedmate.services.code_analyzer.resolve.facts import (
    meanings_of,
)
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.launch import Launch, directives, launches, slurm_environment
from schedmate.services.code_analyzer.resolve.makefile import commands as make_commands
from schedmate.services.code_analyzer.resolve.ran import Arg, Ran
from schedmate.services.code_analyzer.resolve.shell import Shell
from schedmate.services.code_analyzer.resolve.shell_words import Variable
from schedmate.services.code_analyzer.resolve.values import Place

_PREPARES: Final = re.compile(
    r"eval|test|convert|preprocess|prepare|download|merge|export|tokenize|setup|install|build|infer|generate|plot|upload|sync|report|check|clean",
    re.IGNORECASE,
)
_TRAINS: Final = re.compile(r"train|finetune|fine_tune|pretrain|sft|dpo|main|run|fit", re.IGNORECASE)
_TOOLS: Final = frozenset({"conda", "mamba", "micromamba", "pip3", "uv", "poetry", "curl", "wget", "git", "aws", "gsutil", "rsync", "scp", "tar", "unzip", "sed", "awk", "find", "chmod", "apt", "apt-get", "nvcc", "huggingface-cli", "hf", "wandb", "ssh", "tmux", "docker", "kubectl", "python", "du", "df", "sort", "head", "tail", "touch", "uname", "env", "printenv", "nccl-tests", "ray", "gcloud", "make", "cmake", "tee", "top", "free", "lscpu", "dask", "cp", "test", "true", "ldconfig", "s5cmd", "azcopy", "squeue", "sacct", "scancel", "sbcast"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """How a job is started."""

    command: tuple[str, ...] | None = None
    script: str | None = None
    entry: str | None = None
    environment: Mapping[str, str] = ()  # type: ignore[assignment]
    gpus: int | None = None
    nodes: int | None = None


# --- the launch ------------------------------------------------------------------------------------------------------


def launch_of(start: Start, files: Files) -> Launch | None:
    """Return the launch of the program that is the job, None when there is none that we know."""
    environment = {k: Arg(v, Place("environment")) for k, v in dict(start.environment).items()}
    if start.command is not None:
        place = Place("command", 1)
        ran = Ran([Arg(w, place) for w in start.command], environment, place)
        chosen = _chosen(launches(ran, files, {}), files)
        if chosen is None or not _is_strange(chosen):
            return chosen
        entry = files.find(start.entry) if start.entry else None
        if entry is not None and entry.endswith(".py"):
            return Launch(place, environment, program=entry)
        return chosen if _has_known_flags(chosen) else None
    if start.script is not None:
        return _of_script(start.script, "script", environment, files)
    entry = files.find(start.entry) if start.entry else None
    text = files.text(entry) if entry is not None else None
    if entry is None or text is None:
        if start.entry:
            files.missing(f"{start.entry} is not among the source")
        return None
    return _of_entry(entry, text, environment, files)


def _is_strange(launch: Launch) -> bool:
    """Tell whether what is started is no program that we know how to read."""
    return launch.command is not None and launch.command not in frameworks_commands() and not launch.launchers


def _has_known_flags(launch: Launch) -> bool:
    names = [w.text.split("=", 1)[0].lstrip("-") for w in launch.words if w.text.startswith("--") or "=" in w.text]
    return any(meanings_of(name) for name in names)


def _of_entry(entry: str, text: str, environment: dict[str, Arg], files: Files) -> Launch | None:
    place = Place(entry, 1)
    if entry.endswith((".py", ".ipynb")) or text.startswith("#!") and "python" in text.split("\n", 1)[0]:  # noqa: RUF021 - read as a whole
        launch = Launch(place, environment)
        if entry.endswith(".ipynb"):
            launch.notebook = entry
        else:
            launch.program = entry
        return launch
    name = basename(entry)
    if name in ("Makefile", "makefile", "GNUmakefile") or entry.endswith(".mk"):
        found = [x for ran in make_commands(entry, [], files, environment) for x in launches(ran, files, {})]
        return _chosen(found, files)
    if entry.endswith((".yaml", ".yml", ".json")):
        manifest = manifests.read(entry, files)
        if manifest is None:
            return None
        return _chosen([x for ran in manifest.ran for x in launches(ran, files, manifest.facts)], files)
    return _of_script(text, entry, environment, files)


def _of_script(text: str, name: str, environment: dict[str, Arg], files: Files) -> Launch | None:
    facts = directives(text, name)
    variables = {k: Variable(v.text, v.place, exported=True) for k, v in environment.items()}
    shell = Shell(files, {**slurm_environment(facts), **variables})
    shell.run_text(text, name)
    found = [x for ran in shell.ran for x in launches(ran, files, facts)]
    return _chosen(found, files)


def _chosen(found: list[Launch], files: Files) -> Launch | None:
    """Return the launch that is the job: what trains, before what prepares or evaluates."""
    best: tuple[float, int] | None = None
    chosen: Launch | None = None
    for number, launch in enumerate(found):
        if launch.command in _TOOLS and not launch.launchers:
            continue
        score = _score(launch, files)
        key = (score, -number)
        if best is None or key > best:
            best, chosen = key, launch
    return chosen


def _score(launch: Launch, files: Files) -> float:
    name = basename(launch.name)
    score = 0.0
    known = frameworks_commands()
    if launch.program or launch.module or launch.notebook or launch.command in known:
        score += 2
    if launch.launchers:
        score += 2
    path = program_file(launch, files)
    score += 1 if path is not None else 0
    stem = f"{name} {launch.command if launch.command != name else ''} {' '.join(w.text for w in launch.words[:1] if launch.command)}"
    if _TRAINS.search(stem):
        score += 1.5
    if _PREPARES.search(stem):
        score -= 2.5
    return score - (0 if launch.certain else 1)


def frameworks_commands() -> frozenset[str]:
    """Return the console commands of the frameworks we know."""
    return frozenset(c for table in knowledge("frameworks")["framework"] for c in table.get("commands", ()))


def program_file(launch: Launch, files: Files) -> str | None:
    """Return the file of the program, of those that the job has."""
    if launch.program is not None:
        return files.find(launch.program, launch.folder, dirname(launch.place.file))
    if launch.notebook is not None:
        return files.find(launch.notebook, launch.folder)
    if launch.module is not None:
        stem = launch.module.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__main__.py", f"src/{stem}.py", f"src/{stem}/__main__.py"):
            found = files.find(path, launch.folder) if path in files.tree.files or launch.folder else None
            if found is not None:
                return found
    return None
