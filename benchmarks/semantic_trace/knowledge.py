"""What can be known of a job when it is submitted, step by step of the ladder, as numbers that a model takes.

Each function gives one row a job. What rests on the past uses only jobs that had ended before the submission, were nobody to wait.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded

GPUS_PER_NODE = 4
BUCKETS = 997
NUMBERS = (
    "epochs", "batch_size_per_device", "global_batch_size", "total_steps", "max_steps", "model_params", "gpus_per_node", "nodes",
    "grad_accum", "sequence_length",
)  # fmt: skip
WORDS = ("framework", "task", "model_family", "model_name", "dataset", "strategy", "precision", "launcher")


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the trace, with its truth."""

    job_id: str
    submit_s: float
    gpus: int
    duration_s: float
    user: str
    name: str
    vc: str
    bundle: str
    truth: dict[str, str]

    @property
    def tag(self) -> str:
        """The name without its run number."""
        return re.sub(r"[-_.]?\d+$", "", self.name)


def load(folder: Path) -> list[Job]:
    """Read a generated trace, in the order of submission."""
    with (folder / "jobs.csv").open(encoding="utf-8") as jobs, (folder / "truth.csv").open(encoding="utf-8") as truth:
        return [
            Job(r["job_id"], float(r["submit_s"]), int(r["num_gpus"]), float(r["duration_s"]), r["user"], r["name"], r["vc"], r["bundle"], t)
            for r, t in zip(csv.DictReader(jobs), csv.DictReader(truth), strict=True)
        ]  # fmt: skip


