"""Users, their programs, and what they submit: Philly's arrivals, Pollux's applications, and edits in between.

Declared here, and nowhere hidden: users belong to Philly's virtual clusters; a submission repeats its program as it is, edits it, or is
a new program; the run-to-run noise; and how jobs end, after the table that the authors of AcmeTrace publish for Philly: 9.0 % cancelled
and 30.5 % failed, which hold 29.4 % and 38.6 % of the GPU time.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.semantic_trace.applications import APPLICATIONS, Plan, Profiles

REPEATS, EDITS = 0.50, 0.32  # the rest are new programs
NOISE = 0.05  # sigma of the logarithm of a run time, from run to run
CANCELLED, CANCELLED_TIME = 0.090, 0.294  # of the jobs, of the GPU time (Philly in AcmeTrace's cluster summary)
FAILED, FAILED_TIME = 0.305, 0.386
TRUNCATED = (0.05, 1.0)  # a job that does not complete ends at a part of its planned time, uniform in between
USERS_PER_1000_JOBS = 20
GPUS_MAX = 16
PLANNED_MAX_S = 14 * 86_400.0
WORDS = ("base", "sweep", "ablation", "final", "debug", "v2", "long", "paper", "try", "warm", "night", "ref")


@dataclass(frozen=True, slots=True)
class Arrival:
    """An arrival of Philly: when, for which virtual cluster, how many GPUs."""

    submit_s: float
    vc: str
    gpus: int


@dataclass(slots=True)
class Program:
    """One program of one user; the family of its style, and the seed of its names and comments."""

    user: str
    name: str
    family: str
    seed: int
    plan: Plan
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Submission:
    """One job."""

    job_id: str
    submit_s: float
    vc: str
    user: str
    name: str
    program: str
    family: str
    seed: int
    plan: Plan
    planned_s: float
    duration_s: float
    state: str


def arrivals(path: Path, first: str, last: str, jobs: int, seed: int) -> list[Arrival]:
    """Return some of Philly's arrivals with first <= local time < last, in their order."""
    with path.open(encoding="utf-8") as file:
        found = [
            Arrival(float(r["submit_s"]), r["vc"], int(r["num_gpus"]))
            for r in csv.DictReader(file)
            if first <= r["submit_local"] < last
        ]
    chosen = random.Random(f"arrivals {seed}")  # noqa: S311 - a workload, no secret
    kept = sorted(chosen.sample(range(len(found)), min(jobs, len(found))))
    out = [found[n] for n in kept]
    return [replace(a, submit_s=a.submit_s - out[0].submit_s) for a in out]


def submissions(given: list[Arrival], families: tuple[str, ...], profiles: Profiles, seed: int) -> list[Submission]:
    """Return what is submitted at these arrivals."""
    maker = _Maker(families, profiles, random.Random(f"workload {seed}"))  # noqa: S311 - see above
    users = _users(given, maker.draw)
    planned = []
    for number, arrival in enumerate(given):
        program = maker.program(maker.draw.choice(users[arrival.vc]), arrival.gpus)
        program.runs += 1
        run_s = profiles.run_s(program.plan) * exp(maker.draw.gauss(0.0, NOISE))
        planned.append(
            Submission(
                f"st{number:06d}", arrival.submit_s, arrival.vc, program.user, f"{program.name}-{program.runs}",
                f"{program.user}/{program.name}", program.family, program.seed, program.plan, run_s, run_s, "completed",
            )
        )  # fmt: skip
    return _ended(planned, maker.draw)


