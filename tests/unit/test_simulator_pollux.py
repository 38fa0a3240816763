"""Pollux's profiles on hand-made figures: steps, batches, step times by placement, and what that does to a run."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.simulator.advice import Told
from schedmate.simulator.cluster import uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.pollux import PolluxPace, Profile, consolidated, profile_of
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import TraceError

EPOCHS = 2  # bert's


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A made application: no gradient variance at first (a larger batch gains nothing), only variance then."""
    folder = tmp_path / "profiles" / "bert"
    folder.mkdir(parents=True)
    for batch in (12, 24):
        rows = ["progress,iteration,metric,grad_sqr,grad_var", "100,1,0.5,1.0,0.0", f"{300 + batch},2,0.6,0.0,1.0"]
        (folder / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")
    shapes = {"1": 1.0, "2": 1.2, "11": 2.0, "4": 1.5, "13": 3.0}
    lines = [f"{s},{local},{t * local / 6},{0.5 * local / 6}" for s, t in shapes.items() for local in (6, 12)]
    (folder / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n" + "\n".join(lines) + "\n")
    far = [f"{n},{r},{local},{10 * n + r},1" for n, r in ((6, 6), (6, 12), (8, 8), (8, 12)) for local in (6, 12)]
    (folder / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n" + "\n".join(far) + "\n")  # fmt: skip
    return folder


def test_the_fewest_nodes_of_four() -> None:
    assert [consolidated(n) for n in (1, 4, 6, 8)] == [(1,), (4,), (4, 2), (4, 4)]


def test_a_step_gains_by_the_gradient_s_noise(folder: Path) -> None:
    profile = Profile(folder)
    first, second = 100.0, 312.0 - 100.0  # the least progress of all batch sizes
    assert profile.steps(12) == pytest.approx(first + second)
    assert profile.steps(24) == pytest.approx(
        first + second / 2
    )  # twice the batch halves what is all variance, and no more
    assert profile.steps(18) == pytest.approx(first + second / 1.5)


@pytest.mark.parametrize(
    ("replicas", "batch", "expected"),
    [
        (1, 12, (12, 0)),
        (2, 24, (12, 0)),
        (4, 24, (6, 0)),
        (1, 24, (12, 1)),  # above the largest local batch: in two passes
        (5, 24, (4, 0)),  # rounded up, then down to what was validated
    ],
)
def test_a_replica_s_batch_and_passes(folder: Path, replicas: int, batch: int, expected: tuple[int, int]) -> None:
    assert Profile(folder).local_batch(replicas, batch) == expected


def test_step_times_are_measured_or_between_what_was_measured(folder: Path) -> None:
    profile = Profile(folder)
    assert profile.times((1,), 6) == (1.0, 0.5)
    assert profile.times((1,), 9) == (1.5, 0.75)
    assert profile.times((3, 1), 6) == profile.times((1, 3), 6) == (3.0, 0.5)  # a ring
    assert profile.times((1,), 100) == profile.times((1,), 12)
    six_nodes = profile.times((2, 2, 2, 1, 1, 1), 6)
    assert six_nodes == (60 + 9, 1.0)  # 9 replicas, between 6 and 12
    assert profile.times((2, 2, 2, 2, 2, 1, 1), 6) == (pytest.approx((72 + 92) / 2), 1.0)  # 7 nodes, between 6 and 8


def test_a_run_takes_its_steps_at_the_placement_s_time(folder: Path) -> None:
    pace = PolluxPace(folder, 2, 12)
    steps = profile_of(folder).steps(12)
    assert pace.run_s((2,)) == pytest.approx(steps * 1.2)
    assert pace.slowdown((1, 1)) == pytest.approx(2.0 / 1.2)
    alone = PolluxPace(folder, 1, 24)
    assert alone.run_s((1,)) == pytest.approx(profile_of(folder).steps(24) * (2.0 + 1 * (2.0 - 1.0)))
    assert pickle.loads(pickle.dumps(pace)) == pace


def workload(folder: Path, *rows: str) -> Path:
    path = folder.parent.parent / "workload.csv"
    path.write_text("name,time,application,num_replicas,batch_size\n" + "\n".join(rows) + "\n")
    return path


def test_a_job_is_slower_where_it_is_torn_and_every_start_costs(folder: Path) -> None:
    trace = read_trace(workload(folder, "a,0,bert,3,12", "b,0,bert,3,12", "c,5,bert,2,12"))
    assert trace.settings == {"level_gpu_s": 57_600.0, "placer": "freest"}
    result = run_one(trace, uniform(2, 4), Setting("fifo", "none"))
    assert result["finished"] == 3
    outcome = Simulation(trace.jobs, uniform(2, 4), "fifo", config=None, keep_seats=True).run()
    assert [len(s) for s in outcome.seats or []] == [1, 1, 1]  # best fit waits for a node
    run_s = PolluxPace(folder, 2, 12).run_s
    torn = Simulation(trace.jobs[2:], uniform(2, 1), "fifo", keep_seats=True).run()
    assert torn.end_s == [pytest.approx(5 + 30 + run_s((1, 1)))]
    whole = Simulation(trace.jobs[2:], uniform(1, 4), "fifo").run()
    assert whole.end_s == [pytest.approx(5 + 30 + run_s((2,)))]


def test_a_stopped_job_keeps_its_progress_and_pays_a_start(folder: Path) -> None:
    trace = read_trace(workload(folder, "long,0,bert,2,24", "short,100,bert,2,12"))
    long, short = trace.jobs
    assert short.duration_s < long.duration_s
    outcome = Simulation(
        trace.jobs,
        uniform(1, 2),
        "srtf",
        Told("oracle", [job.duration_s for job in trace.jobs]),
        config=PoolConfig(advice="raw"),
    ).run()
    assert outcome.preemptions == 1
    ends = [e for e in outcome.end_s if e is not None]
    assert ends[1] == pytest.approx(100 + 30 + short.duration_s)
    assert ends[0] == pytest.approx(ends[1] + 30 + long.duration_s - (100 - 30))
    assert outcome.lost_gpu_s == pytest.approx(60)


def test_a_workload_without_its_profiles_or_of_an_unknown_application_is_refused(folder: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone" / "w.csv"
    lone.parent.mkdir()
    lone.write_text("name,time,application,num_replicas,batch_size\na,0,bert,1,12\n")
    with pytest.raises(TraceError, match="folder of measured profiles"):
        read_trace(lone)
    with pytest.raises(TraceError, match="there are profiles of bert"):
        read_trace(workload(folder, "a,0,gpt,1,12"))
    with pytest.raises(TraceError, match="no validation-BATCH"):
        profile_of(tmp_path / "nothing")


def test_what_is_set_goes_before_what_comes_with_the_workload(folder: Path) -> None:
    trace = read_trace(workload(folder, "a,0,bert,1,12", "b,0,bert,2,12"))
    freest = run_one(trace, uniform(2, 2), Setting("fifo", "none"))
    best_fit = run_one(trace, uniform(2, 2), Setting("fifo", "none", config=PoolConfig(placer="best-fit")))
    assert (freest["jtted"], best_fit["jtted"]) == (1.0, 1.0)
    torn = read_trace(workload(folder, "a,0,bert,1,12", "b,0,bert,1,12", "c,1,bert,2,12"))
    assert (
        run_one(torn, uniform(2, 2), Setting("fifo", "none"))["avg_wait_s"] == 0
    )  # it takes what is left on both nodes
    assert run_one(torn, uniform(2, 2), Setting("fifo", "none", config=PoolConfig(placer="best-fit")))["jtted"] == 1.0
    with pytest.raises(TypeError, match="no placer is called"):
        PoolConfig.from_json(PoolConfig().to_json() | {"placer": "nowhere"})
