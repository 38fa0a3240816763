"""A failed run as files in a folder: job.json, *.log. What `schedmate diagnose` and the evaluation read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schedmate.services.log_monitor.failures.digest import Digest
from schedmate.services.log_monitor.failures.judge import Facts, Source
from schedmate.services.log_monitor.failures.rules import LOG, Rules
from schedmate.services.log_monitor.lines import Feed, clean, flush, push

FILES_MAX: Final = 1000
READ_BYTES: Final = 1024 * 1024
JOB_BYTES_MAX: Final = 1024 * 1024
LINES_BYTES_MAX: Final = 8 * 1024 * 1024


class CaseError(Exception):
    """The folder holds no failed run that can be read."""


@dataclass(frozen=True, slots=True)
class Case:
    """The sources and facts of a failed run."""

    sources: tuple[Source, ...]
    facts: Facts


def read_case(folder: Path, rules: Rules) -> Case:
    """Read a folder's files. Raises CaseError."""
    if not folder.is_dir():
        raise CaseError(
            f"{folder} is no folder; give one that holds the run's logs (stdout.log, kernel_NODE.log, ...) and job.json"
        )
    job = _job(folder / "job.json")
    nodes = (
        tuple(str(n) for n in job.get("nodes", ()) if isinstance(n, str)) if isinstance(job.get("nodes"), list) else ()
    )
    logs = sorted(p for p in folder.iterdir() if p.suffix == ".log" and p.is_file())[:FILES_MAX]
    if not logs:
        raise CaseError(f"{folder} holds no *.log; give a folder with the run's output")
    outputs = sum(kind_of(p.name)[0] == LOG for p in logs)
    sources: list[Source] = []
    for path in logs:
        kind, node = kind_of(path.name)
        single = nodes[0] if len(nodes) == 1 else None
        member = len([s for s in sources if s.kind == LOG]) if kind == LOG and outputs > 1 else 0
        sources.append(Source(path.name, kind, _digest(path, kind, rules), _the_node(node, nodes) or single, member))
    return Case(tuple(sources), _facts(job, nodes))


def lines_of(path: Path) -> list[str]:
    """Return a log's lines, terminal codes gone, as far as LINES_BYTES_MAX."""
    with path.open("rb") as file:
        content = file.read(LINES_BYTES_MAX)
    return [clean(line.rpartition(b"\r")[2] or line) for line in content.split(b"\n")]


def kind_of(name: str) -> tuple[str, str | None]:
    """Return which kind of source a file is by its name, and the node in the name."""
    stem = name.removesuffix(".log")
    for prefix, kind in (("kernel_", "kernel"), ("dmesg_", "kernel"), ("node_", "node")):
        if stem.startswith(prefix):
            return kind, stem.removeprefix(prefix)
    if stem.startswith("scheduler"):
        return "scheduler", None
    if stem.startswith(("k8s_events", "events")):
        return "events", None
    return LOG, None


def _the_node(name: str | None, nodes: tuple[str, ...]) -> str | None:
    if name is None:
        return None
    return next(
        (n for n in nodes if n == name or n.split(".")[0] == name), name if len(nodes) > 1 and name in nodes else None
    )


def _digest(path: Path, kind: str, rules: Rules) -> Digest:
    digest, feed, offset = Digest(), Feed(), 0
    with path.open("rb") as file:
        while content := file.read(READ_BYTES):
            for line in push(feed, offset, offset + len(content), content, gap=False):
                digest.take(line.text, line.number, rules, kind)
            offset += len(content)
    for line in flush(feed):
        digest.take(line.text, line.number, rules, kind)
    return digest


def _job(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            job = json.loads(file.read(JOB_BYTES_MAX))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CaseError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(job, dict):
        raise CaseError(f"{path} is no JSON object")
    return job


def _facts(job: Mapping[str, Any], nodes: tuple[str, ...]) -> Facts:
    directory = job.get("checkpoint_dir")
    return Facts(
        nodes=nodes,
        attempt=int(_number(job, "attempt") or 1),
        exit_code=int(code) if (code := _number(job, "exit_code")) is not None else None,
        elapsed_s=_number(job, "elapsed_s"),
        time_limit_s=_number(job, "time_limit_s"),
        checkpoint_dir=directory if isinstance(directory, str) else None,
    )


def _number(job: Mapping[str, Any], key: str) -> float | None:
    value = job.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
