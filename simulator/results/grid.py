"""Which runs the results page is made of: grounds (a trace on a cluster), and on each the policies with the advice they can use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from schedmate.services.dispatcher.core.policy import policies
from schedmate.simulator.cluster import Cluster, from_list, from_table, uniform
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import usable
from schedmate.simulator.trace import Trace

FOLDER: Final = "$SCHEDMATE_TRACES"
"""Stands for the folder of the traces, in commands and in `column:` advice."""
MADE: Final = "results/semantic"
"""Where `make results` generates the semantic trace, from the repository's root; so it stands in commands."""
ROOT: Final = Path(__file__).resolve().parents[2]

SCHEDMATE: Final = "history"
"""SchedMate's own advice: history-estimator's, clamped and weighed by trust, as a live pool has it."""
ADVICE: Final = ("none", "constant", "random", "history", "noisy:1", "oracle")
NOISE_OF_OCTOBER: Final = f"column:{FOLDER}/philly-2017/qssf_predictions_oct.csv:pred_noise_s"


@dataclass(frozen=True, slots=True)
class Ground:
    """A trace on a cluster. `full`: every policy with all the advice that it can use; else only what peers are compared with."""

    name: str
    title: str
    trace: str
    nodes: int | None = None
    gpus_per_node: int = 8
    factor: float | None = None
    nodes_file: str | None = None
    window: tuple[str, str] | None = None
    full: bool = True
    workloads: str | None = None  # what is known of the jobs beside their rows: then the trace is a made one
    keys: tuple[str, ...] = ()  # raw order keys that stand beside SchedMate's advice, FILE:COLUMN each

    @property
    def file(self) -> str:
        """Return the trace as commands name it."""
        return f"{MADE if self.workloads else FOLDER}/{self.trace}"

    @property
    def command(self) -> str:
        """Return the command line up to the policy."""
        parts = ["schedmate", "simulate", self.file]
        if self.nodes is not None:
            parts += ["--nodes", str(self.nodes)]
            parts += ["--gpus-per-node", str(self.gpus_per_node)] if self.gpus_per_node != 8 else []  # noqa: PLR2004
        elif self.nodes_file is not None:
            parts += ["--nodes-file", f"{FOLDER}/{self.nodes_file}"]
        else:
            parts += ["--pools", f"{FOLDER}/{POOLS}", "--node-factor", str(self.factor)]
        if self.window is not None:
            parts += ["--from", self.window[0], "--to", self.window[1]]
        if self.workloads is not None:
            parts += ["--workloads", f"{MADE}/{self.workloads}"]
        return " ".join(parts)


LEARNED: Final = "learned.csv:learned_s"
"""The ladder's learned step of static analysis and history, of the semantic trace."""
PLANNED: Final = "planned.csv:planned_s"
"""How long each of its jobs would run if it were not cancelled and did not fail: its own plan, known exactly."""
POOLS: Final = "published-summaries/philly_vc.csv"
POLLUX_WORKLOADS: Final = range(1, 7)
SEMANTIC_NODES: Final = {"0.6": 28, "0.8": 21, "1.0": 17}
"""By offered load; the generated trace's `summary.json` must say the same."""
_OCTOBER: Final = "philly-2017/philly_2017_aug-oct.csv"
_WEEK: Final = "philly-week-peer/philly_week_20171001.csv"
_DAYS: Final = ("2017-10-01", "2017-11-01")

GROUNDS: Final = (
    Ground("tiresias-60", "Tiresias' 60 jobs, 4 nodes x 4 GPUs", "tiresias-60/60_job.csv", nodes_file="tiresias-60/n4g4.csv", full=False),
    *(
        Ground(f"pollux-{n}", f"Pollux' workload {n}, 16 nodes x 4 GPUs", f"pollux-osdi21/workload-{n}.csv", nodes=16, gpus_per_node=4,
               full=False)
        for n in POLLUX_WORKLOADS
    ),
    Ground("muri-3", "Muri's trace 3, 8 nodes x 8 GPUs", "muri-sigcomm22/trace3.csv", nodes=8, full=False),
    Ground("muri-1", "Muri's trace 1, 8 nodes x 8 GPUs", "muri-sigcomm22/trace1.csv", nodes=8, full=False),
    Ground("week-54", "the peer week, 54 nodes x 8 GPUs", _WEEK, nodes=54),
    Ground("week-72", "the peer week, 72 nodes x 8 GPUs", _WEEK, nodes=72),
    *(
        Ground(f"semantic-{load}", f"the semantic trace (test families), offered load {load}", "jobs.csv", nodes=nodes, gpus_per_node=4,
               workloads="workloads.jsonl", keys=(LEARNED, PLANNED))
        for load, nodes in SEMANTIC_NODES.items()
    ),
    Ground("october-0.75", "Philly October, node factor 0.75", _OCTOBER, factor=0.75, window=_DAYS),
    Ground("october-1.0", "Philly October, node factor 1.0", _OCTOBER, factor=1.0, window=_DAYS),
    Ground("october-0.5", "Philly October, node factor 0.5", _OCTOBER, factor=0.5, window=_DAYS),
)  # fmt: skip
"""In the order in which they are run: what is short first, and of October the standard setting (f = 0.75) first."""

