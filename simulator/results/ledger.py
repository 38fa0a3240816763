"""The runs that are finished: one JSON line each, written as it ends, so that a run that is broken off goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Final

from schedmate import simulator
from schedmate.services.dispatcher.core import step as core_step
from schedmate.services.history_estimator import estimator
from schedmate.simulator.cluster import Cluster
from schedmate.simulator.measures import measured, percentile
from schedmate.simulator.outcome import Outcome
from schedmate.simulator.results.grid import BY_NAME, MADE, NOISE_OF_OCTOBER, ROOT, Case, loaded, told_sum
from schedmate.simulator.runs import Setting, outcome_of
from schedmate.simulator.trace import Trace

WITNESS: Final = "week-54"
"""A short and crowded ground, run again under every code: a run of earlier code holds where its policy and advice do the same there."""
_ADVICE_THERE: Final = {NOISE_OF_OCTOBER: "column:pred_noise_s"}
QUANTILES: Final = 101
DAY_S: Final = 86_400.0
_SHOW: Final = frozenset(
    {"bounds", "curves", "generate", "plots", "recorded"}
)  # modules that change no figure of a run
_SERVICE: Final = frozenset(
    {"__main__", "handlers", "importing", "memory", "record", "settings", "wiring"}
)  # of the estimator's service


@dataclass(frozen=True, slots=True)
class Line:
    """A finished run. `blocks` has (jobs, sum of the JCT) of each pool and week (or day, on a trace of one pool and one week)."""

    code: str
    case: Case
    figures: dict[str, Any]
    blocks: dict[str, tuple[int, float]]
    jct_s: list[float]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"code": self.code, "case": self.case.to_json(), "figures": self.figures, "blocks": self.blocks, "jct_s": self.jct_s}  # fmt: skip

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Line:
        """Return it from a JSON object."""
        blocks = {name: (int(jobs), float(total)) for name, (jobs, total) in value["blocks"].items()}
        return cls(value["code"], Case(**value["case"]), value["figures"], blocks, value["jct_s"])

    @property
    def same(self) -> tuple[Any, ...]:
        """What is equal in two runs of a case that come to the same."""
        return (sorted((name, jobs, round(total, 3)) for name, (jobs, total) in self.blocks.items()), self.figures["preemptions"])  # fmt: skip


def code_version() -> str:
    """Return a short sum over the modules that decide what a run comes to: the dispatcher's core, the event loop, advice and its estimator, readers."""
    files = sorted(Path(core_step.__file__).parent.rglob("*.py"))
    files += [file for file in sorted(Path(estimator.__file__).parent.glob("*.py")) if file.stem not in _SERVICE]
    files += [
        file for folder in simulator.__path__ for file in sorted(Path(folder).glob("*.py")) if file.stem not in _SHOW
    ]
    total = sha256()
    for file in files:
        total.update(file.name.encode())
        total.update(file.read_bytes())
    return total.hexdigest()[:12]


def _is_of(line: Line | None, code: str) -> bool:
    return line is not None and line.code == code


def _witnessed(line: Line, code: str, known: dict[tuple[str, str], tuple[Any, ...]]) -> bool:
    """Tell whether an earlier line still holds: on the witness its policy and advice came to the same under that code and under this."""
    if line.case.ground in BY_NAME and BY_NAME[line.case.ground].workloads is not None:
        return False  # the peer week has no workloads: it is no witness of what they tell
    case = replace(line.case, ground=WITNESS, advice=_ADVICE_THERE.get(line.case.advice, line.case.advice))
    before, now = known.get((line.code, case.key)), known.get((code, case.key))
    return line.case.ground != WITNESS and before is not None and before == now


