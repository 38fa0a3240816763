"""History-estimator as a source of advice: the very estimator of the service, told of what happens in the simulation and nothing else.

What a live pool's estimator would know of a job beside its row comes from a side file (`simulator/workloads.py`); an analysis takes no time
here. Without the file a job has neither workload nor hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedmate.infra.embeddings.hashed import HashedEmbedder
from schedmate.infra.embeddings.nearest import ExactIndex
from schedmate.infra.embeddings.port import Vector
from schedmate.schemas.sharing import CLASS_NAMES
from schedmate.services.dispatcher.core.sharing import Profile, class_of
from schedmate.services.history_estimator.describing import described
from schedmate.services.history_estimator.estimate import Estimate, from_progress
from schedmate.services.history_estimator.estimator import Estimator, Rules
from schedmate.services.history_estimator.jobs import Ended, Job, Outcome
from schedmate.simulator.outcome import Traits
from schedmate.simulator.trace import TraceJob
from schedmate.simulator.workloads import Known

READ_FROM: Final = 0.02
"""So much of what its progress shows a run must have done before that is believed (`progress_fraction_min` of the service)."""
READ_AFTER_S: Final = 30.0
"""Nor is it before so many seconds: a run writes its first lines, and they travel."""
MIB: Final = 1 << 20


@dataclass(slots=True)
class _Live:
    job: Job
    said: Estimate
    seen: Profile | None = None


class Estimated:
    """Estimates of jobs of a trace, in the order in which they are simulated.

    Args:
        jobs: of the trace.
        known: what is known beside their rows, in the same order; empty: nothing.
        rules: of the estimator.
        recalls: whether it tells how the same job used its GPUs before.
        gpu_memory_mib: of a GPU, for the sharing class of what was seen.
    """

    basis = "history"

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        known: Sequence[Known] = (),
        rules: Rules | None = None,
        *,
        recalls: bool = True,
        gpu_memory_mib: int = 24_576,
    ) -> None:
        self._estimator = Estimator(rules, ExactIndex if known else None)
        self._jobs = jobs
        self._known = known
        self._recalls = recalls
        self._gpu_memory_mib = gpu_memory_mib
        self._embedder = HashedEmbedder()
        self._vectors: dict[str, Vector] = {}
        self._live: dict[int, _Live] = {}
        self._now = 0.0

    def estimate_s(self, number: int, pool: str) -> float | None:
        """Return the median of the estimate, None where nothing is known."""
        row = self._jobs[number]
        self._now = max(self._now, row.submit_s)
        job = self._job(number, pool)
        self._estimator.refit(self._now)
        self._estimator.submitted(job)
        said = self._estimator.estimate(job, self._now)
        self._live[number] = _Live(job, said)
        return said.p50_s

    def quantiles(self, number: int) -> tuple[float | None, float | None, str]:
        """Return the outer quantiles of the estimate, and what it rests on."""
        said = self._live[number].said
        return said.p10_s, said.p90_s, said.basis.value

    def traits(self, number: int) -> Traits:
        """Return how the same job, or one like it, used its GPUs before, as far as that is known."""
        said = self._live[number].said
        if not self._recalls or said.gpu_memory_bytes is None:
            return None, None, None
        return said.gpu_utilisation, -(-said.gpu_memory_bytes // MIB), said.sharing_class

    def reads_at_s(self, number: int) -> float | None:
        """Return after how much of its run the job's own progress is believed, None where it prints none."""
        shown_s = self._known[number].shown_s if self._known else None
        return None if shown_s is None else max(READ_FROM * shown_s, READ_AFTER_S)

    def read(self, number: int, run_s: float) -> tuple[float | None, float | None, float | None, str]:
        """Return the quantiles and the basis of the estimate from the job's progress, after so long a run; as the service makes it."""
        live, shown_s = self._live[number], self._known[number].shown_s
        assert shown_s is not None, "it is asked of jobs that show their progress"
        left_s = max(shown_s - run_s, 0.0)
        live.said = said = from_progress(live.said, elapsed_s=run_s, eta_s=left_s, fraction=min(run_s / shown_s, 1.0))
        return said.p10_s, said.p50_s, said.p90_s, said.basis.value

    def seen(self, number: int, profile: Profile) -> None:
        """A profiler has seen how the job uses its GPUs."""
        self._live[number].seen = profile

    def started(self, number: int, at: float) -> None:
        """The job runs: evidence that it takes so long at least."""
        self._now = max(self._now, at)
        self._estimator.started(self._jobs[number].id, at)

    def finished(self, number: int, pool: str, at: float) -> None:  # noqa: ARG002 - the protocol's signature
        """The job is history from now on."""
        self._now = max(self._now, at)
        live = self._live.pop(number, None)
        if live is None:
            return
        outcome: Outcome = self._known[number].outcome if self._known else "succeeded"
        seen = live.seen
        self._estimator.finished(
            Ended(
                live.job, self._jobs[number].duration_s, at, outcome,
                gpu_utilisation=seen.utilisation if seen is not None else None,
                gpu_memory_bytes=seen.memory_mib * MIB if seen is not None else None,
                sharing_class=CLASS_NAMES[class_of(seen, self._gpu_memory_mib)] if seen is not None else None,
            )
        )  # fmt: skip

    def _job(self, number: int, pool: str) -> Job:
        row = self._jobs[number]
        gpu_type = "|".join(row.gpu_types) or None
        if not self._known:
            return Job(row.id, row.submit_s, pool, row.tenant, row.gpus, row.user, row.name, gpu_type=gpu_type)
        known = self._known[number]
        return Job(
            row.id, row.submit_s, pool, row.tenant, row.gpus, row.user, row.name, gpu_type, known.command_hash,
            content_hash=known.content_hash, workload=known.workload, vector=self._vector(known),
        )  # fmt: skip

    def _vector(self, known: Known) -> Vector | None:
        text = described(known.workload)
        if not text:
            return None
        vector = self._vectors.get(text)
        if vector is None:
            vector = self._vectors[text] = self._embedder.vector(text)
        return vector
