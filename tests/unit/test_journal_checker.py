"""The checker of journals finds what it is there to find: each kind of violation, on journals made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import journal_checker
from tests.journal_checker import check


def line(event: str, t: float, *, run: str = "r1", job: str = "j1", attempt: int = 1, **fields: Any) -> bytes:
    value = {
        "t": t, "node": "n1", "session": 1, "pool": "default", "seq": 1, "term": 1, "job_id": job, "run_id": run,
        "attempt": attempt, "member": 0, "gpus": [0], "event": event, "pid": 7, "exit_code": None,
    }  # fmt: skip
    return json.dumps({**value, **fields}).encode()


def half(t: float, run: str = "r1", kind: str = "started", **fields) -> bytes:
    return line(kind, t, run=run, **{"job": f"job of {run}", "gpu_milli": 500, **fields})


def packed(t: float, run: str = "r1", beside: str | None = None, kind: str = "started", **fields) -> bytes:
    return line(kind, t, run=run, packable=True, packed_with=beside, **{"job": f"job of {run}", **fields})


GOOD = {
    "one run": {"n1": [line("started", 1), line("exited", 2, exit_code=0)]},
    "a GPU one after the other": {
        "n1": [line("started", 1), line("killed", 2), line("started", 3, run="r2", job="j2"), line("exited", 4, run="r2", job="j2")]
    },
    "a retry elsewhere": {
        "n1": [line("started", 1), line("killed", 2)],
        "n2": [line("started", 2, run="r2", attempt=2, node="n2"), line("exited", 3, run="r2", attempt=2, node="n2")],
    },
    "a gang over two nodes": {
        "n1": [line("started", 1), line("exited", 5)],
        "n2": [line("started", 2, member=1, node="n2"), line("exited", 4, member=1, node="n2")],
    },
    "two halves, and another one after the first": {"n1": [half(1), half(2, "r2"), half(3, kind="exited"), half(4, "r3"), half(5, "r2", "exited"), half(6, "r3", "exited")]},
    "a pair, and another one after the first": {"n1": [
        packed(1), packed(2, "r2", "r1"), packed(3, kind="exited"), packed(4, "r3", "r2"), packed(5, "r2", kind="exited"), packed(6, "r3", kind="exited"),
    ]},
    "refused, and stopped before its start": {"n1": [line("refused", 1, pid=None), line("killed", 2, run="r2", pid=None)]},
}  # fmt: skip

BAD = {
    "GPU 0 has two owners": {"n1": [line("started", 1), line("started", 2, run="r2", job="j2"), line("exited", 3), line("exited", 3, run="r2", job="j2")]},
    "two attempts live at once": {
        "n1": [line("started", 1), line("killed", 5)],
        "n2": [line("started", 4, run="r2", attempt=2), line("exited", 6, run="r2", attempt=2)],
    },
    "was started and never ended": {"n1": [line("started", 1)]},
    "is started a second time": {"n1": [line("started", 1), line("exited", 2), line("started", 3), line("exited", 4)]},
    "ends a second time": {"n1": [line("started", 1), line("exited", 2), line("killed", 3)]},
    "ends with a pid and was never started": {"n1": [line("exited", 2)]},
    "session fell": {"n1": [line("started", 1, session=3), line("exited", 2, session=2)]},
    "one member started on two nodes": {
        "n1": [line("started", 1), line("exited", 2)],
        "n2": [line("started", 3, node="n2"), line("exited", 4, node="n2")],
    },
    "has two runs": {"n1": [line("started", 1), line("exited", 2), line("started", 3, run="r2"), line("exited", 4, run="r2")]},
    "is refused while it lives": {"n1": [line("started", 1), line("refused", 2), line("exited", 3)]},
    "not JSON": {"n1": [b"{"]},
    "not a line of the journal's format": {"n1": [b'{"t": 1}']},
}  # fmt: skip


SHARED_WRONGLY: list[tuple[str, list[bytes]]] = [
    ("is given out for 1001 thousandths", [half(1), half(2, "r2", gpu_milli=501)]),
    ("holds 500 thousandths of 2 GPUs", [half(1, gpus=[0, 1])]),
    ("holds 0 thousandths", [half(1, gpu_milli=0)]),
    ("has two owners", [half(1), line("started", 2, run="r2", job="j2")]),
    ("has two owners", [line("started", 1), half(2, "r2")]),
    ("has two owners", [line("started", 1), packed(2, "r2", "r1")]),  # the first one lets nobody in
    ("has two owners", [packed(1), packed(2, "r2")]),  # the second one names nobody
    ("has two owners", [packed(1), packed(2, "r2", "r9")]),
    ("has two owners", [packed(1), packed(2, "r2", "r1", gpus=[0, 1])]),
    ("has two owners", [packed(1, job="j"), packed(2, "r2", "r1", job="j")]),
    ("has two owners", [packed(1), half(2, "r2")]),
    ("has two owners", [packed(1), packed(2, "r2", "r1"), half(3, "r3")]),
    ("has three owners", [packed(1), packed(2, "r2", "r1"), packed(3, "r3", "r2")]),
]


@pytest.mark.parametrize(("expected", "lines"), SHARED_WRONGLY)
def test_a_gpu_that_is_held_for_more_than_one_whole_is_found(expected: str, lines: list[bytes]) -> None:
    violations = check({"n1": lines}, may_live=True).violations
    assert any(expected in violation for violation in violations), violations


@pytest.mark.parametrize("name", GOOD)
def test_good_journals_pass(name: str) -> None:
    assert check(GOOD[name]).violations == []


@pytest.mark.parametrize("expected", BAD)
def test_each_violation_is_found(expected: str) -> None:
    violations = check(BAD[expected]).violations
    assert any(expected in violation for violation in violations), violations


def test_a_living_run_passes_where_runs_may_live() -> None:
    verdict = check({"n1": [line("started", 1)]}, may_live=True)
    assert verdict.violations == []
    assert len(verdict.living) == 1


def test_the_program_reads_directories_and_ignores_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    journal = tmp_path / "n1" / "journal.jsonl"
    journal.write_bytes(line("started", 1) + b"\n" + line("exited", 2) + b"\n" + b'{"t": 3, "no')
    done = subprocess.run(
        [sys.executable, journal_checker.__file__, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (
        0,
        "1 lives, 0 living, 0 refused, 0 ended before their start, 0 violations",
    )
    journal.write_bytes(line("started", 1) + b"\n")
    done = subprocess.run(
        [sys.executable, journal_checker.__file__, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "never ended" in done.stdout


def test_no_journal_at_all_is_no_good_journal(tmp_path: Path) -> None:
    assert journal_checker.check_directories([tmp_path]).violations == ["there is no journal"]
