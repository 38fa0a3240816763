"""The page for researchers: its policy and its program do what it says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedmate.services.dispatcher.core import policies as policy_modules
from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.cluster import from_list, uniform
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one
from schedmate.simulator.trace import Trace, TraceJob

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "simulator.md").read_text("utf-8"), re.DOTALL)
TRACES = os.environ.get("SCHEDMATE_TRACES", "")


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's policy as a file in the folder of policies."""
    (source,) = (block for block in BLOCKS if "class FifoFirstFit" in block)
    (tmp_path / "first_fit_of_the_page.py").write_text(source)
    monkeypatch.setattr(policy_modules, "__path__", [*policy_modules.__path__, str(tmp_path)])
    policies.cache_clear()
    yield
    sys.modules.pop(f"{policy_modules.__name__}.first_fit_of_the_page", None)
    policies.cache_clear()


def test_a_file_dropped_in_is_a_policy_and_nothing_else_is_touched(dropped_in: None):
    assert "fifo-first-fit" in policies()
    # node 0 has two GPUs free, node 1 has one: best fit leaves node 0 whole for the job of two, first fit does not
    jobs = [("a", 0, 2, 100), ("b", 0, 3, 100), ("c", 1, 1, 100), ("d", 2, 2, 100)]
    trace = Trace("t", "csv", tuple(TraceJob(*job) for job in jobs))
    first, best = (run_one(trace, uniform(2, 4), Setting(name, "none")) for name in ("fifo-first-fit", "fifo"))
    assert (first["max_wait_s"], best["max_wait_s"]) == (98, 0)


def test_the_policy_is_gone_with_its_file():
    assert "fifo-first-fit" not in policies()


@pytest.mark.skipif(
    not Path(TRACES, "tiresias-60").is_dir() if TRACES else True,
    reason="no traces: set SCHEDMATE_TRACES to the folder that has tiresias-60",
)
def test_with_first_fit_the_60_jobs_of_tiresias_equal_its_own_simulator(dropped_in: None):
    trace, cluster = read_trace(Path(TRACES, "tiresias-60", "60_job.csv")), from_list(Path(TRACES, "tiresias-60", "n4g4.csv"))  # fmt: skip
    got = run_one(trace, cluster, Setting("fifo-first-fit", "none"))
    assert [round(got[name], 2) for name in ("avg_jct_s", "avg_wait_s", "p99_jct_s", "makespan_s")] == [
        219.18,
        40.77,
        1082.94,
        3341,
    ]
    got = run_one(trace, cluster, Setting("fifo", "none"))
    assert [round(got[name], 2) for name in ("avg_jct_s", "avg_wait_s")] == [217.52, 39.1]


def test_the_program_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (program,) = (block for block in BLOCKS if "run_one" in block)
    (tmp_path / "trace.csv").write_text("job_id,submit_s,num_gpus,duration_s\na,0,1,10\n")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/simulator.md", "exec"), {})
    assert capsys.readouterr().out == "10.0\n"
