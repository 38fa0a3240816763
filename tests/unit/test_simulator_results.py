"""The results page: bounds, intervals, the ledger of finished runs, and what the page says of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.bounds import RUN_TIME, SRPT, lower_bounds, overall_s, srpt_s
from schedmate.simulator.cluster import Cluster, NodeSpec, uniform
from schedmate.simulator.draws import drawn_from
from schedmate.simulator.results import ledger as ledger_module
from schedmate.simulator.results import page
from schedmate.simulator.results.advised import advised_table, where_not
from schedmate.simulator.results.grid import GROUNDS, Case, cases
from schedmate.simulator.results.intervals import gained, share_closed
from schedmate.simulator.results.ledger import WITNESS, Ledger, Line, code_version, run_case, run_missing
from schedmate.simulator.results.peers import PEERS
from schedmate.simulator.results.profiler import profiler_section
from schedmate.simulator.results.robustness import robustness_section, shares_of
from schedmate.simulator.results.sections import sentences
from schedmate.simulator.results.worth import best_without, by_advice
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import Trace, TraceJob


def jobs_of(*rows: tuple[float, int, float]) -> list[TraceJob]:
    return [TraceJob(f"j{n}", submit, gpus, duration) for n, (submit, gpus, duration) in enumerate(rows)]


def test_srpt_serves_the_shortest_remaining_work_on_one_fast_machine():
    # two GPUs: works 5, 1 and 0.5 s; the second interrupts the first at 1, the third comes at 1.5 into the second
    assert srpt_s(jobs_of((0, 1, 10), (1, 2, 1), (1.5, 1, 1)), 2) == pytest.approx((6.5 + 1.0 + 1.0) / 3)


def test_the_bound_names_the_side_that_binds():
    alone = lower_bounds(jobs_of((0, 1, 100)), uniform(1, 8))["default"]
    assert (alone.side, alone.at_least_s) == (RUN_TIME, 100)
    crowd = lower_bounds(jobs_of(*[(0, 1, 100)] * 40), uniform(1, 2))["default"]
    assert (crowd.side, crowd.at_least_s) == (SRPT, pytest.approx(50 * 41 / 2))


def test_no_schedule_is_below_the_bound(seed: int):
    draws = drawn_from(seed, "bound")
    jobs = jobs_of(*((draws.randrange(200), draws.choice((1, 2, 4, 8)), draws.randrange(1, 300)) for _ in range(60)))
    cluster = uniform(2, 8)
    bound = overall_s(lower_bounds(jobs, cluster))
    for policy, advice in (("fifo", "none"), ("sjf", "oracle"), ("srtf", "oracle"), ("smallest", "none")):
        assert run_one(Trace("t", "csv", tuple(jobs)), cluster, Setting(policy, advice))["avg_jct_s"] >= bound


def test_the_bounds_of_pools_are_weighted_by_their_jobs():
    jobs = [TraceJob("a", 0, 1, 10, pool="x"), TraceJob("b", 0, 1, 40, pool="y"), TraceJob("c", 0, 1, 40, pool="y")]
    cluster = Cluster({"x": (NodeSpec("n0", 8),), "y": (NodeSpec("n0", 8),)}, one_pool=False)
    assert overall_s(lower_bounds(jobs, cluster)) == pytest.approx(30)


BASE = {f"vc/{n}": (10, 10 * 100.0 + n) for n in range(20)}


def less(seconds: float) -> dict[str, tuple[int, float]]:
    return {name: (jobs, total - jobs * seconds) for name, (jobs, total) in BASE.items()}


def test_an_equal_gain_in_every_block_has_no_spread():
    got = gained(BASE, less(7))
    assert (got.value, got.low, got.high) == pytest.approx((7, 7, 7))
    assert got.above_zero
    assert not gained(BASE, BASE).above_zero


def test_a_gain_in_one_block_alone_may_be_chance():
    other = BASE | {"vc/3": (10, 0.0)}
    got = gained(BASE, other)
    assert got.low == pytest.approx(0)
    assert not got.above_zero


def test_the_share_closed_is_of_what_the_reference_gains():
    got = share_closed(BASE, less(5), less(20))
    assert got is not None
    assert (got.value, got.low, got.high) == pytest.approx((0.25, 0.25, 0.25))
    assert share_closed(BASE, less(5), less(-1)) is None
    noisy = {name: (10, total + (90 if n % 2 else -100) * 10) for n, (name, (_, total)) in enumerate(BASE.items())}
    open_ended = share_closed(BASE, less(5), noisy)
    assert open_ended is not None
    assert open_ended.low is None


def test_one_block_has_no_interval_and_other_jobs_cannot_be_paired():
    got = gained({"a": (2, 10.0)}, {"a": (2, 4.0)})
    assert (got.value, got.low, got.above_zero) == (3.0, None, False)
    with pytest.raises(ValueError, match="not of the same jobs"):
        gained({"a": (2, 10.0)}, {"a": (3, 10.0)})


def test_the_page_wants_every_policy_that_there_is_and_no_case_twice():
    wanted = cases()
    assert len({case.key for case in wanted}) == len(wanted)
    for ground in GROUNDS:
        if ground.full:
            assert {case.policy for case in wanted if case.ground == ground.name} == set(policies())
    keys = {case.key for case in wanted}
    assert [peer.case.key for peer in PEERS if peer.case.policy in policies() and peer.case.key not in keys] == []


def line_of(
    policy: str, advice: str, blocks: dict[str, tuple[int, float]], ground: str = "week-54", code: str = "c"
) -> Line:
    jobs, total = sum(j for j, _ in blocks.values()), sum(t for _, t in blocks.values())
    figures = {"avg_jct_s": total / jobs, "preemptions": 1 if policy == "srtf" else 0, "cpu_s": 1.0}
    return Line(code, Case(ground, policy, advice), figures, blocks, [1.0, 2.0])


def test_the_ledger_keeps_the_last_line_of_a_case_and_passes_over_one_that_was_cut(tmp_path: Path):
    ledger = Ledger(tmp_path / "new" / "runs.jsonl")
    assert ledger.lines("new") == {}
    first, second = line_of("fifo", "none", BASE, code="old"), line_of("fifo", "none", BASE, code="new")
    ledger.add(first)
    ledger.add(second)
    with (tmp_path / "new" / "runs.jsonl").open("a") as file:
        file.write('{"code": "cut')
    assert ledger.every() == [first, second]
    assert ledger.lines("new") == {second.case.key: second}
    assert first.same == second.same != line_of("fifo", "none", less(1)).same


def test_a_long_run_of_earlier_code_holds_where_both_codes_do_the_same_on_the_peer_week(tmp_path: Path):
    ledger = Ledger(tmp_path / "runs.jsonl")
    long = {policy: line_of(policy, "none", BASE, "october-0.5", "old") for policy in ("fifo", "sjf", "smallest")}
    for line in long.values():
        ledger.add(line)
    for policy, changed in (("fifo", 0), ("sjf", 1)):
        for code, seconds in (("old", 0), ("new", changed)):
            ledger.add(line_of(policy, "none", less(seconds), WITNESS, code))
    held = ledger.lines("new")
    assert long["fifo"].case.key in held
    assert long["sjf"].case.key not in held  # its policy does something else now
    assert long["smallest"].case.key not in held  # nothing was run to compare
    assert {line.code for line in held.values() if line.case.ground == WITNESS} == {"new"}
    ledger.add(line_of("fifo", "none", less(3), "october-0.5", "new"))
    ledger.add(long["fifo"])
    assert ledger.lines("new")[long["fifo"].case.key].code == "new"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces" / "tiresias-60"
    folder.mkdir(parents=True)
    (folder / "n4g4.csv").write_text("num_switch,num_node_p_switch,num_gpu_p_node\n1,4,4\n")
    rows = "".join(f"{n},{1 + n % 4},{n * 10},100,resnet50,{60 + n},1\n" for n in range(30))
    (folder / "60_job.csv").write_text(f"job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n{rows}")
    return tmp_path / "traces"


def test_a_run_that_is_broken_off_goes_on_where_it_was(traces: Path, tmp_path: Path):
    ledger, code = Ledger(tmp_path / "runs.jsonl"), code_version()
    wanted = [Case("tiresias-60", policy, "none") for policy in ("fifo", "nobody", "tiresias")]
    said: list[str] = []
    run_missing(wanted, ledger, traces, code, processes=1, seconds=0, told=said.append)
    assert said == []
    run_missing(wanted, ledger, traces, code, processes=1, seconds=60, told=said.append)
    assert set(ledger.lines(code)) == {wanted[0].key, wanted[2].key}
    assert any("nobody" in text and "failed" in text for text in said)
    assert ledger.lines(code)[wanted[0].key].same == run_case(wanted[0], traces, code).same


def killed(*_: object) -> Line:
    os._exit(9)


def test_a_process_that_is_killed_ends_the_runs_and_loses_none(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger, said = Ledger(tmp_path / "runs.jsonl"), list[str]()
    ledger.add(line_of("fifo", "none", BASE))
    monkeypatch.setattr(ledger_module, "run_case", killed)
    wanted = [Case("tiresias-60", policy, "none") for policy in ("fifo", "tiresias")]
    run_missing(wanted, ledger, traces, "c", processes=1, seconds=60, told=said.append)
    assert said == ["a process was killed at tiresias-60/fifo/none/0/: nothing more is run, what is finished counts"]
    assert len(ledger.every()) == 1


def test_the_best_policy_without_advice_is_the_base_and_the_text_follows_the_figures():
    lines = {line.case.key: line for line in (
        line_of("fifo", "none", BASE), line_of("smallest", "none", less(30)), line_of("sjf", "none", BASE),
        line_of("sjf", "history", less(10)), line_of("sjf", "oracle", less(20)),
    )}  # fmt: skip
    own = by_advice(lines, "week-54")
    base = best_without(own)
    assert base is not None
    assert base.case.policy == "smallest"
    said = sentences(own, base)
    assert "**Advice does not help here**" in said
    assert (
        "Even true run times gain nothing over it: `sjf` with `oracle`, the nearest, is 10 s (10 to 10) behind." in said
    )
    helped = own | {
        ("qssf", "history"): line_of("qssf", "history", less(40)),
        ("qssf", "oracle"): line_of("qssf", "oracle", less(50)),
    }
    said = sentences(helped, base)
    assert "Advice gains over it beyond chance: `qssf` with `history` 10 s (10 to 10); no other source does." in said
    idle = helped | {
        ("lucid", "none"): line_of("lucid", "none", less(60)),
        ("lucid", "random"): line_of("lucid", "random", less(60)),
    }
    assert "`lucid`" not in sentences(idle, base)
    worse = own | {("sjf", "noisy:1"): line_of("sjf", "noisy:1", less(-5))}
    assert "Worse than the same policy without advice: `sjf` with `noisy:1` (by 5 s" in sentences(worse, base)


def test_the_page_is_written_of_what_there_is_and_names_what_is_missing(traces: Path, tmp_path: Path, monkeypatch):
    found = (
        run_case(Case("tiresias-60", "fifo", "none"), traces, "c"),
        line_of("fifo", "none", BASE),
        line_of("smallest", "none", less(30)),
        line_of("sjf", "oracle", less(40)),
        line_of("fgd", "none", less(31)),
    )
    lines = {line.case.key: line for line in found}
    small = Trace("t", "csv", tuple(jobs_of((0, 1, 10), (5, 2, 20)))), uniform(1, 8)
    monkeypatch.setattr(page, "loaded", lambda *_: small)
    (tmp_path / "docs").mkdir()
    out = tmp_path / "docs" / "results.md"
    page.write_page(out, lines, "c", traces)
    text = out.read_text()
    assert "Tiresias' simulator | 219.2" in text
    assert "the run time binds" in text
    assert "`fgd` without advice comes to 70 s: +1 (1 to 1) s gained over it." in text
    missing = text.partition("## What is missing")[2]
    assert "`tiresias` with none" in missing
    assert "for want of philly-week-peer/philly_week_20171001.csv" in missing
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "docs" / "pictures").iterdir()}
    assert set(drawn) == {"jct-week-54.svg", "cdf-week-54.svg"}
    page.write_page(out, lines, "c", traces)
    assert (out.read_text(), {p.name: p.read_bytes() for p in (tmp_path / "docs" / "pictures").iterdir()}) == (
        text,
        drawn,
    )
    page.write_page(out, lines, "another", traces)
    assert "5 of an earlier state of it" in out.read_text()
    page.write_page(out, {}, "another", traces)
    assert "0 runs" in out.read_text()


def test_lines_are_plain_json():
    line = line_of("fifo", "none", BASE)
    assert Line.from_json(json.loads(json.dumps(line.to_json()))) == line


def seeds(setting: str, policy: str, advice: str, *shares: float) -> list[dict]:
    return [{"setting": setting, "policy": policy, "advice": advice, "seed": n, "avg_jct_s": 100 * s, "p999_wait_s": 10 * s} for n, s in enumerate(shares)]  # fmt: skip


def test_wrong_advice_is_told_over_its_seeds_and_judged_by_its_bounds(tmp_path: Path):
    lines = [
        *seeds("week", "sjf", "none", 1.0), *seeds("week", "sjf", "random", *[1.0, 1.02] * 5), *seeds("week", "sjf", "noisy:0.5", 0.5, 0.5),
        *seeds("week", "sjf", "noisy:10", 0.9, 0.9),
        *seeds("0.5", "qssf", "none", 1.0), *seeds("0.5", "qssf", "random", 1.1, 1.1), *seeds("0.5", "qssf", "noisy:1", 0.9), *seeds("0.5", "qssf", "noisy:2", 0.8),
        *seeds("0.5", "easy", "random", 1.0),
    ]  # fmt: skip
    path = tmp_path / "robustness.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shares = shares_of(path)
    assert set(shares) == {
        ("week", "sjf", "random"),
        ("week", "sjf", "noisy:0.5"),
        ("week", "sjf", "noisy:10"),
        ("0.5", "qssf", "random"),
        ("0.5", "qssf", "noisy:1"),
        ("0.5", "qssf", "noisy:2"),
    }  # fmt: skip - nothing to compare `easy` with
    assert shares["week", "sjf", "random"][0].mean == pytest.approx(1.01)
    assert shares["week", "sjf", "random"][0].half == pytest.approx(2.262 * 0.01054 / 10**0.5, rel=0.01)
    text = robustness_section(path, tmp_path)
    assert "costs at most 10.0 %" in text
    assert "**more than the 2 % allowed** under `qssf` on Philly October, f = 0.5" in text
    assert (
        "More noise is not always worse: beyond the intervals it gets better with `qssf` on Philly October, f = 0.5 at S = 2."
        in text
    )
    assert text.index("noisy:0.5") < text.index("noisy:10")
    drawn = (tmp_path / "robustness.svg").read_bytes()
    robustness_section(path, tmp_path)
    assert (tmp_path / "robustness.svg").read_bytes() == drawn


def test_advice_within_its_bounds_is_told_so(tmp_path: Path):
    lines = [
        *seeds("week", "sjf", "none", 1.0),
        *seeds("week", "sjf", "random", 1.0, 0.99),
        *seeds("week", "sjf", "noisy:1", 0.9),
    ]
    path = tmp_path / "robustness.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = robustness_section(path, tmp_path)
    assert "Random advice costs nothing" in text
    assert "The more noise, the higher the average JCT, within its intervals, everywhere." in text
    assert "has not been run yet" in robustness_section(tmp_path / "none.jsonl", tmp_path)


@pytest.mark.parametrize(
    ("wait", "said"),
    [(1.2, "everywhere (under backfilling: the p99.9 wait"), (0.8, "beyond the intervals it gets better with `easy`")],
)
def test_what_noise_costs_under_backfilling_is_judged_by_the_wait_and_the_average_is_told(
    tmp_path: Path, wait: float, said: str
):
    lines = [
        *seeds("week", "easy", "none", 1.0),
        *seeds("week", "easy", "noisy:0", 0.5),
        *seeds("week", "easy", "noisy:2", 0.4, 0.4),
    ]
    for line in lines:
        line["p999_wait_s"] = wait if line["advice"] == "noisy:2" else 1.0
    path = tmp_path / "robustness.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = robustness_section(path, tmp_path)
    assert said in text
    assert "The average JCT of `easy` does not rise with the noise" in text


def semantic(policy: str, advice: str, seconds: float, **case) -> Line:
    line = line_of(policy, advice, less(seconds), "semantic-0.8")
    figures = line.figures | {
        "p99_jct_s": 500.0 - seconds,
        "p999_wait_s": 90.0 + (20.0 if advice == "history" and policy == "qssf" else 0.0),
    }
    profiled = {"none": 100, "history": 100 if case else 40, "oracle": 100}.get(advice, 0)
    figures |= {
        "profiling": {"jobs": profiled, "ended_there": 5, "gpu_h": profiled / 4, "job_s": profiled * 80.0, "recalled": 100 - profiled, "recalled_wrong": 3},
        "packing": {"pairs": 7, "avg_speed": 0.9},
    } if policy == "lucid" else {}  # fmt: skip
    return Line(line.code, Case("semantic-0.8", policy, advice, **case), figures, line.blocks, line.jct_s)


def with_and_without() -> dict[str, Line]:
    lines = (
        semantic("fifo", "none", 0), semantic("srtf", "none", 50), semantic("srtf", "history", 59), semantic("srtf", "oracle", 60),
        semantic("qssf", "none", 30), semantic("qssf", "history", 55), semantic("qssf", "oracle", 70),
        semantic("sjf", "none", 0), semantic("sjf", "history", -4), semantic("sjf", "oracle", 40),
        semantic("easy", "none", 0), semantic("easy", "history", 0), semantic("easy", "oracle", 20),
        semantic("srtf", "column:results/semantic/planned.csv:planned_s", 58),
        semantic("lucid", "none", 35), semantic("lucid", "history", 49), semantic("lucid", "history", 47, profile_again=True), semantic("lucid", "oracle", 55),
    )  # fmt: skip
    return {line.case.key: line for line in lines}


def test_each_policy_stands_with_and_without_advice_beside_the_papers_ratio_at_its_best_and_worst():
    own = by_advice(with_and_without(), "semantic-0.8")
    base = best_without(own)
    assert base is not None
    text = advised_table(own, base)
    assert "1.91x" in text
    srtf = next(row for row in text.splitlines() if row.startswith("| `srtf`"))
    assert (
        "| `srtf` | 51 | 42 | 41 | 43 | +9 (9 to 9) | 90 % (90 to 90) | 450 → 441 | 90 → 90 | 1.98x | 2.41x | 2.47x |"
        in srtf
    )
    assert "is 0.96x (`sjf`) to 2.41x (`srtf`), and 1.98x without any (2D-LAS (`srtf` without advice))." in text
    fifo = next(row for row in text.splitlines() if row.startswith("| `fifo`"))
    assert fifo.endswith("| 500 | 90 | 1.00x |  |  |")
    assert advised_table({key: line for key, line in own.items() if key[1] != "history"}, base) == ""


def test_where_advice_does_not_help_is_said_from_the_runs():
    own = by_advice(with_and_without(), "semantic-0.8")
    base = best_without(own)
    assert base is not None
    said = where_not(own, base, "the semantic trace")
    assert said.startswith("**The semantic trace.** It changes nothing for `easy`: nothing is believed in time.")
    assert "`sjf` stays behind 2D-LAS (`srtf` without advice) even with true run times" in said
    assert "It gains nothing beyond chance with `lucid` (-1 (-1 to -1) s; -20 % (-20 to -20) closed)" in said.replace("Over 2D-LAS (`srtf` without advice) it gains", "It gains")  # fmt: skip
    assert "closes the 90 % that it aims at with `srtf` (+9 (9 to 9) s; 90 % (90 to 90) closed)" in said
    assert "closes less than the 90 % that it aims at, with `qssf` (+5 (5 to 5) s; 25 % (25 to 25) closed)" in said
    assert "Worse than the same policy without advice: `sjf` (4 s)." in said
    assert "The tail is longer with it under `qssf` (p99.9 of the wait)." in said
    assert said.endswith("closes 80 % (80 to 80) with `srtf`: 90 % is beyond any prediction of the run time here.")
    assert where_not({}, base, "nothing") == ""


def test_what_history_saves_lucids_profiler_is_told_beside_the_same_advice_without_it():
    text = profiler_section(with_and_without())
    assert "At a load of 0.8 that saves 15.0 of 25.0 GPU hours (60 %) and 4,800 job seconds of profiling" in text
    assert "the average JCT is shorter (+2 (2 to 2) s gained)" in text
    assert [row.split(" | ")[2] for row in text.splitlines() if row.startswith("| 0.8")] == ["100", "100", "40", "100"]
    assert profiler_section({}) == ""


def test_a_made_traces_run_holds_under_its_own_code_and_what_was_told_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = Ledger(tmp_path / "runs.jsonl")
    for code in ("old", "new"):
        ledger.add(line_of("fifo", "none", BASE, WITNESS, code))
    old = line_of("fifo", "none", BASE, "semantic-0.8", "old")
    ledger.add(Line("old", old.case, old.figures | {"told": "a"}, old.blocks, old.jct_s))
    monkeypatch.setattr(ledger_module, "told_sum", lambda ground: "a" if ground.workloads else "")
    assert old.case.key in ledger.lines("old")
    assert old.case.key not in ledger.lines("new")  # the peer week has no workloads to witness it by
    monkeypatch.setattr(ledger_module, "told_sum", lambda ground: "b" if ground.workloads else "")
    assert old.case.key not in ledger.lines("old")


def test_the_commands_of_the_semantic_trace_name_its_files_and_what_is_told():
    wanted = {case.key: case for case in cases() if case.ground == "semantic-0.8"}
    assert {case.label for case in wanted.values()} == {
        "none", "history", "oracle", "learned_s (raw)", "planned_s (raw)", "history (profiled again)",
    }  # fmt: skip
    again = wanted["semantic-0.8/lucid/history/0/again"]
    assert again.command == (
        "schedmate simulate results/semantic/jobs.csv --nodes 21 --gpus-per-node 4 --workloads results/semantic/workloads.jsonl "
        "--policy lucid --advice history --profile-again"
    )
    raw = next(case for case in wanted.values() if case.advice.startswith("column:"))
    assert raw.advice_in(Path("x")).startswith("column:/")


def test_a_seed_is_compared_with_its_own_run_without_advice_where_it_has_one(tmp_path: Path):
    lines = [*seeds("week", "lucid", "none", 1.0, 1.5), *seeds("week", "lucid", "random", 1.0, 1.5)]
    path = tmp_path / "robustness.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert shares_of(path)["week", "lucid", "random"][0].mean == pytest.approx(1.0)
    assert "Random advice costs nothing" in robustness_section(path, tmp_path)
