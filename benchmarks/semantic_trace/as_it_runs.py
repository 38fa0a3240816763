"""History-estimator's own answers over the trace: told of submissions, starts and ends in the order of time, were nobody to wait."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from math import log, nan
from typing import Any

from benchmarks.semantic_trace.knowledge import Job as TraceJob
from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.services.history_estimator.describing import described
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.jobs import Ended, Job, Outcome

OUTCOMES: dict[str, Outcome] = {"completed": "succeeded", "cancelled": "cancelled", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said of a job at its submission; logarithms of seconds, NaN for nothing."""

    middle: float
    low: float
    high: float
    basis: str
    truth: float
    whole: bool


def answers(jobs: list[TraceJob], fields: dict[str, dict[str, Any]], source: dict[str, dict[str, Any]], left_out: str = "", *, learn: bool = True) -> list[Answer]:  # fmt: skip
    """Return the answer to each job, in their order. Nothing is told of the jobs of an application that is left out; they are asked about all the same."""
    embedder = HashedEmbedder()
    asked = [_job(job, fields[job.bundle], source[job.bundle], embedder) for job in jobs]
    estimator = Estimator(Rules(learn=learn), ExactIndex)
    told = [n for n, job in enumerate(jobs) if job.truth["application"] != left_out]
    ends = sorted((jobs[n].submit_s + jobs[n].duration_s, n) for n in told)
    out, at = [], 0
    for n, job in enumerate(jobs):
        while at < len(ends) and ends[at][0] <= job.submit_s:
            end_s, ended = ends[at]
            estimator.finished(Ended(asked[ended], jobs[ended].duration_s, end_s, OUTCOMES[jobs[ended].truth["state"]]))
            at += 1
        estimator.refit(job.submit_s)
        seen = job.truth["application"] != left_out
        if seen:
            estimator.submitted(asked[n])
        said = estimator.estimate(asked[n], job.submit_s)
        if seen:
            estimator.started(asked[n].id, job.submit_s)
        middle, low, high = (log(max(s, 1.0)) if s is not None else nan for s in (said.p50_s, said.p10_s, said.p90_s))
        out.append(Answer(middle, low, high, said.basis.value, log(max(job.duration_s, 1.0)), job.truth["state"] == "completed"))  # fmt: skip
    return out


def _job(job: TraceJob, fields: dict[str, Any], made: dict[str, Any], embedder: HashedEmbedder) -> Job:
    """Return a job as the service knows it once its source is analysed."""
    workload = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    command = sha256(json.dumps(made["command"]).encode()).hexdigest()
    return Job(
        job.job_id, job.submit_s, job.vc, gpus=job.gpus, user=job.user, name=job.name, command_hash=command, content_hash=job.bundle,
        workload=workload, vector=embedder.vector(described(workload)),
    )  # fmt: skip