def _users(given: list[Arrival], draw: random.Random) -> dict[str, list[str]]:
    counts: dict[str, int] = {}
    for arrival in given:
        counts[arrival.vc] = counts.get(arrival.vc, 0) + 1
    users: dict[str, list[str]] = {}
    for vc, count in sorted(counts.items()):
        own = max(2, count * USERS_PER_1000_JOBS // 1000)
        weighted = [f"u{vc[:3]}{n:02d}" for n in range(own) for _ in range(max(1, int(draw.paretovariate(1.2))))]
        users[vc] = weighted
    return users


class _Maker:
    def __init__(self, families: tuple[str, ...], profiles: Profiles, draw: random.Random) -> None:
        self.draw = draw
        self._families, self._profiles = families, profiles
        self._programs: dict[str, list[Program]] = {}

    def program(self, user: str, gpus: int) -> Program:
        """Return what the user submits now, as it is now."""
        own = self._programs.setdefault(user, [])
        fitting = [p for p in own if p.plan.replicas == min(gpus, GPUS_MAX)]
        turn = self.draw.random()
        if fitting and turn < REPEATS:
            return self.draw.choice(fitting[-4:])
        if own and turn < REPEATS + EDITS:
            program = self.draw.choice(own[-6:])
            program.plan = self._edited(program.plan, gpus)
            return program
        application = self.draw.choices(list(APPLICATIONS), [a.weight for a in APPLICATIONS.values()])[0]
        name = f"{self.draw.choice(_NAMES[application])}-{self.draw.choice(WORDS)}"
        program = Program(user, name, self.draw.choice(self._families), self.draw.randrange(10**9), self._plan(application, gpus))  # fmt: skip
        own.append(program)
        return program

    def _plan(self, application: str, gpus: int) -> Plan:
        facts = APPLICATIONS[application]
        replicas = min(gpus, GPUS_MAX)
        batch = self.draw.choice([b for b in facts.batches if b >= replicas])
        epochs = max(1, round(facts.epochs_max * self.draw.uniform(0.2, 1.3)))
        fraction = 1.0 if self.draw.random() < 0.6 else round(self.draw.uniform(0.1, 0.95), 2)
        plan = Plan(application, replicas, batch, epochs, fraction, None, round(10 ** self.draw.uniform(-4, -1), 5))
        if self.draw.random() < 0.3 and fraction == 1.0:
            plan = replace(plan, target=self._target(application, batch), epochs=facts.epochs_max)
        return plan

    def _target(self, application: str, batch: int) -> float:
        early, best = self._profiles.targets(application, batch)
        return round(early + (best - early) * self.draw.uniform(0.5, 0.98), 4)

    def _edited(self, plan: Plan, gpus: int) -> Plan:
        facts = APPLICATIONS[plan.application]
        out = replace(plan, replicas=min(gpus, GPUS_MAX))
        what = self.draw.choice(("epochs", "batch", "learning_rate", "fraction", "target"))
        if what == "batch" or out.batch < out.replicas:
            out = replace(out, batch=self.draw.choice([b for b in facts.batches if b >= out.replicas]))
        if what == "epochs" and out.target is None:
            out = replace(out, epochs=max(1, round(out.epochs * self.draw.uniform(0.5, 2.0))))
        elif what == "learning_rate":
            out = replace(out, learning_rate=round(out.learning_rate * self.draw.choice((0.3, 0.5, 2.0, 3.0)), 6))
        elif what == "fraction" and out.target is None:
            out = replace(out, fraction=round(self.draw.uniform(0.1, 1.0), 2))
        elif what == "target" and out.target is not None:
            out = replace(out, target=self._target(out.application, out.batch))
        return out


_NAMES = {
    "cifar10": ("cifar", "resnet18", "img-cls", "baseline"),
    "ncf": ("ncf", "recsys", "movielens", "ranker"),
    "deepspeech2": ("asr", "speech", "ds2", "an4"),
    "bert": ("squad", "qa", "bert-ft", "reader"),
    "yolov3": ("yolo", "detect", "voc", "boxes"),
    "imagenet": ("imagenet", "rn50", "pretrain", "backbone"),
}


def _ended(planned: list[Submission], draw: random.Random) -> list[Submission]:
    """Draw who is cancelled and who fails: in the published numbers, preferring GPU time so far that its published shares come out."""
    sizes = [max(s.planned_s * s.plan.replicas, 2.0) for s in planned]
    luck = [(draw.random(), draw.random(), draw.uniform(*TRUNCATED)) for _ in planned]
    best: tuple[float, list[Submission]] | None = None
    for first in _POWERS:
        for second in _POWERS:
            tried = _with_ends(planned, sizes, luck, first, second)
            shares = shares_of(tried)
            miss = abs(shares["cancelled"][1] - CANCELLED_TIME) + abs(shares["failed"][1] - FAILED_TIME)
            if best is None or miss < best[0]:
                best = (miss, tried)
    assert best is not None
    return best[1]


_POWERS = (-0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def _with_ends(planned: list[Submission], sizes: list[float], luck: list[Any], first: float, second: float) -> list[Submission]:  # fmt: skip
    """Choose without replacement, with weights size ** power (Efraimidis and Spirakis, IPL 97(5), 2006)."""
    everybody = range(len(planned))
    order = sorted(everybody, key=lambda n: log(max(luck[n][0], 1e-12)) / sizes[n] ** first, reverse=True)
    cancelled = set(order[: round(CANCELLED * len(planned))])
    left = [n for n in everybody if n not in cancelled]
    left.sort(key=lambda n: log(max(luck[n][1], 1e-12)) / sizes[n] ** second, reverse=True)
    failed = set(left[: round(FAILED * len(planned))])
    out = []
    for number, job in enumerate(planned):
        state = "cancelled" if number in cancelled else "failed" if number in failed else "completed"
        whole = min(job.planned_s, PLANNED_MAX_S)
        duration = max(1.0, round(whole if state == "completed" else whole * luck[number][2]))
        out.append(replace(job, duration_s=duration, state=state))
    return out


def shares_of(jobs: list[Submission]) -> dict[str, tuple[float, float]]:
    """Return by state the share of the jobs and the share of the GPU time."""
    total = sum(j.duration_s * j.plan.replicas for j in jobs)
    return {
        state: (
            sum(j.state == state for j in jobs) / len(jobs),
            sum(j.duration_s * j.plan.replicas for j in jobs if j.state == state) / total,
        )
        for state in ("completed", "cancelled", "failed")
    }
