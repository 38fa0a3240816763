"""Accounting data becomes history: Slurm's and plain tables, again without effect, bad rows refused with their line."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from schedmate.cli import app as command_line
from schedmate.services.history_estimator.importing import Defaults, LeftOut, Refused, TableError, read_rows

SACCT = """JobID|JobName|User|Account|Partition|State|Submit|Start|End|ElapsedRaw|AllocTRES|NNodes|Timelimit|WorkDir|SubmitLine
101|bert-1|ann|nlp|gpu|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T11:05:00|3600|billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=1M,node=1|1|1-00:00:00|/w|sbatch a.sh
101.batch|batch||nlp||COMPLETED|2024-05-01T10:05:00|2024-05-01T10:05:00|2024-05-01T11:05:00|3600|cpu=8,gres/gpu=4|1|||
102|bert-2|ann|nlp|gpu|CANCELLED by 1000|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T10:15:00|600|gres/gpu=16|2|UNLIMITED|/w|sbatch a.sh
103|cpu|ann|nlp|cpu|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T10:15:00|600|cpu=4|1||/w|
104|now|ann|nlp|gpu|RUNNING|2024-05-01T10:00:00|2024-05-01T10:05:00|Unknown|600|gres/gpu=1|1||/w|
105|never|ann|nlp|gpu|CANCELLED|2024-05-01T10:00:00|None|2024-05-01T10:15:00|0|gres/gpu=1|1||/w|
106|bad|ann|nlp|gpu|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T10:00:00||gres/gpu=1|1||/w|
107|odd|ann|nlp|gpu|DREAMING|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T10:15:00|600|gres/gpu=1|1||/w|
108|short|row
109|oom|bob|nlp|gpu|OUT_OF_MEMORY|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T10:15:00|600|gres/gpu=1|1||/w|
110|clock|bob|nlp|gpu|COMPLETED|yesterday|2024-05-01T10:05:00|2024-05-01T10:15:00|600|gres/gpu=1|1||/w|
"""


def read(text: str, **given):
    return list(read_rows(text.splitlines(keepends=True), Defaults(**given)))


def test_slurms_accounting_becomes_records():
    rows = read(SACCT)
    first = rows[0]
    assert (first.pool, first.tenant, first.user, first.name, first.gpus_total, first.gpu_type) == (
        "gpu",
        "nlp",
        "ann",
        "bert-1",
        4,
        "a100",
    )
    assert (first.runtime_s, first.outcome, first.time_limit_s, first.source) == (
        3600.0,
        "succeeded",
        86_400.0,
        "slurm:101",
    )
    assert rows[2].outcome == "cancelled"
    assert (rows[2].gpus_total, rows[2].gpu_type, rows[2].time_limit_s) == (16, None, None)
    assert [(r.line, r.why) for r in rows if isinstance(r, LeftOut)] == [
        (3, "a step of a job"), (5, "no GPU"), (6, "has not ended"), (7, "never started"),
    ]  # fmt: skip
    assert [(r.line, r.reason) for r in rows if isinstance(r, Refused)] == [
        (8, "it ended 300 s before it started"), (9, "state 'DREAMING' is not known"), (10, "3 values where the header has 15 names"),
        (12, "Submit is 'yesterday', no time"),
    ]  # fmt: skip
    assert rows[9].outcome == "failed"


def test_times_without_a_zone_are_of_the_zone_that_is_told():
    there, here = read(SACCT, zone=ZoneInfo("Europe/Berlin"))[0], read(SACCT, zone=UTC)[0]
    assert there.submitted_at == here.submitted_at - 7200


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,COMPLETED,1,10,0", "it ended as it started"), ("a,COMPLETED,1,10,x", "duration_s is 'x', no number"),
        ("a,COMPLETED,-1,10,5", "gpus is '-1', no count"), ("a,COMPLETED,1,inf,5", "submitted_at is inf, out of bounds"),
        (",COMPLETED,1,10,5", "the job has no id"), ("a,COMPLETED,1,,5", "neither submitted_at nor started_at is given"),
        ("a,COMPLETED,1,10,", "neither ended_at nor duration_s is given"), ("a,COMPLETED,1,10,99999999", "it ran for 1157 days: a broken clock"),
        ("a,COMPLETED,1,10,-5", "it ended 5 s before it started"),
    ],
)  # fmt: skip
def test_a_row_that_makes_no_sense_is_refused_with_its_reason(row: str, reason: str):
    (told,) = read(f"job_id,state,gpus,submitted_at,duration_s\n{row}\n")
    assert told == Refused(2, reason)


def test_a_plain_table_takes_times_or_durations():
    (told,) = read("job_id,num_gpus,submit_s,duration_s,vc,command,nodes\nx,8,100,50,a b,python t.py,2\n")
    assert (told.gpus_total, told.runtime_s, told.pool, told.tenant, told.submitted_at) == (
        8,
        50.0,
        "a-b",
        "a-b",
        100.0,
    )
    (later,) = read("job_id,state,started_at,ended_at\nx,failed,2024-01-01T00:00:00+00:00,2024-01-01T00:01:00+00:00\n")
    assert later.outcome == "failed"
    (ended,) = read("job_id,ended_at,duration_s\nx,1000,100\n")
    assert ended.submitted_at == 900.0
    (late,) = read("job_id,submitted_at,started_at,duration_s\nx,1000,900,100\n")
    assert late == Refused(2, "it started 100 s before it was submitted")
    assert read("job_id,state\nx,running\n") == [LeftOut(2, "has not ended")]
    assert read("job_id,gpus\nx,0\n\n") == [LeftOut(2, "no GPU")]
    assert read('job_id,gpus\n"x,1\n')[0].line >= 2


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "JobID|State\n1|COMPLETED\n"])
def test_a_file_that_is_no_table_of_jobs_is_refused(text: str):
    with pytest.raises(TableError, match="no table of jobs"):
        read(text)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["schedmate", *words])
        try:
            command_line.main()
        except SystemExit as end:
            code = int(end.code or 0)
        else:
            code = 0
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCHEDMATE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def test_what_was_imported_is_what_estimates_rest_on_and_a_second_import_changes_nothing(state: Path, capsys):
    lines = ["job_id,state,gpus,submitted_at,duration_s,user,tenant,name,command,nodes"]
    lines += [f"j{n},COMPLETED,1,{n * 1000},{500 + n},ann,nlp,bert-{n},python train.py,1" for n in range(1, 9)]
    lines.append("bad,COMPLETED,1,5,-1,ann,nlp,x,python,1")
    file = state / "jobs.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    code, out, _ = run(capsys, "history", "import", str(file), "--json")
    told = json.loads(out)
    assert (code, told["imported"], told["unchanged"], told["refused"]) == (0, 8, 0, 1)
    assert told["refusals"] == [{"line": 10, "reason": "it ended 1 s before it started"}]
    code, out, _ = run(capsys, "history", "import", str(file), "--json")
    assert (json.loads(out)["imported"], json.loads(out)["unchanged"]) == (0, 8)

    job = state / "job.yaml"
    job.write_text("name: bert-99\ncommand: [python, train.py]\ntenant: nlp\nuser: ann\n", "utf-8")
    code, out, _ = run(capsys, "estimate", "-f", str(job), "--json")
    said = json.loads(out)
    assert (code, said["basis"], len(said["similar"])) == (0, "exact_prior", 8)
    assert said["p10_s"] < 501 < said["p50_s"] < 508 < said["p90_s"]
    code, out, _ = run(capsys, "estimate", "-f", str(job), "--user", "bob", "--tenant", "other", "--json")
    assert (json.loads(out)["basis"], json.loads(out)["p50_s"]) == ("unknown", None)
    _, out, _ = run(capsys, "estimate", "-f", str(job))
    assert "exact_prior" in out


def test_a_source_tells_what_kind_of_job_it_is(state: Path, capsys):
    (state / "train.py").write_text("import torch\nfor epoch in range(3):\n    pass\n", "utf-8")
    code, out, _ = run(capsys, "estimate", "--source", str(state), "--entry", "train.py", "--json")
    assert (code, json.loads(out)["basis"]) == (0, "unknown")
    _, out, _ = run(capsys, "estimate", "--source", str(state), "--entry", "train.py")
    assert "unknown" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["history", "import", "nowhere.csv"], "there is no file"), (["estimate", "-f", "nowhere.yaml"], "cannot be read"),
        (["estimate", "--gpus", "0"], "gpus"), (["estimate", "--source", "."], "--entry"), (["history", "import", "FILE", "--zone", "Mars"], "no such time zone"),
        (["history", "import", "FILE"], "no table of jobs"), (["estimate", "-f", "FILE"], "must hold a mapping"),
    ],
)  # fmt: skip
def test_wrong_use_is_told_in_a_line(state: Path, capsys, words: list[str], told: str):
    (state / "odd.txt").write_text("nothing\n", "utf-8")
    code, out, error = run(capsys, *(str(state / "odd.txt") if word == "FILE" else word for word in words))
    assert (code, out) == (2, "")
    assert told in error


def test_a_file_of_which_nothing_can_be_taken_is_a_failure(state: Path, capsys):
    (state / "bad.csv").write_text(
        "job_id,state,gpus,submitted_at,duration_s\nx,COMPLETED,1,5,-1\ny,RUNNING,1,5,1\n", "utf-8"
    )
    code, out, _ = run(capsys, "history", "import", str(state / "bad.csv"))
    assert code == 1
    assert "1 rows refused" in out
    assert "left out: 1 (has not ended)" in out
