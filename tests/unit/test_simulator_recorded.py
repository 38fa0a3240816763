"""A recorded log: measured as its simulation was, decided again byte for byte, and simulated to the same placements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.simulator.cluster import in_racks, uniform
from schedmate.simulator.engine import Simulation
from schedmate.simulator.generate import philly_like
from schedmate.simulator.integrals import Integrals
from schedmate.simulator.readers import read_trace
from schedmate.simulator.recorded import LogLine, line_of, read_log, recording_of, replayed
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import Trace, TraceError
from tests.dispatching import START, PoolUnderTest, arrived, report

JOBS = 300
CLUSTER = in_racks(uniform(6, 8), 2, 2)
UNKNOWN_TO_A_LOG = {
    "policy",
    "advice",
    "seed",
    "cpu_s",
    "lost_gpu_h",
    "goodput",
}  # what a restart costs is told to nobody


def recorded(path: Path, policy: str, seed: int, advice: str = "none") -> tuple[Trace, dict[str, Any]]:
    trace = Trace("made", "csv", tuple(philly_like(JOBS, seed, per_day=400.0)))
    return trace, run_one(trace, CLUSTER, Setting(policy, advice, seed, log=path))


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in flat(part, f"{name}/{key}").items()}


@pytest.mark.parametrize("policy", ["fifo", "kant-binpack", "easy", "srtf", "tiresias"])
def test_a_log_is_measured_as_the_simulation_that_wrote_it(tmp_path: Path, seed: int, policy: str) -> None:
    path = tmp_path / "log.jsonl"
    _, figures = recorded(path, policy, seed, "oracle" if policy == "srtf" else "none")
    found = flat(recording_of(read_log(path)).measured())
    left_out = UNKNOWN_TO_A_LOG | ({"ftf"} if figures["preemptions"] else set())  # a restart counts as run time there
    for name, value in flat({k: v for k, v in figures.items() if k not in left_out}).items():
        assert found[name] == (value if not isinstance(value, float) else pytest.approx(value, rel=1e-9)), name


def test_a_log_with_pairs_is_measured_and_decided_again_as_the_simulation_that_wrote_it(
    tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "log.jsonl"
    trace = Trace("made", "csv", tuple(philly_like(JOBS, seed, per_day=4000.0)))
    config = PoolConfig(profiler_nodes=1)
    figures = run_one(trace, CLUSTER, Setting("lucid", "oracle", seed, config=config, log=path))
    assert figures["packing"]["pairs"] > 0
    found = recording_of(read_log(path)).measured()
    for name in ("sor", "gar", "gfr", "allocated_max", "stranded_gpus", "avg_jct_s", "avg_wait_s"):
        assert found[name] == pytest.approx(figures[name], rel=1e-9), name
    assert found["utilisation"] is None
    assert replayed(read_log(path)) is None


def test_the_busy_share_is_that_of_the_gpu_time_that_was_measured_each_run_once() -> None:
    p = PoolUnderTest()
    p.step(report("n1", 4))
    for job in "ab":
        p.running(job)
    ends = [
        i.MemberExited(job, 1, 0, "n1", 1, "exited", 0, None, p.now, p.now + 10, held_s, busy_s)
        for job, held_s, busy_s in (("a", 30.0, 15.0), ("b", 10.0, 9.0))
    ]
    entries = [line(p, n) for n in range(len(p.log))]
    assert recording_of(entries).measured()["utilisation"] is None, "nobody has ended who was measured"
    p.step(*ends, after=10.0)
    p.step(*ends)  # told again
    p.step(arrived("c"))
    figures = recording_of([line(p, n) for n in range(len(p.log))]).measured()
    assert figures["utilisation"] == pytest.approx(24 / 40)


def line(p: PoolUnderTest, number: int) -> LogLine:
    entry = p.log[number]
    return LogLine(
        "default", number, entry["at"], tuple(i.from_json(x) for x in entry["inputs"]), frozenset(),
        tuple(d.from_json(x) for x in entry["decisions"]),
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo-skip", "srtf", "tiresias"])
def test_a_log_is_decided_again_byte_for_byte_and_a_changed_one_is_told(tmp_path: Path, seed: int, policy: str) -> None:
    path = tmp_path / "log.jsonl"
    recorded(path, policy, seed, "oracle" if policy == "srtf" else "none")
    assert replayed(read_log(path)) is None
    told = CliRunner().invoke(app, ["replay", "--log", str(path), "--json"])
    assert (told.exit_code, json.loads(told.stdout)["equal"]) == (0, True)
    lines = path.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"kind":"placed"' in line)
    entry = json.loads(lines[at])
    placed = next(x for x in entry["decisions"] if x["kind"] == "placed")
    placed["seats"][0][2][0] += 1
    path.write_text("\n".join([*lines[:at], json.dumps(entry), *lines[at + 1 :]]) + "\n")
    difference = replayed(read_log(path))
    assert difference is not None
    assert (difference.seq, difference.index) == (entry["seq"], entry["decisions"].index(placed))


@pytest.mark.parametrize("policy", ["fifo", "kant-binpack", "easy"])
def test_a_log_simulated_goes_the_same_way(tmp_path: Path, seed: int, policy: str) -> None:
    path, again = tmp_path / "log.jsonl", tmp_path / "again.jsonl"
    recorded(path, policy, seed)
    trace = read_trace(path)
    assert (trace.kind, len(trace.jobs)) == ("pool-log", JOBS)
    run_one(trace, recording_of(read_log(path)).cluster, Setting(policy, "none", log=again))
    assert placements(again) == placements(path)


def test_the_command_simulates_a_log_on_its_own_cluster(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "log.jsonl"
    _, figures = recorded(path, "fifo", seed)
    told = CliRunner().invoke(app, ["simulate", str(path), "--policy", "fifo,fifo-skip", "--processes", "1", "--json"])
    value = json.loads(told.stdout)
    assert (value["nodes"], value["gpus"]) == (6, 48)
    assert value["results"][0]["avg_jct_s"] == pytest.approx(figures["avg_jct_s"])
    shown = CliRunner().invoke(app, ["pool", "metrics", "--log", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "ended SUCCEEDED" in shown.stdout


def placements(path: Path) -> list[tuple[str, Any]]:
    return [(x.job, x.seats) for entry in read_log(path) for x in entry.decisions if type(x) is d.Placed]


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"pool": "p", "seq": 0, "at": 1, "inputs": [{"kind": "x"}]}', "{"])
def test_what_is_no_entry_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(TraceError, match=r"log.jsonl, line 1: no entry"):
        list(read_log(path))
    assert isinstance(CliRunner().invoke(app, ["pool", "metrics", "--log", str(path)]).exception, TraceError)


# --- what only a live pool's log has ---


def log_of(p: PoolUnderTest) -> list[LogLine]:
    return [
        LogLine(
            "default", n, entry["at"], [i.from_json(x) for x in entry["inputs"]], [int(k) for k in entry["refused"]],
            [d.from_json(x) for x in entry["decisions"]], p.config.to_json() if n == 0 else None,
        )
        for n, entry in enumerate(p.log)
    ]  # fmt: skip


def test_failures_nodes_that_leave_and_jobs_that_never_started_are_measured_as_they_were() -> None:
    p = PoolUnderTest()
    p.step(report("n1", 4), report("n2", 4))
    p.running("a", gpus=2, submitted_at=START)
    p.step(i.NodeCommanded("n2", "drain", "op", ""), after=100)
    p.step(arrived("b", gpus=4, submitted_at=START + 100))
    p.step(arrived("gone", submitted_at=START + 100))
    p.step(i.CancelRequested("gone", "ann"))
    p.exit("a", 1, after=100)
    p.step(i.Tick(), after=20)  # no diagnosis came: it is tried again, behind b
    p.start("b")
    p.exit("b", after=80)
    p.start("a")
    p.step(arrived("last", submitted_at=p.now))
    p.exit("a", after=100)
    p.start("last")
    p.exit("last")
    log = log_of(p)
    assert replayed(log) is None
    figures = recording_of([LogLine(**{f: getattr(e, f) for f in e.__slots__}) for e in log]).measured()
    assert figures["ended"] == {"CANCELLED": 1, "SUCCEEDED": 3}
    assert (figures["jobs"], figures["finished"]) == (4, 3)
    assert figures["lost_gpu_h"] == pytest.approx(200 * 2 / 3600)  # the attempt that nothing could be kept of
    window = 300.0  # from the first arrival to the last
    schedulable = 100 * 8 + 200 * 4  # n2 counts no more once it drains
    assert figures["sor"] == pytest.approx((200 * 2 + 100 * 4) / schedulable)
    assert figures["gfr"] == pytest.approx((100 / 2 + 100 / 1) / window)
    assert figures["utilisation"] is None
    again = [json.loads(line_of(e)) for e in log]
    assert [x["seq"] for x in again] == list(range(len(log)))


def test_shares_of_a_cluster_that_grows_are_each_of_what_was_there() -> None:
    integrals = Integrals(4, 1, 0.0, 30.0)
    integrals.change(0, 2, 4)
    integrals.until(10.0)
    integrals.resize(8, 2)
    integrals.until(30.0)
    assert integrals.sor == pytest.approx((10 * 2 + 20 * 2) / (10 * 4 + 20 * 8))
    assert (integrals.gar, integrals.peak) == (0.25, 0.5)
    assert integrals.gfr == pytest.approx((10 * 1.0 + 20 * 0.5) / 30)


def test_a_cluster_without_gpus_has_no_shares() -> None:
    integrals = Integrals(0, 0, 0.0, 10.0)
    integrals.until(10.0)
    assert (integrals.gar, integrals.sor, integrals.gfr, integrals.peak) == (0.0, 0.0, 0.0, 0.0)


def test_a_log_without_a_job_has_no_figures() -> None:
    p = PoolUnderTest()
    p.step(report("n1", 4))
    recording = recording_of(log_of(p))
    with pytest.raises(TraceError, match="no job"):
        recording.measured()
    with pytest.raises(TraceError, match="no job"):
        recording.trace("x")


def test_the_same_log_twice_gives_the_same_figures(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "log.jsonl"
    recorded(path, "fifo", seed)
    recording = recording_of(read_log(path))
    assert recording.measured() == recording.measured() == recording_of(read_log(path)).measured()


def test_a_simulation_takes_a_log_s_requests_as_they_are(seed: int) -> None:
    asks = (i.JobArrived("g", "t", "u", 1, 1, 3, None, 0, None, 0, 5.0, "{}", None, within="rack"),)
    trace = Trace("made", "csv", tuple(philly_like(3, seed)))
    job = trace.jobs[0]
    made = type(job)("g", job.submit_s, 3, 10.0, asks=asks)
    outcome = Simulation([made], in_racks(uniform(6, 8), 3), "fifo", config=PoolConfig(), keep_seats=True).run()
    assert len((outcome.seats or [()])[0]) == 3
    assert outcome.leaves_used == [1]
