"""One run or many: policies and sources of advice over a trace, in processes side by side, and what they write."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any, TextIO

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.shares import WHOLE_MILLI
from schedmate.services.dispatcher.core.sharing import Profile
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step
from schedmate.simulator.advice import advisor, is_raw
from schedmate.simulator.cluster import Cluster
from schedmate.simulator.curves import curves_of
from schedmate.simulator.engine import Simulation
from schedmate.simulator.faults import Faults
from schedmate.simulator.informed import Informed
from schedmate.simulator.maintenance import Reservations
from schedmate.simulator.measures import measured
from schedmate.simulator.outcome import Costs, Informant, Outcome
from schedmate.simulator.recorded import LogLine, line_of
from schedmate.simulator.residents import Residents, drawn
from schedmate.simulator.trace import Trace, TraceError
from schedmate.simulator.workloads import Known, known_of

TOLD_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """What one run takes beside the trace and the cluster."""

    policy: str
    advice: str
    seed: int = 0
    costs: Costs = field(default_factory=Costs)
    config: PoolConfig = field(default_factory=PoolConfig)
    jobs_out: Path | None = None
    log: Path | None = None
    faults: Faults = field(default_factory=Faults)
    reservations: Reservations = field(default_factory=dict)
    min_run_s: float = 0.0  # so long runs whoever may be stopped for another job (that is not a matter of quota)
    weighed: bool = False  # a raw source is clamped and weighed by trust as any other
    workloads: Path | None = None  # what is known of the jobs beside their rows (simulator/workloads.py)
    recalls: bool = True  # history tells how the same job used its GPUs before
    curves: bool = False  # what plots are drawn of, under the key `curves`


def usable(trace: Trace, cluster: Cluster) -> Trace:
    """Leave out the jobs of pools that the cluster does not have; where its nodes name no GPU type, any will do for every job."""
    if not cluster.one_pool:
        trace = trace.keep(lambda job: job.pool in cluster.pools)
    if not trace.jobs:
        raise TraceError(f"no job of {trace.name} belongs to a pool of the cluster")
    if not cluster.typed and any(job.gpu_types for job in trace.jobs):
        return replace(trace, jobs=tuple(replace(job, gpu_types=()) for job in trace.jobs))
    return trace


def run_one(
    trace: Trace, cluster: Cluster, setting: Setting, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Run one policy with one source of advice; return its figures."""
    outcome, took = outcome_of(trace, cluster, setting, progress)
    if setting.jobs_out is not None:
        _write_jobs(setting.jobs_out, trace, outcome)
    head = {"policy": setting.policy, "advice": setting.advice, "seed": setting.seed}
    if setting.weighed:
        head["weighed"] = True
    told = head | measured(trace.jobs, cluster, outcome) | {"cpu_s": round(took, 3)}
    return told | {"curves": curves_of(trace.jobs, cluster, outcome)} if setting.curves else told


def outcome_of(
    trace: Trace, cluster: Cluster, setting: Setting, progress: Callable[[int], None] | None = None
) -> tuple[Outcome, float]:
    """Run one policy with one source of advice; return what became of the jobs, and the CPU seconds that it took."""
    known = known_of(setting.workloads, trace.jobs) if setting.workloads is not None else ()
    source = advisor(
        setting.advice, trace, setting.seed, one_pool=cluster.one_pool, known=known, recalls=setting.recalls
    )
    raw = is_raw(setting.advice) and not setting.weighed
    given = setting.config.to_json() | {"advice": "raw" if raw else "weighed"}
    plain = PoolConfig().to_json()
    given |= {name: value for name, value in trace.settings.items() if given[name] == plain[name]}  # unless it was said
    log = setting.log.open("w", encoding="utf-8") if setting.log is not None else None
    try:
        began = process_time()
        packs = policy_named(setting.policy).packs
        residents = Residents(_profiles(trace, known, setting.seed), setting.seed) if packs else None
        arguments: dict[str, Any] = {
            "config": PoolConfig.from_json(given), "costs": setting.costs, "recorder": _recorder(log) if log is not None else None,
            "keep_seats": setting.jobs_out is not None, "keep_runs": setting.curves, "faults": setting.faults, "min_run_s": setting.min_run_s,
            "reservations": setting.reservations, "residents": residents,
        }  # fmt: skip
        simulation = (
            Informed(trace.jobs, cluster, setting.policy, source, **arguments)
            if known and isinstance(source, Informant)
            else Simulation(trace.jobs, cluster, setting.policy, source, **arguments)
        )
        outcome = simulation.run(progress)
        return outcome, process_time() - began
    finally:
        if log is not None:
            log.close()