BY_NAME: Final = {ground.name: ground for ground in GROUNDS}

_PEERS_ONLY: Final = {
    "tiresias-60": (("fifo", "none"), ("tiresias", "none")),
    **{f"pollux-{n}": (("tiresias", "none"),) for n in POLLUX_WORKLOADS},
    **{f"muri-{n}": (("srtf", "oracle"), ("tiresias", "none")) for n in (1, 3)},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the page."""

    ground: str
    policy: str
    advice: str
    seed: int = 0
    weighed: bool = False  # raw advice, clamped and weighed by trust
    profile_again: bool = False  # history does not tell how the same job used its GPUs

    @property
    def key(self) -> str:
        """A name that no other case has."""
        return "/".join(
            (
                self.ground,
                self.policy,
                self.advice,
                str(self.seed),
                "weighed" if self.weighed else "again" if self.profile_again else "",
            )
        )

    @property
    def label(self) -> str:
        """The advice as the page calls it."""
        name = self.advice.rsplit(":", maxsplit=1)[-1] if self.advice.startswith("column:") else self.advice
        if self.profile_again:
            return f"{name} (profiled again)"
        return f"{name} (clamped)" if self.weighed else f"{name} (raw)" if self.advice.startswith("column:") else name

    @property
    def command(self) -> str:
        """Return the command line that repeats it."""
        end = f" --seed {self.seed}" if self.seed else ""
        end += " --profile-again" if self.profile_again else ""
        return f"{BY_NAME[self.ground].command} --policy {self.policy} --advice {self.advice}{end}{' --weighed' if self.weighed else ''}"

    def advice_in(self, folder: Path) -> str:
        """Return the advice with the real folder in place of its name."""
        return self.advice.replace(FOLDER, str(folder)).replace(f"column:{MADE}", f"column:{ROOT / MADE}")

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            name: getattr(self, name) for name in ("ground", "policy", "advice", "seed", "weighed", "profile_again")
        }


def cases() -> list[Case]:
    """Return every run that the page wants: each policy that there is, with the advice that it can use."""
    return [case for ground in GROUNDS for case in _cases_on(ground)]


def _cases_on(ground: Ground) -> Iterator[Case]:
    if not ground.full:
        for policy, advice in _PEERS_ONLY[ground.name]:
            if policy in policies():
                yield Case(ground.name, policy, advice)
        return
    for name, made in policies().items():
        for advice in _advice_on(ground) if made().uses_estimates else ("none",):
            yield Case(ground.name, name, advice)
        if ground.workloads is not None and made().packs:
            yield Case(ground.name, name, SCHEDMATE, profile_again=True)
    if ground.workloads is not None:
        return
    columns = ("column:pred_noise_s", "column:pred_causal_s") if ground.window is None else (NOISE_OF_OCTOBER,)
    for column in columns:
        yield Case(ground.name, "qssf", column)
        yield Case(ground.name, "qssf", column, weighed=True)


def _advice_on(ground: Ground) -> tuple[str, ...]:
    if not ground.keys:
        return ADVICE
    return ("none", SCHEDMATE, "oracle", *(f"column:{MADE}/{key}" for key in ground.keys))


def absent_files(ground: Ground, folder: Path) -> list[str]:
    """Return the files of a ground that the folder does not have."""
    if ground.workloads is not None:
        made = (ground.trace, ground.workloads, *(key.split(":")[0] for key in ground.keys))
        return [f"{MADE}/{name}" for name in made if not (ROOT / MADE / name).is_file()]
    needed = [ground.trace, *([ground.nodes_file] if ground.nodes_file else []), *([POOLS] if ground.factor else [])]
    return [name for name in needed if not (folder / name).is_file()]


@cache
def loaded(name: str, folder: Path) -> tuple[Trace, Cluster]:
    """Return a ground's trace and cluster, read once a process."""
    ground = BY_NAME[name]
    trace = read_trace((ROOT / MADE if ground.workloads else folder) / ground.trace)
    if ground.window is not None:
        trace = trace.window(*ground.window)
    if ground.factor is not None:
        cluster = from_table(folder / POOLS, ground.factor, trace)
    elif ground.nodes_file is not None:
        cluster = from_list(folder / ground.nodes_file)
    else:
        assert ground.nodes is not None
        cluster = uniform(ground.nodes, ground.gpus_per_node)
    return usable(trace, cluster), cluster


def told_sum(ground: Ground) -> str:
    """Return a short sum over what is told of a made trace's jobs, empty where nothing is: a run under another one does not hold."""
    file = ROOT / MADE / ground.workloads if ground.workloads else None
    return sha256(file.read_bytes()).hexdigest()[:12] if file is not None and file.is_file() else ""
