"""One application left out: what each kind of knowledge says of a program whose like never ran here.

No job of the predicted job's application is ever learned from, be it by the learner, by its guard, by the cluster's pace, or by the pool's
median that they are measured against. `python -m benchmarks.semantic_trace.unseen OUT --traces DIR` makes this part of the ladder alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from benchmarks.semantic_trace import knowledge
from benchmarks.semantic_trace.applications import APPLICATIONS, Profiles
from benchmarks.semantic_trace.as_it_runs import answers
from benchmarks.semantic_trace.ladder import SEED, SEEN, Ladder, Step, table
from schedmate.services.history_estimator import published
from schedmate.services.history_estimator.novelty import guard
from schedmate.services.history_estimator.paces import JOBS_EACH, Pace, fitted
from schedmate.services.history_estimator.work import STEM, Work, kind_of, work_of

Ran = list[tuple[Work, float]]
BASELINE = "the others' median"
GUARD_TREES, GUARD_ROWS = 30, 500
CLUSTERS = 240
REFIT_EVERY = 2  # moments: six applications, five tables and their guards are fitted


def section(climbed: Ladder) -> list[str]:
    """Return this part of the page."""
    everybody = np.ones(len(climbed.jobs), dtype=bool)
    unseen = Unseen(climbed)
    steps = unseen.steps()
    baseline = next(s for s in steps if s.name == BASELINE)
    return [*table("Leave one application out", climbed, steps, everybody, baseline), *unseen.notes(), ""]


class Unseen:
    """The steps with one application left out, each application in turn."""

    def __init__(self, climbed: Ladder) -> None:
        self._climbed = climbed
        self._jobs = climbed.jobs
        self._application = np.array([j.truth["application"] for j in climbed.jobs])
        self._work = [work_of(climbed.fields[j.bundle], j.gpus) for j in climbed.jobs]

    def steps(self) -> list[Step]:
        """Return every step. What was predicted is kept in the trace's folder, and made again where it is not there."""
        climbed, jobs = self._climbed, self._jobs
        asked = self._kept("itself", self._as_it_runs)
        after = [
            Step("published work x one speed of the cluster", self._kept("speed", lambda: self._timed(self._work, _one_speed))),
            Step("published work x the cluster's pace", self._kept("pace", lambda: self._timed(self._work))),
            Step("the same by the letter: torchvision's stem on CIFAR, AN4's utterances", self._kept("letter", lambda: self._timed(self._by_the_letter()))),
            Step("history-estimator as it runs", asked),
            Step(f"and progress, after {SEEN:.0%} of the run", climbed.progress(asked)),
        ]  # fmt: skip
        out = [
            Step("no advice (the pool's median, of all)", climbed.learned(np.zeros((len(jobs), 1)))),
            Step(BASELINE, self._others_median()),
        ]
        raw, static = knowledge.raw_text(jobs, climbed.source), knowledge.static(jobs, climbed.fields)
        kinds = _numbered([kind_of(climbed.fields[j.bundle]) for j in jobs])
        learned = [
            ("static analysis, learned", static, kinds, None),
            ("static analysis: steps from the code x a learned step time", static, kinds, climbed.stated_steps()[0]),
            ("metadata, learned", knowledge.metadata(jobs), _numbered([j.tag for j in jobs]), None),
            ("TF-IDF of the raw source, learned", raw, _clustered(raw[:, 1:]), None),
            (
                "the true workload, learned",
                knowledge.workload(jobs),
                _numbered([j.truth["application"] for j in jobs]),
                None,
            ),
        ]
        for name, rows, kind, offset in learned:
            both = self._kept(name.replace(" ", "-"), lambda r=rows, k=kind, o=offset: np.array(self._guarded(r, k, o)))  # type: ignore[misc]
            out += [Step(name, both[0]), Step(f"{name}, guarded", both[1])]
        return [*out, *after]

    def _kept(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        path = self._climbed.folder / f"unseen-{name}.npy"
        if not path.exists():
            np.save(path, make())
            print(f"{name}: done", file=sys.stderr, flush=True)
        kept: np.ndarray = np.load(path)
        return kept

    def notes(self) -> list[str]:
        """Return, of history-estimator as it runs, on what its estimates rested and how often the truth lay inside."""
        kept = json.loads((self._climbed.folder / "unseen-answers.json").read_text("utf-8"))
        shares = ", ".join(
            f"`{basis}` {count / sum(kept['bases'].values()):.0%}" for basis, count in kept["bases"].items()
        )
        return [f"History-estimator's answers rested on {shares}; of the jobs that completed, {kept['inside']:.0%} lay between its p10 and p90 (aim: 80 %)."]  # fmt: skip

    def _others_median(self) -> np.ndarray:
        out = np.full(len(self._jobs), np.nan)
        for one in APPLICATIONS:
            mine = self._application == one
            for known, submitted in self._climbed.spans(mine, every=REFIT_EVERY):
                out[submitted & mine] = np.median(self._climbed.truth[known])
        return out

    def _guarded(self, rows: np.ndarray, kinds: np.ndarray, given: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return what the learner says of left out applications, and what is left of it behind the guard."""
        climbed = self._climbed
        plain, guarded = np.full(len(self._jobs), np.nan), np.full(len(self._jobs), np.nan)
        for one in APPLICATIONS:
            mine = self._application == one
            for known, submitted in climbed.spans(mine, every=REFIT_EVERY):
                now = submitted & mine
                if not now.any():
                    continue
                plain[now] = climbed.told(rows, known, now, given)
                newest = np.flatnonzero(known)[-GUARD_ROWS:]

                def without(held: np.ndarray, newest: np.ndarray = newest) -> np.ndarray:
                    taught, asked = (np.zeros(len(self._jobs), dtype=bool) for _ in range(2))
                    taught[newest[~held]], asked[newest[held]] = True, True
                    return climbed.told(rows, taught, asked, given, GUARD_TREES)

                level = float(np.median(climbed.truth[known]))
                found = guard(kinds[newest], np.full(len(newest), level), climbed.truth[newest], without)
                told = [
                    found.first_time(k, level, p) if found is not None else None
                    for k, p in zip(kinds[now], plain[now], strict=True)
                ]
                guarded[now] = [p if t is None else t[1] for p, t in zip(plain[now], told, strict=True)]
        return plain, guarded

    def _timed(self, work: list[Work | None], fit: Callable[[list[Ran]], Pace | None] = fitted) -> np.ndarray:
        """Return run times by published work, at the pace that completed jobs of the other applications show."""
        climbed = self._climbed
        completed = np.array([j.truth["state"] == "completed" for j in self._jobs])
        out = np.full(len(self._jobs), np.nan)
        for one in APPLICATIONS:
            mine = self._application == one
            for known, submitted in climbed.spans(mine, completed, REFIT_EVERY):
                kinds: dict[str, Ran] = {}
                for n in np.flatnonzero(known)[np.argsort(climbed.ends[known], kind="stable")]:
                    if (one_work := work[n]) is not None:
                        kinds.setdefault(one_work.kind, []).append((one_work, float(climbed.truth[n])))
                pace = fit([jobs[-JOBS_EACH:] for jobs in kinds.values()])
                for n in np.flatnonzero(submitted & mine):
                    if pace is not None and (asked := work[n]) is not None:
                        out[n] = pace.log_run_s(asked)
        return out

    def _by_the_letter(self) -> list[Work | None]:
        """Return the works where what the table reads into the source is not read into it."""
        an4 = published.DATA["an4"].seconds or published.UTTERANCE_S
        shares = {"cifar10": 1.0 / STEM, "deepspeech2": an4 / published.UTTERANCE_S}
        return [
            replace(w, flops=w.flops * shares.get(a, 1.0)) if w is not None else None
            for w, a in zip(self._work, self._application, strict=True)
        ]

    def _as_it_runs(self) -> np.ndarray:
        """Return what history-estimator says. It is not let learn trees, which cost minutes: of these jobs published work speaks before a guarded model."""
        out, said = np.full(len(self._jobs), np.nan), []
        for one in APPLICATIONS:
            found = answers(self._jobs, self._climbed.fields, self._climbed.source, left_out=one, learn=False)
            for n in np.flatnonzero(self._application == one):
                out[n] = found[n].middle
                said += [found[n]] if self._climbed.span[n] > 0 else []
        whole = [a for a in said if a.whole]
        told = {
            "bases": dict(Counter(a.basis for a in said).most_common()),
            "inside": sum(a.low <= a.truth <= a.high for a in whole) / max(len(whole), 1),
        }
        (self._climbed.folder / "unseen-answers.json").write_text(json.dumps(told), encoding="utf-8")
        return out


def _one_speed(kinds: list[Ran]) -> Pace | None:
    """Return the median, each kind one voice, of the FLOP/s that one GPU achieved, and nothing else."""
    slow = [float(np.median([log_s - log(w.steps * w.flops) for w, log_s in jobs])) for jobs in kinds]
    return Pace(0.0, exp(float(np.median(slow))), 0.0, 0.0, 0.0, 0.0, len(slow)) if slow else None


def _numbered(words: list[str | None]) -> np.ndarray:
    """Return a number for each word, NaN for none."""
    codes = {word: float(n) for n, word in enumerate(sorted({w for w in words if w is not None}))}
    return np.array([np.nan if w is None else codes[w] for w in words])


def _clustered(rows: np.ndarray) -> np.ndarray:
    """Return which of several groups of texts each belongs to: the kinds of one who reads no code. No run time is in it."""
    return KMeans(CLUSTERS, n_init=1, random_state=SEED).fit_predict(rows).astype(float)


def main() -> int:
    """Print this part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--traces", type=Path, required=True)
    given = parser.parse_args()
    jobs = knowledge.load(given.trace)
    text = "\n".join(section(Ladder(jobs, given.trace, Profiles(given.traces / "pollux-osdi21" / "profiles")))) + "\n"
    (given.trace / "part-unseen.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
