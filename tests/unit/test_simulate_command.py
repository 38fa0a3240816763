"""`schedmate simulate` and `schedmate traces`: JSON to the letter, files, and wrong use."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app, main
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


def test_what_is_known_of_the_jobs_saves_profiling_them_unless_they_are_profiled_again(tmp_path: Path):
    trace, known = tmp_path / "t.csv", tmp_path / "workloads.jsonl"
    rows = [f"j{n},{n * 2000},1,600,ann,bert-{n}" for n in range(3)]
    trace.write_text("\n".join(["job_id,submit_s,num_gpus,duration_s,user,name", *rows]) + "\n")
    line = {"command_hash": "c", "content_hash": "c", "kind": "recommendation"}
    known.write_text("".join(json.dumps(line | {"job_id": f"j{n}"}) + "\n" for n in range(3)))
    given = ["simulate", str(trace), "--nodes", "3", "--policy", "lucid", "--advice", "history", "--json"]
    given += ["--workloads", str(known), "--processes", "1"]
    for option, jobs in (([], 1), (["--profile-again"], 3)):
        (result,) = json.loads(CliRunner().invoke(app, [*given, *option]).stdout)["results"]
        assert result["profiling"]["jobs"] == jobs
    refused = CliRunner().invoke(app, [*given[:-3], str(tmp_path / "none.jsonl")])
    assert refused.exit_code == 2
    known.write_text("{}\n")
    with pytest.raises(TraceError, match=r"workloads\.jsonl, line 1"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_failures_costs_and_settings_of_the_pools_are_options(trace: Path, tmp_path: Path):
    failures = tmp_path / "failures.csv"
    submits = [float(row["submit_s"]) for row in csv.DictReader(trace.read_text().splitlines())]
    failures.write_text(f"node,at_s,until_s\nn0,{min(submits) + 1000},{max(submits)}\n")
    given = ["simulate", str(trace), "--nodes", "6", "--policy", "fifo-skip", "--json", "--failures", str(failures)]
    costs = [
        "--restart-s",
        "10",
        "--checkpoint-s",
        "600",
        "--set",
        "tenant_quota={vc-a: 24}",
        "--set",
        "reclaim_min_run_s=0",
    ]
    listed = json.loads(CliRunner().invoke(app, [*given, *costs]).stdout)["results"][0]
    assert (listed["node_failures"], listed["finished"]) == (1, 200)
    maintenance = tmp_path / "maintenance.csv"
    maintenance.write_text(f"node,from_s,until_s\nn1,{min(submits) + 1000},{max(submits)}\n")
    around = json.loads(CliRunner().invoke(app, [*given, "--reservations", str(maintenance)]).stdout)["results"][0]
    assert (around["finished"], around["maintenance_stops"] > 0) == (200, True)
    drawn = json.loads(CliRunner().invoke(app, [*given, "--mtbf-h", "20", "--mttr-h", "1", "--seed", "5"]).stdout)[
        "results"
    ][0]
    assert drawn["node_failures"] > 1
    assert drawn["lost_gpu_h"] == drawn["lost_to_failures_gpu_h"] > 0


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


def told(*given: str) -> dict:
    done = CliRunner().invoke(app, ["simulate", *given, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_list_of_unequal_nodes_names_their_gpus_and_pools(trace: Path, tmp_path: Path):
    path = tmp_path / "nodes.csv"
    path.write_text("node,gpus,gpu_type,pool\na1,4,v100,vc-a\na2,8,v100,vc-a\nb1,8,,vc-b\n")
    got = told(str(trace), "--nodes-file", str(path))
    assert (got["nodes"], got["gpus"]) == (3, 20)
    assert set(got["results"][0]["pools"]) == {"vc-a", "vc-b"}


def test_the_node_factor_rounds_up_and_leaves_enough_for_the_largest_job(tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text(
        "job_id,vc,submit_s,submit_local,num_gpus,duration_s\na,x,0,2020-01-01 00:00:00,1,9\nb,y,0,2020-01-01 00:00:00,20,9\n"
    )
    (tmp_path / "vc.csv").write_text("vc,node num\nx,3\ny,3\nz,3\n")
    shared = (str(trace), "--pools", str(tmp_path / "vc.csv"))
    assert told(*shared)["nodes"] == 9
    assert told(*shared, "--node-factor", "0.5")["nodes"] == 2 + 3 + 2
    assert told(*shared, "--node-factor", "0.5", "--gpus-per-node", "4")["gpus"] == (2 + 5 + 2) * 4


def test_the_window_has_its_start_and_not_its_end(tmp_path: Path):
    trace = tmp_path / "t.csv"
    rows = "".join(f"j{day},x,{day},2020-01-0{day} 00:00:00,1,9\n" for day in (1, 2, 3, 4))
    trace.write_text(f"job_id,vc,submit_s,submit_local,num_gpus,duration_s\n{rows}")
    given = (str(trace), "--nodes", "1")
    assert told(*given, "--from", "2020-01-02", "--to", "2020-01-04")["results"][0]["jobs"] == 2
    assert told(*given, "--from", "2020-01-03 00:00:01")["results"][0]["jobs"] == 1
    assert told(*given, "--to", "2020-01-02")["results"][0]["jobs"] == 1


def test_the_seed_moves_random_advice_and_the_same_seed_gives_the_same(trace: Path):
    def figures(seed: str, policy: str = "sjf") -> dict:
        (got,) = told(str(trace), "--nodes", "2", "--policy", policy, "--advice", "noisy:2", "--seed", seed)["results"]
        return {name: value for name, value in got.items() if name not in ("cpu_s", "seed")}

    assert figures("1") == figures("1")
    assert figures("1", "srtf") == figures("1", "srtf")
    raw = [told(str(trace), "--nodes", "2", "--policy", "sjf", "--advice", f"column:{name}", *more)["results"][0] for name, more in (("duration_s", ()), ("duration_s", ("--weighed",)))]  # fmt: skip
    (oracle,) = told(str(trace), "--nodes", "2", "--policy", "sjf", "--advice", "oracle")["results"]
    assert raw[0]["avg_jct_s"] == oracle["avg_jct_s"]
    assert (raw[1]["weighed"], "weighed" in raw[0]) == (True, False)


def test_what_a_preemption_costs_is_a_setting(trace: Path):
    shared = (str(trace), "--nodes", "1", "--policy", "srtf", "--advice", "oracle")
    free, dear = (told(*shared, "--restart-s", s, "--restart-large-s", s, "--checkpoint-s", c)["results"][0] for s, c in (("0", "0"), ("100", "600")))  # fmt: skip
    assert (free["lost_gpu_h"], free["goodput"]) == (0, 1)
    assert dear["preemptions"] > 0
    assert dear["lost_gpu_h"] > 0
    assert dear["goodput"] < 1


def test_the_log_has_an_entry_a_line_and_several_runs_write_several_files(trace: Path, tmp_path: Path):
    told(str(trace), "--nodes", "2", "--policy", "fifo,sjf", "--log", str(tmp_path / "log.jsonl"), "--processes", "2")
    entries = [json.loads(line) for line in (tmp_path / "log.sjf.none.jsonl").read_text().splitlines()]
    assert (tmp_path / "log.fifo.none.jsonl").is_file()
    assert {"pool", "seq", "at", "inputs", "decisions"} <= set(entries[0])


def test_jobs_that_are_left_behind_are_said(tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_s,num_gpus,duration_s\na,0,1,9\nb,0,99,9\n")
    done = CliRunner().invoke(app, ["simulate", str(trace), "--nodes", "1", "--json"])
    assert json.loads(done.stdout)["results"][0]["finished"] == 1
    assert "1 of 2 jobs never ran" in done.stderr
    done = CliRunner().invoke(app, ["simulate", str(trace), "--nodes", "1", "--stay", "--json"])
    assert (json.loads(done.stdout)["results"][0]["allocated_max"], done.stderr) == (1 / 8, "")


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (("--nodes", "6"), 0, ""),
        (("--nodes", "1", "--from", "2031-01-01"), 1, "no job submitted from 2031-01-01"),
        (("--nodes", "1", "--from", "soon"), 1, "'soon' is no date"),
        (("--nodes", "1", "--advice", "column:nobody"), 1, "has no column 'nobody'"),
        (("--nodes", "0"), 2, "--nodes"),
        (("--pools", "TRACE", "--node-factor", "-1"), 1, "node factor must be a number above 0"),
        (("--pools", "TRACE"), 1, "no table of pools"),
        (("--nodes-file", "TRACE"), 1, "no list of nodes"),
        (("--nodes", "1", "--jobs-out", "no/such/folder.csv"), 2, "a folder that is there"),
        (("--nodes", "1", "--log", "."), 2, "a folder that is there"),
        (("--nodes", "1", "--advice", "noisy:x"), 2, "noisy:SIGMA"),
        (("--nodes", "1", "--nobody"), 2, "--nobody"),
    ],
)
def test_the_exit_status_and_one_line_say_how_it_went(
    trace: Path, given: tuple[str, ...], status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    monkeypatch.setattr(
        "sys.argv", ["schedmate", "simulate", str(trace), *(str(trace) if g == "TRACE" else g for g in given), "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    out, err = capsys.readouterr()
    assert said in err
    assert len(err.splitlines()) == (1 if status else 0)
    if status:
        assert out == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--policy", "nobody", "--nodes", "1"], "no policy is called 'nobody'"),
        (["--policy", "fifo,", "--nodes", "1"], "names separated by commas"),
        (["--advice", "nobody", "--nodes", "1"], "no advice is called 'nobody'"),
        ([], "one of them is needed"),
        (["--nodes", "1", "--pools", "x.csv"], "not --nodes and --pools together"),
        (["--pools", "none.csv"], "there is no file none.csv"),
        (["--nodes", "1", "--failures", "none.csv"], "there is no file none.csv"),
        (["--nodes", "1", "--reservations", "none.csv"], "there is no file none.csv"),
        (["--nodes", "1", "--mtbf-h", "0"], "--mtbf-h and --mttr-h are hours above 0"),
        (["--nodes", "1", "--set", "policy=sjf"], "--set policy: say --policy"),
        (["--nodes", "1", "--set", "speed=9"], "--set: unknown pool settings: speed"),
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


def test_traces_in_a_folder_are_listed_by_their_kinds(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log.json").write_text('[{"jobid": "a"}]')
    (tmp_path / "deep" / "notes.md").write_text("nothing of the kind\n")
    (tmp_path / "deep" / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "deep" / "pai_task_table.csv").write_text("a,w,2,Terminated,5,65,600,30,100,V100\n")
    (tmp_path / "empty.csv").write_text("")
    done = CliRunner().invoke(app, ["traces", "list", str(tmp_path), "--json"])
    assert [(row["trace"], row["kind"]) for row in json.loads(done.stdout)] == [
        ("deep/log.json", "philly-json"), ("deep/pai_task_table.csv", "pai"), ("trace.csv", "csv"),
    ]  # fmt: skip
    monkeypatch.setenv("SCHEDMATE_TRACES", str(tmp_path))
    assert "trace.csv" in CliRunner().invoke(app, ["traces", "list"]).stdout
    monkeypatch.setenv("SCHEDMATE_TRACES", "")
    assert CliRunner().invoke(app, ["traces", "list"]).exit_code == 2
    (tmp_path / "none").mkdir()
    assert "no trace of a known kind" in CliRunner().invoke(app, ["traces", "list", str(tmp_path / "none")]).stdout


def test_a_topology_comes_from_the_list_of_nodes_or_is_declared(trace: Path, tmp_path: Path):
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,gpus,rack,spine\n" + "".join(f"n{n},8,r{n // 2},s0\n" for n in range(5)) + "n5,8,,\n")

    def result(*given: str) -> dict:
        done = CliRunner().invoke(app, ["simulate", str(trace), "--policy", "kant-binpack", *given, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["results"][0]

    assert result("--nodes-file", str(nodes))["jtted_leaf_groups"] >= 1
    assert result("--nodes", "6", "--nodes-per-rack", "2", "--racks-per-spine", "2")["jtted_leaf_groups"] >= 1
    assert result("--nodes", "6")["jtted_leaf_groups"] is None
    refused = CliRunner().invoke(app, ["simulate", str(trace), "--nodes", "6", "--racks-per-spine", "2"])
    assert refused.exit_code == 2
