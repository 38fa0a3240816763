"""What SchedMate is told of the semantic trace's jobs: from the truth only what a live pool would see, and when it would."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.semantic_trace import workloads
from benchmarks.semantic_trace.applications import APPLICATIONS, Plan, Profiles
from benchmarks.semantic_trace.knowledge import Job
from schedmate.simulator.residents import TABLE


class Measured(Profiles):
    """Ten seconds an epoch; who stops at a target stops after one."""

    def run_s(self, plan: Plan) -> float:
        return 10.0 * (plan.epochs if plan.target is None else 1)


def job(target: str = "", state: str = "completed", planned_s: float = 55.0) -> Job:
    truth = {"application": "cifar10", "batch": "128", "replicas": "2", "epochs": "5", "fraction": "1.0", "target": target,
             "state": state, "planned_s": str(planned_s), "program": "p", "family": "f", "recurring": "0"}  # fmt: skip
    return Job("j0", 0.0, 2, 40.0, "ann", "cifar-1", "vc", "b" * 16, truth)


def test_a_line_tells_the_analysis_the_hashes_the_end_and_what_the_output_will_show():
    line = workloads.told(job(state="failed"), {"framework": "pytorch"}, Measured(Path()))
    assert line == {
        "job_id": "j0", "workload": {"framework": "pytorch"}, "content_hash": "b" * 16, "command_hash": f"{'b' * 16}/2", "outcome": "failed",
        "shown_s": 55.0, "kind": "small-vision",
    }  # fmt: skip


def test_the_output_of_a_job_that_stops_at_a_target_counts_all_its_epochs_at_the_speed_of_the_run():
    assert workloads.shown_s(job("0.9", planned_s=11.0), workloads.plan_of(job("0.9")), Measured(Path())) == 55.0


def test_every_application_has_kinds_that_the_table_knows_and_the_larger_batches_the_second():
    assert set(workloads.KINDS) == set(APPLICATIONS)
    assert {kind for pair in workloads.KINDS.values() for kind in pair} <= set(TABLE)
    batches = APPLICATIONS["cifar10"].batches
    assert workloads.kind_of(Plan("cifar10", 1, batches[0], 1)) == "small-vision"
    assert workloads.kind_of(Plan("cifar10", 1, batches[-1], 1)) == "small-vision-large-batch"


def test_what_is_there_as_this_code_reads_it_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[Path] = []
    monkeypatch.setattr(workloads, "generate", lambda folder, *_: (folder / "summary.json").write_text("{}"))

    def write(folder: Path, _: object) -> None:
        made.append(folder)
        for name in ("workloads.jsonl", "learned.csv", "planned.csv"):
            (folder / name).write_text("")

    monkeypatch.setattr(workloads, "write", write)
    (tmp_path / "fields.json").write_text("of an earlier analyser")
    for _ in range(2):
        workloads.make(tmp_path, tmp_path)
    assert made == [tmp_path]
    assert not (tmp_path / "fields.json").exists()
    monkeypatch.setattr(workloads, "_reader_sum", lambda: "another")
    workloads.make(tmp_path, tmp_path)
    assert len(made) == 2
