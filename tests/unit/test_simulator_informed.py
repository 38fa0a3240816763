"""A source of advice that knows jobs from their past and from their own output: the side file, and what the pool is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedmate.services.dispatcher.core.inputs import EstimateArrived
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step
from schedmate.simulator.cluster import uniform
from schedmate.simulator.estimated import Estimated
from schedmate.simulator.informed import Informed
from schedmate.simulator.readers import read_trace
from schedmate.simulator.residents import TABLE, Residents
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import Trace, TraceError, TraceJob
from schedmate.simulator.workloads import Known, known_of

TINY = TABLE["recommendation"][0]


def jobs_of(*rows: tuple[float, int, float], name: str = "sweep") -> tuple[TraceJob, ...]:
    return tuple(
        TraceJob(f"j{n}", submit, gpus, run, user="ann", name=f"{name}-{n}")
        for n, (submit, gpus, run) in enumerate(rows)
    )


def same(jobs: int, **known) -> list[Known]:
    return [Known(command_hash="c", content_hash="c", **known) for _ in range(jobs)]


class Told:
    """What the pools were told of their jobs, as they heard it."""

    def __init__(self) -> None:
        self.estimates: list[tuple[float, EstimateArrived]] = []

    def __call__(self, state: PoolState, done: Step) -> None:
        self.estimates += [(state.at, value) for value in done.inputs if isinstance(value, EstimateArrived)]


def simulated(jobs: tuple[TraceJob, ...], known: list[Known], policy: str = "fifo", nodes: int = 1, **settings) -> Told:
    told = Told()
    Informed(jobs, uniform(nodes, 1), policy, Estimated(jobs, known), recorder=told, **settings).run()
    return told


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_a_side_file_says_what_is_known_of_the_jobs_that_it_names(tmp_path: Path):
    file = written(
        tmp_path / "w.jsonl",
        {"job_id": "j1", "workload": {"framework": "pytorch", "logging": ["print"]}, "outcome": "failed", "kind": "recommendation"},
        {"job_id": "other"},
    )  # fmt: skip
    first, second = known_of(file, jobs_of((0, 1, 5), (0, 1, 5)))
    assert (first, first.profile) == (Known(), None)
    assert second.workload == {"framework": "pytorch", "logging": ("print",)}
    assert (second.outcome, second.profile) == ("failed", TINY)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1"),
        ([1], "no object with a job_id"),
        ({"job_id": "j0", "duration_s": 5}, "nothing is called 'duration_s'"),
        ({"job_id": "j0", "workload": {"hours": 5}}, "does not tell: hours"),
        ({"job_id": "j0", "workload": [1]}, "no object"),
        ({"job_id": "j0", "outcome": "lost"}, "the outcome is one of"),
        ({"job_id": "j0", "shown_s": 0}, "shown_s"),
        ({"job_id": "j0", "shown_s": "long"}, "shown_s"),
        ({"job_id": "j0", "kind": "abacus"}, "no kind is called 'abacus'"),
        ({"job_id": "j0", "content_hash": 5}, "content_hash is no text"),
        ({"job_id": "elsewhere"}, "nothing of any job"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(tmp_path: Path, line: object, why: str):
    with pytest.raises(TraceError, match=why):
        known_of(written(tmp_path / "w.jsonl", line), jobs_of((0, 1, 5)))


def test_a_job_that_stands_twice_and_a_file_that_is_not_there_are_refused(tmp_path: Path):
    with pytest.raises(TraceError, match="line 2: job j0 stands twice"):
        known_of(written(tmp_path / "w.jsonl", {"job_id": "j0"}, {"job_id": "j0"}), jobs_of((0, 1, 5)))
    with pytest.raises(TraceError, match="there is no file"):
        known_of(tmp_path / "none.jsonl", jobs_of((0, 1, 5)))


def test_user_and_name_are_read_from_the_documented_columns(tmp_path: Path):
    file = written(
        tmp_path / "t.csv", "job_id,submit_s,num_gpus,duration_s,user,name", "a,0,1,5,ann,bert-1", "b,0,1,5,,"
    )
    first, second = read_trace(file).jobs
    assert (first.user, first.name, second.user, second.name) == ("ann", "bert-1", None, None)


def test_a_job_that_ran_before_is_known_by_its_exact_past_and_one_that_failed_teaches_no_run_time():
    jobs = jobs_of((0, 1, 600), (1000, 1, 60), (2000, 1, 600))
    known = same(3)
    known[1] = Known(command_hash="c", content_hash="c", outcome="failed")
    told = simulated(jobs, known).estimates
    assert [(value.basis, value.p50_s) for _, value in told] == [("exact_prior", 600.0)] * 2


def test_a_running_job_is_read_once_it_has_done_enough_and_says_what_its_progress_shows():
    told = simulated(jobs_of((0, 1, 5000)), same(1, shown_s=8000.0)).estimates
    assert [(at, value.revision, value.basis, value.p50_s) for at, value in told] == [(160.0, 2, "progress", 8000.0)]


@pytest.mark.parametrize(("run_s", "shown_s"), [(29.0, 40.0), (100.0, None)])
def test_a_job_that_ends_before_or_shows_nothing_is_never_read(run_s: float, shown_s: float | None):
    assert simulated(jobs_of((0, 1, run_s)), same(1, shown_s=shown_s)).estimates == []


def test_a_job_that_is_stopped_is_read_when_its_runs_together_have_done_enough():
    """Least attained service first: one that comes at 19,000 takes the GPU until 19,100, a restart costs 40 s, and a fiftieth is 20,000."""
    jobs = jobs_of((0, 1, 40_000), (19_000, 1, 100))
    outcome = Informed(
        jobs, uniform(1, 1), "srtf", Estimated(jobs, [Known(shown_s=1_000_000.0), Known()]), recorder=(told := Told())
    ).run()
    assert (outcome.preemptions, outcome.end_s[1]) == (1, 19_100.0)
    assert [(at, value.job, value.revision) for at, value in told.estimates] == [(19_100.0 + 40.0 + 1000.0, "j0", 2)]


def profiled(known: list[Known], *, recalls: bool = True) -> dict[str, float]:
    jobs = jobs_of(*((n * 2000.0, 1, 600) for n in range(len(known))))
    residents = Residents([k.profile or TINY for k in known])
    Informed(jobs, uniform(2, 1), "lucid", Estimated(jobs, known, recalls=recalls), residents=residents).run()
    return residents.figures()["profiling"]


def test_a_job_whose_past_tells_how_it_uses_its_gpus_skips_the_profiler():
    known = same(3, kind="recommendation")
    assert profiled(known)["jobs"] == 1
    assert profiled(known) | {"avg_wait_s": 0} == {
        "jobs": 1, "ended_there": 0, "gpu_h": 80 / 3600, "job_s": 80.0, "recalled": 2, "recalled_wrong": 0, "avg_wait_s": 0,
    }  # fmt: skip
    again = profiled(known, recalls=False)
    assert (again["jobs"], again["recalled"]) == (3, 0)


def test_a_past_that_tells_another_class_than_the_job_is_of_is_counted():
    known = same(2, kind="recommendation")
    known[1] = Known(command_hash="c", content_hash="c", kind="large-language")
    assert (profiled(known)["recalled"], profiled(known)["recalled_wrong"]) == (1, 1)


def test_a_run_takes_the_side_file_and_its_kinds(tmp_path: Path):
    jobs = jobs_of(*((n * 2000.0, 1, 600) for n in range(3)))
    lines = [{"job_id": job.id, "command_hash": "c", "content_hash": "c", "kind": "recommendation"} for job in jobs]
    file = written(tmp_path / "w.jsonl", *lines)
    trace, cluster = Trace("t", "csv", jobs), uniform(2, 1)
    without = run_one(trace, cluster, Setting("lucid", "history", workloads=file, recalls=False))
    told = run_one(trace, cluster, Setting("lucid", "history", workloads=file))
    assert (without["profiling"]["jobs"], told["profiling"]["jobs"]) == (3, 1)
    assert told["avg_jct_s"] < without["avg_jct_s"]
    assert run_one(trace, cluster, Setting("lucid", "oracle", workloads=file))["profiling"]["jobs"] == 3