def bundles(folder: Path) -> dict[str, dict[str, Any]]:
    """Read every bundle by its hash."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((folder / "bundles").glob("*.json"))}


def number_of(text: object) -> float:
    """Return a word as a number that keeps no order."""
    return int(hashlib.sha256(str(text).encode()).hexdigest()[:8], 16) % BUCKETS


def metadata(jobs: list[Job]) -> np.ndarray:
    """Return who submits what by name, when, and how large."""
    return np.array(
        [[number_of(j.user), number_of(j.tag), number_of(f"{j.user}/{j.tag}"), number_of(j.vc), j.gpus, j.submit_s / 3600 % 24] for j in jobs]
    )  # fmt: skip


def raw_text(jobs: list[Job], source: dict[str, dict[str, Any]], parts: int = 48) -> np.ndarray:
    """Return TF-IDF of the raw source, reduced; the vocabulary is that of all bundles, which holds no run time."""
    names = sorted(source)
    texts = ["\n".join([*source[n]["files"].values(), " ".join(source[n]["command"])]) for n in names]
    table = TfidfVectorizer(token_pattern=r"[\w.]+", max_features=4000, sublinear_tf=True).fit_transform(texts)  # noqa: S106 - a pattern of words
    small = TruncatedSVD(parts, random_state=0).fit_transform(table)
    row = {name: small[n] for n, name in enumerate(names)}
    return np.array([np.concatenate([[j.gpus], row[j.bundle]]) for j in jobs])


def fields_of(source: dict[str, dict[str, Any]], gpus: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Return what code-analyzer says of each bundle, without a model."""
    out = {}
    for name, made in source.items():
        replicas = gpus[name]
        tree = bounded({path: text.encode() for path, text in made["files"].items()})
        subject = Subject(
            command=tuple(made["command"]), gpus=min(replicas, GPUS_PER_NODE), nodes=-(-replicas // GPUS_PER_NODE)
        )
        out[name] = {key: field.value for key, field in analyze(subject, tree).fields.items()}
    return out


def static(jobs: list[Job], fields: dict[str, dict[str, Any]]) -> np.ndarray:
    """Return the analysed fields: amounts as logarithms, words without an order; what is not known is missing."""
    rows = []
    for job in jobs:
        known = fields[job.bundle]
        amounts = [log(v) if isinstance(v := known.get(k), (int, float)) and v > 0 else np.nan for k in NUMBERS]
        words = [number_of(known[k]) if k in known else np.nan for k in WORDS]
        rows.append([job.gpus, *amounts, *words])
    return np.array(rows, dtype=float)


def history(jobs: list[Job], fields: dict[str, dict[str, Any]]) -> np.ndarray:
    """Return what like jobs took: of the same user and name, the same bundle, the same model and sizes; each last, median, count."""
    keys = (
        lambda j: ("tag", j.user, j.tag),
        lambda j: ("bundle", j.bundle, j.gpus),
        lambda j: ("work", fields[j.bundle].get("model_name"), fields[j.bundle].get("global_batch_size"), j.gpus),
        lambda j: ("user", j.user),
    )
    ended = sorted((j.submit_s + j.duration_s, n) for n, j in enumerate(jobs))
    past: dict[Any, list[float]] = {}
    at, rows = 0, []
    for job in jobs:
        while at < len(ended) and ended[at][0] <= job.submit_s:
            done = jobs[ended[at][1]]
            for key in keys:
                past.setdefault(key(done), []).append(log(max(done.duration_s, 1.0)))
            at += 1
        row: list[float] = []
        for key in keys:
            found = past.get(key(job), [])
            row += [found[-1], float(np.median(found[-20:])), len(found)] if found else [np.nan, np.nan, 0]
        rows.append(row)
    return np.array(rows)


def group_medians(jobs: list[Job]) -> np.ndarray:
    """Return the run time that the median of the user's jobs of this name had, else of the user's, else of all; log seconds."""
    ended = sorted((j.submit_s + j.duration_s, n) for n, j in enumerate(jobs))
    past: dict[Any, list[float]] = {}
    at, out = 0, []
    for job in jobs:
        while at < len(ended) and ended[at][0] <= job.submit_s:
            done = jobs[ended[at][1]]
            for key in ((done.user, done.tag), (done.user,), ()):
                past.setdefault(key, []).append(log(max(done.duration_s, 1.0)))
            at += 1
        known = next((past[k] for k in ((job.user, job.tag), (job.user,), ()) if k in past), None)
        out.append(float(np.median(known[-200:])) if known else np.nan)
    return np.array(out)


def workload(jobs: list[Job]) -> np.ndarray:
    """Return the truth of what is run, though not for how long it will."""
    rows = []
    for job in jobs:
        t = job.truth
        rows.append(
            [number_of(t["application"]), log(float(t["batch"])), job.gpus, log(float(t["epochs"])), float(t["fraction"]), float(t["target"] or "nan")]
        )  # fmt: skip
    return np.array(rows)


def position(jobs: list[Job], moments: list[float]) -> list[int]:
    """Return into which of the spans between the moments each job's submission falls."""
    return [bisect_right(moments, j.submit_s) for j in jobs]


# --- controls ----------------------------------------------------------------------------------------------------------


def stripped(made: dict[str, Any]) -> dict[str, Any]:
    """Return a bundle without comments and docstrings, its programs' own names replaced."""
    files = {}
    for path, text in made["files"].items():
        try:
            files[path] = _renamed(text) if path.endswith(".py") else re.sub(r"(?m)^\s*#(?!!).*\n", "", text)
        except SyntaxError:
            files[path] = text
    return made | {"files": files}


def _renamed(text: str) -> str:
    tree = ast.parse(text)
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    fields = {n.target.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    seen_outside = fields | {name for name in own if name.isupper()}  # a dataclass's fields, a module's constants
    names = {name: f"v{n}" for n, name in enumerate(sorted(own - seen_outside))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            first.value = ast.Constant(value="")
    return ast.unparse(tree) + "\n"


def moved(made: dict[str, Any], turn: int) -> dict[str, Any]:
    """Return a bundle whose entry file has a name that says nothing."""
    entry, name = made["entry"], f"f{turn}"
    if not entry.endswith(".py"):
        return made
    files = {(f"{name}.py" if path == entry else path): text.replace(entry, f"{name}.py") for path, text in made["files"].items()}  # fmt: skip
    return {"files": files, "command": [w.replace(entry, f"{name}.py") for w in made["command"]], "entry": f"{name}.py"}
