"""Recognises how a job is launched: python, torchrun, accelerate, deepspeed and wrappers around them; and with which arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from schedmate.services.code_analyzer.shell import UNKNOWN

_PYTHON: Final = re.compile(r"python(?:\d(?:\.\d{1,2})?)?$")
_ENV: Final = re.compile(r"[A-Za-z_]\w{0,100}=")
_WRAPPERS: Final = frozenset(
    {
        "exec",
        "nohup",
        "time",
        "env",
        "nice",
        "numactl",
        "stdbuf",
        "ionice",
        "catchsegv",
        "ddtrace-run",
        "uv",
        "poetry",
        "pipenv",
        "pdm",
        "rye",
    }
)
_WRAPPED_VERB: Final = frozenset({"run"})
_MODULE_LAUNCHERS: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "paddle.distributed.launch": "paddle.distributed.launch",
}


@dataclass(frozen=True, slots=True)
class _Launcher:
    """A launcher's own options: which take a value, which give the processes of a node or of the job, which the nodes."""

    values: frozenset[str]
    per_node: frozenset[str] = frozenset()
    processes: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


_TORCHRUN: Final = _Launcher(
    values=frozenset(["nproc_per_node", "nnodes", "node_rank", "rdzv_id", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "master_addr", "master_port", "max_restarts", "monitor_interval", "start_method", "role", "log_dir", "redirects", "tee", "local_addr", "local_ranks_filter"]),
    per_node=frozenset({"nproc_per_node"}),
    nodes=frozenset({"nnodes"}),
)  # fmt: skip
_LAUNCHERS: Final = {
    "torchrun": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _Launcher(
        values=frozenset(["num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "mixed_precision", "config_file", "dynamo_backend", "num_cpu_threads_per_process", "gpu_ids", "deepspeed_config_file", "zero_stage", "rdzv_backend", "same_network", "fsdp_sharding_strategy", "deepspeed_hostfile", "deepspeed_multinode_launcher"]),
        processes=frozenset({"num_processes"}),
        nodes=frozenset({"num_machines"}),
    ),
    "deepspeed": _Launcher(
        values=frozenset(["num_gpus", "num_nodes", "hostfile", "include", "exclude", "master_port", "master_addr", "launcher", "launcher_args", "min_elastic_nodes", "max_elastic_nodes", "bind_core_list"]),
        per_node=frozenset({"num_gpus"}),
        nodes=frozenset({"num_nodes"}),
    ),
    "paddle.distributed.launch": _Launcher(
        values=frozenset(["gpus", "devices", "nnodes", "nproc_per_node", "master", "log_dir", "rank"]),
        per_node=frozenset({"nproc_per_node"}),
        nodes=frozenset({"nnodes"}),
    ),
}  # fmt: skip


@dataclass(slots=True)
class Launch:
    """How a program is started. Counts are None where the command does not say."""

    launcher: str
    program: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    processes_per_node: int | None = None
    processes: int | None = None
    nodes: int | None = None
    options: dict[str, str] = field(default_factory=dict)


def recognise(words: Sequence[str]) -> Launch | None:
    """Return how these words launch a program, or None when they launch none that we know."""
    rest = _strip_wrappers(list(words))
    if not rest:
        return None
    name = PurePosixPath(rest[0]).name
    if _PYTHON.match(name):
        return _python(rest[1:])
    if name in {"torchrun", "deepspeed"}:
        return _launched(name, rest[1:])
    if name == "accelerate" and rest[1:2] == ["launch"]:
        return _launched("accelerate", rest[2:])
    if name.endswith(".py"):
        return Launch("python", program=rest[0], arguments=tuple(rest[1:]))
    return None


def shell_file(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the script that `bash FILE …`, `./FILE.sh …` or `sbatch FILE` runs, with its arguments."""
    rest = _strip_wrappers(list(words))
    if not rest:
        return None
    name = PurePosixPath(rest[0]).name
    if name in {"bash", "sh", "zsh", "sbatch", "source"}:
        operands = [w for w in rest[1:] if not w.startswith("-")]
        return (operands[0], tuple(operands[1:])) if operands and "-c" not in rest else None
    if name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        return rest[0], tuple(rest[1:])
    return None


def inline_script(words: Sequence[str]) -> str | None:
    """Return what `bash -c '…'` runs."""
    rest = _strip_wrappers(list(words))
    if rest and PurePosixPath(rest[0]).name in {"bash", "sh", "zsh"}:
        for position, word in enumerate(rest[1:-1], start=1):
            if re.fullmatch(r"-\w{0,3}c", word):
                return rest[position + 1]
    return None


def _strip_wrappers(words: list[str]) -> list[str]:
    while words:
        name = PurePosixPath(words[0]).name
        if _ENV.match(words[0]):
            words = words[1:]
        elif name in _WRAPPERS:
            words = words[1:]
            while words and (words[0].startswith("-") or words[0] in _WRAPPED_VERB):
                words = words[1:]
        elif name in {"timeout", "srun", "mpirun", "mpiexec", "horovodrun"}:
            words = _after_options(words[1:])
        else:
            return words
    return words


def _after_options(words: list[str]) -> list[str]:
    """Skip a wrapper's options, whose number of values we do not know, to the first word that can be a program."""
    for position, word in enumerate(words):
        name = PurePosixPath(word).name
        if (
            _PYTHON.match(name)
            or name in {"torchrun", "deepspeed", "accelerate", "bash", "sh"}
            or name.endswith((".py", ".sh"))
        ):
            return words[position:]
    return []


def _python(words: list[str]) -> Launch | None:
    position = 0
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        if word == "-m" and position + 1 < len(words):
            return _module(words[position + 1], words[position + 2 :])
        if word == "-c":
            return None
        position += 2 if word in {"-W", "-X"} else 1
    if position >= len(words):
        return None
    return Launch("python", program=words[position], arguments=tuple(words[position + 1 :]))


def _module(name: str, words: list[str]) -> Launch | None:
    launcher = _MODULE_LAUNCHERS.get(name)
    if launcher is not None:
        return _launched(launcher, words)
    return Launch("python", module=name, arguments=tuple(words))


def _launched(name: str, words: list[str]) -> Launch | None:
    launcher = _LAUNCHERS[name]
    launch = Launch(name)
    is_module = False
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-"):
            if is_module:
                launch.module = word
            else:
                launch.program = word
            launch.arguments = tuple(words[position + 1 :])
            break
        option, equals, value = word.lstrip("-").replace("-", "_").partition("=")
        if word in {"-m", "--module"}:
            is_module = True
        elif not equals and option in launcher.values and position + 1 < len(words):
            position += 1
            value = words[position]
        launch.options[option] = value
        position += 1
    _count_processes(launch, launcher)
    return launch


def _count_processes(launch: Launch, launcher: _Launcher) -> None:
    for option, value in launch.options.items():
        count = _number(value)
        if count is None:
            continue
        if option in launcher.per_node:
            launch.processes_per_node = count
        elif option in launcher.processes:
            launch.processes = count
        elif option in launcher.nodes:
            launch.nodes = count


def _number(text: str) -> int | None:
    """Return a count; of `MIN:MAX` the least, which is what it may start with."""
    if UNKNOWN in text:
        return None
    first = text.partition(":")[0]
    return int(first) if first.isdigit() and 0 < int(first) < 1_000_000 else None  # noqa: PLR2004 - no count of processes
