"""Which of two estimates a job is ordered by: what one source says displaces what another said only where that is right.

A job keeps what was said last on two bases. It is ordered by the one whose source is believed (core/trust.py); where both are, or neither is,
by the newer one. So a better informed source that nobody believes yet (the job's own progress, in a young pool) does not cost a job the
advice that it had, and takes over when it has earned its trust. A further word on the same basis replaces the one before. A pool whose
`advice` is "raw" believes no source more than another: there the newer word always counts, and an operator's order is no word of a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedmate.services.dispatcher.core.job import Job, Said
    from schedmate.services.dispatcher.core.state import PoolState


def hear(state: PoolState, job: Job, words: Said) -> None:
    """A source speaks of a job. The job carries its words until `settle` has seen which of the two count; so they can be judged."""
    before: Said = (job.p10_s, job.p50_s, job.p90_s, job.basis)
    if state.config.advice == "raw":
        job.spare = None
    elif job.basis is not None and job.basis != words[3]:
        job.spare = (*before, False)
    elif job.spare is not None:
        job.spare = (*job.spare[:4], False)
    job.p10_s, job.p50_s, job.p90_s, job.basis = words


def settle(state: PoolState, job: Job) -> bool:
    """See which of the job's two estimates counts now; tell whether it is the other one than before."""
    if job.spare is None or job.advised is not None:
        return False
    p10_s, p50_s, p90_s, basis, newer = job.spare
    acts = job.p50_s is not None and state.trust_in(job.basis) > 0.0
    other = p50_s is not None and state.trust_in(basis) > 0.0
    if (acts and not (other and newer)) or (not other and not newer) or (acts == other and not newer):
        return False
    job.spare = (job.p10_s, job.p50_s, job.p90_s, job.basis, not newer)
    job.p10_s, job.p50_s, job.p90_s, job.basis = p10_s, p50_s, p90_s, basis
    return True
