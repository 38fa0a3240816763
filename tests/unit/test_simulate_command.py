"""`schedmate simulate` and `schedmate traces`: JSON to the letter, files, and wrong use."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.simulator.trace import TraceError

KEYS = {
    "policy", "advice", "seed", "jobs", "finished", "avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_wait_s", "p999_wait_s", "makespan_s",
    "preemptions", "utilisation", "gar", "sor", "gfr", "cpu_s", "jwtd", "jtted", "ftf", "lost_gpu_h",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["traces", "generate", "--jobs", "200", "--seed", "3"])
    path = tmp_path / "trace.csv"
    path.write_text(done.stdout)
    return path


def test_it_prints_json_only_with_every_key_of_the_contract(trace: Path, tmp_path: Path):
    out = tmp_path / "jobs.csv"
    given = ["simulate", str(trace), "--nodes", "6", "--policy", "fifo,srtf", "--advice", "none,noisy:0.5,0.1", "--seed", "4",
             "--processes", "1", "--jobs-out", str(out), "--json"]  # fmt: skip
    told = json.loads(CliRunner().invoke(app, given).stdout)
    assert (told["trace"], told["nodes"], told["gpus"]) == ("trace.csv", 6, 48)
    assert [(r["policy"], r["advice"]) for r in told["results"]] == [
        ("fifo", "none"), ("fifo", "noisy:0.5,0.1"), ("srtf", "none"), ("srtf", "noisy:0.5,0.1"),
    ]  # fmt: skip
    for result in told["results"]:
        assert set(result) >= KEYS
        assert (result["jobs"], result["finished"], result["utilisation"], result["seed"]) == (200, 200, None, 4)
    written = list(csv.DictReader((tmp_path / "jobs.fifo.none.csv").read_text().splitlines()))
    assert list(written[0])[:7] == ["job_id", "submit_s", "start_s", "end_s", "wait_s", "num_gpus", "nodes"]
    assert len(written) == 200
    waits = [float(row["end_s"]) - float(row["submit_s"]) for row in written]
    assert sum(waits) / 200 == pytest.approx(told["results"][0]["avg_jct_s"])


def test_pools_take_a_table_and_a_window_takes_dates(trace: Path, tmp_path: Path):
    table = tmp_path / "vc.csv"
    table.write_text("vc,node num\nvc-a,4\nvc-b,4\n")
    given = [
        "simulate",
        str(trace),
        "--pools",
        str(table),
        "--node-factor",
        "0.5",
        "--from",
        "2026-01-05",
        "--to",
        "2026-01-06",
        "--json",
    ]
    told = json.loads(CliRunner().invoke(app, given).stdout)
    assert set(told["results"][0]["pools"]) == {"vc-a", "vc-b"}
    assert told["results"][0]["jobs"] < 200


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--policy", "nobody", "--nodes", "1"], "no policy is called 'nobody'"),
        (["--policy", "fifo,", "--nodes", "1"], "names separated by commas"),
        (["--advice", "nobody", "--nodes", "1"], "no advice is called 'nobody'"),
        ([], "one of them is needed"),
        (["--nodes", "1", "--pools", "x.csv"], "not --nodes and --pools together"),
        (["--pools", "none.csv"], "there is no file none.csv"),
    ],
)
def test_wrong_use_is_said_in_a_line(trace: Path, given: list[str], said: str):
    done = CliRunner().invoke(app, ["simulate", str(trace), *given], terminal_width=400)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_a_trace_that_cannot_be_read_is_an_error(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    done = CliRunner().invoke(app, ["simulate", str(path), "--nodes", "1"])
    assert isinstance(done.exception, TraceError)


def test_a_table_is_shown_and_a_trace_described(trace: Path):
    shown = CliRunner().invoke(app, ["simulate", str(trace), "--nodes", "6"])
    assert "fifo" in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["traces", "show", str(trace), "--json"]).stdout)
    assert (told["kind"], told["jobs"], told["pools"]) == ("csv", 200, 5)
    assert "gpu_hours" in CliRunner().invoke(app, ["traces", "show", str(trace)]).stdout
