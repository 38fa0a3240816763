"""Plots: what they are drawn of, that they are drawn, and what is said where they cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.curves import BINS, curves_of
from schedmate.simulator.plots import NAMES, PlotError, check_plots
from schedmate.simulator.runs import Setting, outcome_of, run_one
from schedmate.simulator.trace import Trace, TraceJob


def trace_of(*jobs: tuple[str, float, int, float]) -> Trace:
    return Trace("t", "csv", tuple(TraceJob(*job) for job in jobs))


def curves(trace: Trace, cluster: Cluster, policy: str = "fifo") -> dict:
    return run_one(trace, cluster, Setting(policy, "none", curves=True))["curves"]


def test_allocation_and_fragmentation_over_time_are_means_of_each_bin():
    got = curves(trace_of(("a", 0, 2, 600), ("b", 0, 4, 300)), uniform(2, 4))
    assert len(got["times_s"]) == BINS
    half = BINS // 2
    assert got["allocated"][:half] == pytest.approx([6 / 8] * half)
    assert got["allocated"][half:] == pytest.approx([2 / 8] * half)
    assert got["fragmented"] == pytest.approx([1 / 2] * BINS)


def test_the_bins_hold_all_the_gpu_time_of_preempted_runs_too():
    trace = trace_of(*((f"j{n}", 7.0 * n, 1 + n % 4, 100.0 + 13 * n * (n % 3)) for n in range(40)))
    outcome, _ = outcome_of(trace, uniform(2, 4), Setting("srtf", "oracle", curves=True))
    assert outcome.preemptions
    got = curves_of(trace.jobs, uniform(2, 4), outcome)
    width = got["times_s"][1]
    ran = sum(job.duration_s * job.gpus for job in trace.jobs) + outcome.lost_gpu_s
    assert sum(got["allocated"]) * width * 8 == pytest.approx(ran)


def test_the_gantt_names_the_gpus_of_each_pool():
    jobs = (TraceJob("a", 5, 1, 10, pool="x"), TraceJob("b", 6, 1, 10, pool="y"))
    cluster = Cluster({"x": (NodeSpec("n0", 1),), "y": (NodeSpec("n0", 1),)}, one_pool=False)
    assert curves(Trace("t", "csv", jobs), cluster)["gantt"] == {"x n0:0": [[0, 10, 1]], "y n0:0": [[1, 10, 1]]}


def test_curves_of_nothing_that_took_time_are_empty():
    got = curves(trace_of(("a", 3, 1, 0)), uniform(1, 1))
    assert (got["times_s"], got["jct_s"][0]) == ([], 0)


def test_parts_of_a_gpu_count_as_parts_and_jobs_that_stay_are_drawn():
    jobs = (TraceJob("a", 0, 1, 10, gpu_milli=250), TraceJob("b", 0, 1, 10, gpu_milli=250), TraceJob("c", 10, 1, 10))
    trace = Trace("t", "csv", jobs).staying()
    got = curves(trace, uniform(1, 2))
    assert got["allocated"] == pytest.approx([0.25] * BINS)
    assert [len(bars) for bars in got["gantt"].values()] == [2, 1]
    assert got["jct_s"] == []


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(CliRunner().invoke(app, ["traces", "generate", "--jobs", "60", "--seed", "3"]).stdout)
    return path


def test_several_runs_are_drawn_into_one_picture_of_each_kind(generated: Path, tmp_path: Path):
    given = ["simulate", str(generated), "--nodes", "2", "--policy", "fifo,sjf", "--advice", "none,oracle", "--processes", "1",
             "--plot", str(tmp_path / "new" / "plots"), "--json"]  # fmt: skip
    first, second = CliRunner().invoke(app, given), None
    told = json.loads(first.stdout)
    assert "curves" not in told["results"][0]
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "new" / "plots").iterdir()}
    assert set(drawn) == {f"{name}.png" for name in NAMES}
    assert all(content.startswith(b"\x89PNG") and len(content) > 5000 for content in drawn.values())
    second = CliRunner().invoke(app, [*given[:-3], "--plot", str(tmp_path / "again")])
    assert "again" in second.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == drawn


def test_without_matplotlib_it_says_what_to_install_before_anything_runs(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["simulate", str(generated), "--nodes", "2", "--plot", str(tmp_path / "plots")])
    assert isinstance(done.exception, PlotError)
    assert "pip install 'schedmate[sim]'" in str(done.exception)
    assert not (tmp_path / "plots").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlotError, match="cannot be made"):
        check_plots(tmp_path / "file")
