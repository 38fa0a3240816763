"""What each kind of knowledge is worth: `python -m benchmarks.semantic_trace.ladder OUT --traces DIR [--page FILE]`.

Run times are predicted at submission, refitted at the ends of equal spans of time on the jobs that had ended by then; the first span
predicts nothing and is not scored. The same learner stands on every step of the ladder. Scores: R2 of the logarithm, the share of pairs in
the right order, within a factor of two, the pinball loss of the median in log seconds; then the policies' average JCT with the
predictions as raw order keys. Intervals are the 2.5 and 97.5 % of a bootstrap over users.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.semantic_trace import knowledge
from benchmarks.semantic_trace.applications import Plan, Profiles
from benchmarks.semantic_trace.as_it_runs import answers
from benchmarks.semantic_trace.knowledge import Job

SPANS = 8
SEED = 0
RESAMPLES = 200
SEEN = 0.05  # of its run, after which a job's own progress is believed
PAIRS = 20_000
TREES = 150
KNOWN_MIN = 50
PARTS = ("all", "again", "new", "unseen", "controls", "worth")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the ladder: its name and the predicted log seconds of each job, NaN where it says nothing."""

    name: str
    predicted: np.ndarray


def main() -> int:
    """Climb the ladder, print it, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts of the page, with commas")
    given = parser.parse_args()
    jobs = knowledge.load(given.trace)
    summary = json.loads((given.trace / "summary.json").read_text("utf-8"))
    climbed = Ladder(jobs, given.trace, Profiles(given.traces / "pollux-osdi21" / "profiles"))
    text = page(climbed, summary, given.trace, given.parts.split(","))
    print(text)
    if given.page is not None:
        given.page.write_text(text, encoding="utf-8")
    return 0


class Ladder:
    """The steps over one trace."""

    def __init__(self, jobs: list[Job], folder: Path, profiles: Profiles) -> None:
        self.jobs = jobs
        self.truth = np.array([log(max(j.duration_s, 1.0)) for j in jobs])
        first, last = jobs[0].submit_s, jobs[-1].submit_s
        self.moments = [first + (last - first) * n / SPANS for n in range(1, SPANS)]
        self.span = np.array(knowledge.position(jobs, self.moments))
        self.ends = np.array([j.submit_s + j.duration_s for j in jobs])
        gpus = {j.bundle: j.gpus for j in jobs}
        self.source = {name: made for name, made in knowledge.bundles(folder).items() if name in gpus}
        self.fields = _cached(folder / "fields.json", lambda: knowledge.fields_of(self.source, gpus))
        self.folder, self._gpus, self._profiles = folder, gpus, profiles

    def steps(self) -> list[Step]:
        """Return every step, lowest first."""
        jobs, fields = self.jobs, self.fields
        none = self.learned(np.array([[j.gpus] for j in jobs], dtype=float) * 0)
        static = knowledge.static(jobs, fields)
        past = np.hstack([static, knowledge.history(jobs, fields)])
        with_past, alone = self.learned(past), self.learned(static)
        itself = [a.middle for a in answers(jobs, fields, self.source)]
        return [
            Step("no advice (the pool's median)", none),
            Step("metadata: medians by user and name", knowledge.group_medians(jobs)),
            Step("metadata, learned", self.learned(knowledge.metadata(jobs))),
            Step("TF-IDF of the raw source, learned", self.learned(knowledge.raw_text(jobs, self.source))),
            Step("static analysis, learned", alone),
            *self.with_model(alone),
            Step("static analysis: steps from the code x a learned step time", self.by_steps(static)),
            Step("static analysis and history", with_past),
            Step(f"and progress, after {SEEN:.0%} of the run", self.progress(with_past)),
            Step("history-estimator as it runs", np.array(itself)),
            Step("the true workload, learned", self.learned(knowledge.workload(jobs))),
            Step("the true run time", self.truth),
        ]

    def with_model(self, without: np.ndarray) -> list[Step]:
        """Return the step `+ model` where a model was asked: what it filled beside what static analysis tells."""
        path = self.folder / "model.json"
        if not path.exists():
            return []
        asked = json.loads(path.read_text("utf-8"))
        filled = {name: row["filled"] for name, row in asked["bundles"].items() if row["filled"]}
        name = f"static analysis + {asked['model']} ({len(filled)} of {len(asked['bundles'])} asked bundles gained a field)"
        if not filled:
            return [Step(name, without)]
        fields = {bundle: filled.get(bundle, {}) | known for bundle, known in self.fields.items()}
        return [Step(name, self.learned(knowledge.static(self.jobs, fields)))]

    def controls(self) -> list[Step]:
        """Return static analysis where what it reads is spoilt, and metadata where names mislead."""
        draw = np.random.default_rng(SEED)
        jobs = self.jobs
        order = draw.permutation(len(jobs))
        shuffled = [_with(j, bundle=jobs[o].bundle) for j, o in zip(jobs, order, strict=True)]
        bare = {name: knowledge.stripped(made) for name, made in self.source.items()}
        moved = {name: knowledge.moved(made, n) for n, (name, made) in enumerate(self.source.items())}
        misled = [_with(j, name=jobs[o].name) for j, o in zip(jobs, order, strict=True)]
        return [
            Step("static analysis, bundles shuffled among the jobs", self.learned(knowledge.static(shuffled, self.fields))),
            Step("static analysis, comments and identifiers stripped", self.learned(knowledge.static(jobs, _cached(self.folder / "fields-stripped.json", lambda: knowledge.fields_of(bare, self._gpus))))),
            Step("static analysis, file names replaced", self.learned(knowledge.static(jobs, _cached(self.folder / "fields-moved.json", lambda: knowledge.fields_of(moved, self._gpus))))),
            Step("metadata, job names shuffled among the jobs", self.learned(knowledge.metadata(misled))),
        ]  # fmt: skip

    def by_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return steps from the code x a learned step time; where the code does not tell its steps, the run time itself is learned."""
        given, told = self.stated_steps()
        timed = self.learned(rows, given=given, only=told)
        return timed if told.all() else np.where(told, timed, self.learned(rows))

    def stated_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the logarithm of the steps that each job's code tells (the median where it does not), and where it does."""
        steps = np.array([_steps(self.fields[j.bundle]) for j in self.jobs])
        return np.where(np.isnan(steps), np.nanmedian(steps), steps), ~np.isnan(steps)

    def learned(
        self,
        rows: np.ndarray,
        exclude: np.ndarray | None = None,
        given: np.ndarray | None = None,
        only: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the predictions of a median regression by boosted trees, refitted at each moment on what had ended by then.

        What is `given` (log seconds a job) is taken off before the fit and added again; `only` these jobs are learned from.
        """
        out = np.full(len(self.jobs), np.nan)
        for known, now in self.spans(exclude, only):
            out[now] = self.told(rows, known, now, given)
        return out

    def spans(
        self, exclude: np.ndarray | None = None, only: np.ndarray | None = None, every: int = 1
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each moment (or every so many) which jobs are known by then, and which are submitted before the next."""
        for span in range(1, len(self.moments) + 1, every):
            known = self.ends <= self.moments[span - 1]
            if exclude is not None:
                known &= ~exclude
            if only is not None:
                known &= only
            now = (self.span >= span) & (self.span < span + every)
            if known.sum() >= KNOWN_MIN and now.any():
                yield known, now

    def told(
        self, rows: np.ndarray, known: np.ndarray, now: np.ndarray, given: np.ndarray | None = None, trees: int = TREES
    ) -> np.ndarray:
        """Return what the learner says of the jobs of `now` when it has learned from the `known` ones."""
        offset = np.zeros(len(self.jobs)) if given is None else given
        left = self.truth - offset
        columns = [n for n in range(rows.shape[1]) if len(np.unique(rows[known][~np.isnan(rows[known][:, n]), n])) > 1]
        if not columns:
            return np.median(left[known]) + offset[now]
        model = HistGradientBoostingRegressor(
            loss="absolute_error", max_iter=trees, learning_rate=0.08, min_samples_leaf=10, random_state=SEED
        )
        return model.fit(rows[known][:, columns], left[known]).predict(rows[now][:, columns]) + offset[now]

    def progress(self, before: np.ndarray) -> np.ndarray:
        """Return what a job's own printed progress says: the planned end at its measured speed. Who stops at a target ends earlier than that."""
        out = before.copy()
        for n, job in enumerate(self.jobs):
            t = job.truth
            plan = Plan(t["application"], job.gpus, int(t["batch"]), int(t["epochs"]), float(t["fraction"]))
            out[n] = log(max(self._profiles.run_s(plan), 1.0))
            if t["target"]:
                out[n] = min(out[n], before[n]) if not np.isnan(before[n]) else out[n]
        return out

    def scored(self, predicted: np.ndarray, chosen: np.ndarray, against: np.ndarray | None = None) -> dict[str, Any]:
        """Return the scores over the chosen jobs, with the interval of R2 over users, and of how far it is above another's (paired)."""
        known = chosen & ~np.isnan(predicted) & (self.span > 0)
        truth, told = self.truth[known], predicted[known]
        if len(truth) < 30:
            return {"jobs": len(truth)}
        draw = np.random.default_rng(SEED)
        users = np.array([j.user for j in self.jobs])[known]
        names = np.unique(users)
        places = {u: np.flatnonzero(users == u) for u in names}
        other = told if against is None else against[known]
        both = ~np.isnan(other)
        resampled, above = [], []
        for _ in range(RESAMPLES):
            rows = np.concatenate([places[u] for u in draw.choice(names, len(names))])
            resampled.append(_r2(truth[rows], told[rows]))
            rows = rows[both[rows]]
            above.append(_r2(truth[rows], told[rows]) - _r2(truth[rows], other[rows]))
        a, b = draw.integers(0, len(truth), (2, PAIRS))
        differ = truth[a] != truth[b]
        a, b = a[differ], b[differ]
        right = np.sign(truth[a] - truth[b]) * np.sign(told[a] - told[b])
        return {
            "jobs": len(truth),
            "r2_log": _r2(truth, told),
            "r2_interval": [float(v) for v in np.percentile(resampled, (2.5, 97.5))],
            "above": [
                _r2(truth[both], told[both]) - _r2(truth[both], other[both]),
                *(float(v) for v in np.percentile(above, (2.5, 97.5))),
            ],
            "order": float(((right > 0) + 0.5 * (right == 0)).mean()),
            "within_2x": float((np.abs(truth - told) <= log(2)).mean()),
            "pinball": float(0.5 * np.abs(truth - told).mean()),
        }


def _steps(fields: dict[str, Any]) -> float:
    """Return the logarithm of the steps that the code tells, NaN where it does not."""
    steps = fields.get("total_steps")
    return log(steps) if isinstance(steps, (int, float)) and steps > 0 else float("nan")


def _r2(truth: np.ndarray, told: np.ndarray) -> float:
    spread = float(((truth - truth.mean()) ** 2).sum())
    return 1 - float(((truth - told) ** 2).sum()) / spread if spread else 0.0


def _with(job: Job, **changed: Any) -> Job:
    return Job(**{f: changed.get(f, getattr(job, f)) for f in Job.__slots__})


def _cached(path: Path, make: Callable[[], dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    if path.exists():
        found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
        return found
    made = make()
    path.write_text(json.dumps(made), encoding="utf-8")
    return json.loads(path.read_text("utf-8"))  # type: ignore[no-any-return]


# --- the page ----------------------------------------------------------------------------------------------------------


def page(climbed: Ladder, summary: dict[str, Any], folder: Path, wanted: Sequence[str] = PARTS) -> str:
    """Return the ladder as a page. Each part is kept in the folder (`part-NAME.md`) and made again where it is not there."""
    from benchmarks.semantic_trace import unseen  # noqa: PLC0415 - it builds on this module
    from benchmarks.semantic_trace.closed_loop import worth  # noqa: PLC0415 - the simulator is wanted here only
    from benchmarks.semantic_trace.model_step import summary as of_model  # noqa: PLC0415

    everybody = np.ones(len(climbed.jobs), dtype=bool)
    again = np.array([j.truth["recurring"] == "1" for j in climbed.jobs])
    steps = cache(climbed.steps)
    model = folder / "model.json"
    about = f"{summary['jobs']} jobs of {summary['users']} users, {summary['bundles']} distinct bundles, {summary['recurring']:.1%} recurring."
    asked = of_model(json.loads(model.read_text("utf-8"))) if model.exists() else "No model was in the loop: that step, between static analysis and history, is absent."  # fmt: skip
    parts: dict[str, Callable[[], list[str]]] = {
        "all": lambda: table("All jobs", climbed, steps(), everybody),
        "again": lambda: table("Recurring jobs: their (application, batch, replicas) had ended before", climbed, steps(), again),
        "new": lambda: table("Non-recurring jobs: their (application, batch, replicas) had not ended before", climbed, steps(), ~again),
        "unseen": lambda: unseen.section(climbed),
        "controls": lambda: table("Controls", climbed, climbed.controls(), everybody),
        "worth": lambda: worth(climbed, steps(), summary, folder),
    }  # fmt: skip
    lines = [f"## The ladder on the {summary['split']} families", "", about, "", f"The step `+ model`: {asked}", ""]
    for name, make in ((n, parts[n]) for n in PARTS if n in wanted):
        path = folder / f"part-{name}.md"
        if not path.exists():
            path.write_text("\n".join(make()) + "\n", encoding="utf-8")
            print(f"{name}: done", file=sys.stderr, flush=True)
        lines.append(path.read_text("utf-8"))
    return "\n".join(lines)


def table(title: str, climbed: Ladder, steps: list[Step], chosen: np.ndarray, against: Step | None = None) -> list[str]:
    """Return a table of scores; with how far each is above another step, where one is named."""
    last = f" R² above {against.name} (95 %) |" if against is not None else ""
    lines = [f"### {title}", "", f"| known | jobs | R² of the log (95 %) | order | within 2x | pinball |{last}", "| --- | --- | --- | --- | --- | --- |" + (" --- |" if last else "")]  # fmt: skip
    for step in steps:
        s = climbed.scored(step.predicted, chosen, against.predicted if against is not None else None)
        if "r2_log" not in s:
            lines.append(f"| {step.name} | {s['jobs']} | too few |  |  |  |" + ("  |" if last else ""))
            continue
        (low, high), (above, least, most) = s["r2_interval"], s["above"]
        paired = f" {above:+.2f} ({least:+.2f} to {most:+.2f}) |" if last else ""
        lines.append(f"| {step.name} | {s['jobs']} | {s['r2_log']:.2f} ({low:.2f} to {high:.2f}) | {s['order']:.3f} | {s['within_2x']:.1%} | {s['pinball']:.3f} |{paired}")  # fmt: skip
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main())