def _profiles(trace: Trace, known: Sequence[Known], seed: int) -> list[Profile]:
    """Return how each job uses its GPUs: as its workload's kind does, else as drawn."""
    profiles = drawn(len(trace.jobs), seed)
    return [k.profile or p for k, p in zip(known, profiles, strict=True)] if known else profiles


def run_all(
    trace: Trace,
    cluster: Cluster,
    settings: list[Setting],
    processes: int,
    progress: Callable[[int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the figures of every setting, in their order; several run in processes side by side."""
    if len(settings) == 1 or processes <= 1:
        for setting in settings:
            yield run_one(trace, cluster, setting, progress)
        return
    ended: Any = get_context().Value("q", 0)
    with ProcessPoolExecutor(
        min(processes, len(settings)), initializer=_take, initargs=(trace, cluster, ended)
    ) as pool:
        results = [pool.submit(_run_taken, setting) for setting in settings]
        told = 0
        for result in results:
            while progress is not None and not wait((result,), TOLD_EVERY_S).done:
                now = ended.value
                progress(now - told)
                told = now
            yield result.result()
        if progress is not None:
            progress(sum(result.result()["jobs"] for result in results) - told)


_taken: list[tuple[Trace, Cluster, Any]] = []  # what a process of `run_all` works on, sent to it once


def _take(trace: Trace, cluster: Cluster, ended: Any) -> None:
    _taken[:] = [(trace, cluster, ended)]


def _run_taken(setting: Setting) -> dict[str, Any]:
    trace, cluster, ended = _taken[0]

    def progress(jobs: int) -> None:
        with ended.get_lock():
            ended.value += jobs

    return run_one(trace, cluster, setting, progress)


def _recorder(log: TextIO) -> Callable[[PoolState, Step], None]:
    """Return what writes every step as one line: the entry of a pool's log, as plain values."""

    def record(state: PoolState, done: Step) -> None:
        entry = LogLine(
            state.pool, state.seq, state.at, done.inputs, done.refused.keys(), done.decisions, trust=done.trust
        )
        log.write(line_of(entry, state.config if state.seq == 0 else None))

    return record


def _write_jobs(path: Path, trace: Trace, outcome: Outcome) -> None:
    """Write the jobs file: `nodes` counts them, `seats` names them with the GPUs taken on each (the last ones of a stopped job; a part of
    one GPU as a fraction), `gpu_indices` their GPUs.
    """
    seats_of = outcome.seats or []
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            (
                "job_id",
                "submit_s",
                "start_s",
                "end_s",
                "wait_s",
                "num_gpus",
                "nodes",
                "pool",
                "seats",
                "gpu_milli",
                "gpu_indices",
            )
        )
        for n, job in enumerate(trace.jobs):
            start, end = outcome.start_s[n], outcome.end_s[n]
            milli = job.share_milli
            held = [
                (seat.node, len(seat.gpus) if milli == WHOLE_MILLI else milli / WHOLE_MILLI) for seat in seats_of[n]
            ]
            seats = "|".join(f"{node}:{gpus}" for node, gpus in held)
            indices = "|".join("+".join(map(str, seat.gpus)) for seat in seats_of[n])
            wait = outcome.wait_s[n] if start is not None else ""
            writer.writerow((job.id, job.submit_s, _blank(start), _blank(end), wait, job.gpus, outcome.nodes_used[n], job.pool, seats, milli, indices))  # fmt: skip


def _blank(value: float | None) -> float | str:
    return "" if value is None else value