class Ledger:
    """The file of finished runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def every(self) -> list[Line]:
        """Return all lines, oldest first. A line that was cut off by a kill is passed over."""
        found: list[Line] = []
        if self._path.is_file():
            for text in self._path.read_text("utf-8").splitlines():
                try:
                    found.append(Line.from_json(json.loads(text)))
                except (ValueError, KeyError, TypeError):
                    continue
        return found

    def lines(self, code: str) -> dict[str, Line]:
        """Return the line of each case that holds for this code: its own, or an earlier one that is `witnessed`."""
        every = self.every()
        known = {(line.code, line.case.key): line.same for line in every}
        found: dict[str, Line] = {}
        told = {name: told_sum(ground) for name, ground in BY_NAME.items()}
        for line in every:
            if line.figures.get("told", "") != told.get(line.case.ground, ""):
                continue
            if line.code == code or (_witnessed(line, code, known) and not _is_of(found.get(line.case.key), code)):
                found[line.case.key] = line
        return found

    def add(self, line: Line) -> None:
        """Append a finished run."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line.to_json(), separators=(",", ":")) + "\n")


def run_case(case: Case, folder: Path, code: str) -> Line:
    """Run one case."""
    trace, cluster = loaded(case.ground, folder)
    ground = BY_NAME[case.ground]
    workloads = ROOT / MADE / ground.workloads if ground.workloads is not None else None
    setting = Setting(
        case.policy, case.advice_in(folder), case.seed, weighed=case.weighed, workloads=workloads, recalls=not case.profile_again
    )  # fmt: skip
    outcome, took = outcome_of(trace, cluster, setting)
    figures = measured(trace.jobs, cluster, outcome) | {"cpu_s": round(took, 3)}
    if workloads is not None:
        figures["told"] = told_sum(ground)
    jcts = sorted(end - job.submit_s for job, end in zip(trace.jobs, outcome.end_s, strict=True) if end is not None)
    quantiles = [round(percentile(jcts, n / (QUANTILES - 1)) or 0.0, 1) for n in range(QUANTILES)]
    return Line(code, case, figures, _blocks(trace, cluster, outcome), quantiles)


def _blocks(trace: Trace, cluster: Cluster, outcome: Outcome) -> dict[str, tuple[int, float]]:
    out: dict[str, tuple[int, float]] = {}
    for job, end in zip(trace.jobs, outcome.end_s, strict=True):
        if job.local is not None:
            when = "week {1:02}".format(*datetime.fromisoformat(job.local).isocalendar())
        else:
            when = f"day {int(job.submit_s // DAY_S)}"
        block = f"{'' if cluster.one_pool else job.pool}/{when}"
        jobs, total = out.get(block, (0, 0.0))
        out[block] = (jobs + (end is not None), total + (end - job.submit_s if end is not None else 0.0))
    return dict(sorted(out.items()))


def run_missing(
    wanted: Iterable[Case], ledger: Ledger, folder: Path, code: str, *, processes: int, seconds: float, told: Callable[[str], None]
) -> None:  # fmt: skip
    """Run the cases, some at a time, in niced processes; each is in the ledger as it ends. After `seconds` no further one is begun."""
    began = monotonic()
    queue: Iterator[Case] = iter(wanted)
    with ProcessPoolExecutor(processes, initializer=os.nice, initargs=(19,)) as pool:
        running: dict[Future[Line], Case] = {}
        while True:
            while len(running) < processes and monotonic() - began < seconds and (case := next(queue, None)) is not None:  # fmt: skip
                running[pool.submit(run_case, case, folder, code)] = case
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                case = running.pop(done)
                try:
                    line = done.result()
                except BrokenProcessPool:
                    told(f"a process was killed at {case.key}: nothing more is run, what is finished counts")
                    return
                except Exception as error:  # noqa: BLE001 - one run that fails is said and missing; the others go on
                    told(f"{case.key}: failed: {error!r}")
                    continue
                ledger.add(line)
                told(f"{case.key}: {line.figures['avg_jct_s']:,.1f} s, {line.figures['cpu_s']} CPU s")
