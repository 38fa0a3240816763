"""A pool under test: builders for inputs, and a log that checks recovery and replay after each step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from schedmate.schemas.states import JobState
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies, policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import Step, recover, step

START = 1_700_000_000.0
POLICIES = sorted(policies())
AT_ONCE = [name for name in POLICIES if policy_named(name).rounds_s is None]
"""Policies that place at once, not in rounds."""
GIVES_WAY = ("PREEMPTED", "RECLAIMED")
ENDS = ("COMPLETE", "FAIL", "CANCEL", "REJECT")


def arrived(job: str, **given: Any) -> i.JobArrived:
    base: dict[str, Any] = {
        "tenant": "team-a", "user": "ann", "priority": 1, "gpus": 1, "nodes": 1, "gpu_type": None, "gpu_memory_mib": 0,
        "time_limit_s": None, "retries": 1, "submitted_at": START, "spec": "{}", "trace": None,
    }  # fmt: skip
    return i.JobArrived(job=job, **{**base, **given})


def report(node: str, gpus: int = 8, **given: Any) -> i.NodeReported:
    base: dict[str, Any] = {
        "session": 1, "boot_id": "boot", "applied_seq": -1, "applied_index": -1, "address": "127.0.0.1", "port_min": 20000,
        "port_max": 20999, "lease_s": 30.0, "runs": (), "stopping": False,
    }  # fmt: skip
    kind = given.pop("gpu_type", "a100")
    memory = given.pop("memory_mib", 40960)
    unusable = given.pop("unusable", ())
    base["gpus"] = tuple(i.Gpu(n, kind, memory, n not in unusable) for n in range(gpus))
    return i.NodeReported(node=node, **{**base, **given})


class PoolUnderTest:
    """Steps a pool; after each step the recorded entry, recovered and replayed, must come to the same."""

    def __init__(self, **config: Any) -> None:
        self.config = PoolConfig(**config)
        self.state = self._fresh()
        self.log: list[dict[str, Any]] = []
        self.now = START
        self.told: list[d.Decision] = []

    def _fresh(self) -> PoolState:
        return PoolState("default", self.config, policy_named(self.config.policy))

    def step(self, *inputs: i.Input, after: float = 0.0) -> Step:
        self.now += after
        before = json.dumps(self.state.to_json())
        done = step(self.state, inputs, self.now)
        entry = {
            "at": self.now,
            "inputs": [i.to_json(x) for x in done.inputs],
            "refused": done.refused,
            "decisions": [d.to_json(x) for x in done.decisions],
            "trust": done.trust,
        }
        self.log.append(json.loads(json.dumps(entry)))
        self._check_recovery(before)
        self.told.extend(done.decisions)
        return done

    def _check_recovery(self, before: str) -> None:
        entry = self.log[-1]
        inputs = [i.from_json(x) for x in entry["inputs"]]
        recovered = PoolState.from_json(json.loads(before), policy_named)
        decisions = [d.from_json(x) for x in entry["decisions"]]
        recover(recovered, inputs, {int(k) for k in entry["refused"]}, decisions, entry["at"], entry["trust"])
        assert recovered.to_json() == self.state.to_json(), "recovery came to another state"
        replayed = step(PoolState.from_json(json.loads(before), policy_named), inputs, entry["at"])
        assert [d.to_json(x) for x in replayed.decisions] == entry["decisions"], "replay decided otherwise"

    def state_of(self, job: str) -> str:
        if job in self.state.jobs:
            return self.state.jobs[job].state.value
        return self.state.ended.get(job, "UNKNOWN")

    def reason_of(self, job: str) -> str:
        return str(self.state.jobs[job].reason)

    def seats(self, job: str) -> list[tuple[str, tuple[int, ...]]]:
        return [(m.node, m.gpus) for m in self.state.jobs[job].members]

    def start(self, job: str, member: int | None = None, **given: Any) -> Step:
        live = self.state.jobs[job]
        numbers = range(len(live.members)) if member is None else [member]
        return self.step(
            *[
                i.MemberStarted(
                    job, live.attempt, n, live.members[n].node, self.state.nodes[live.members[n].node].session, self.now
                )
                for n in numbers
            ],
            **given,
        )

    def exit(
        self, job: str, code: int | None = 0, member: int | None = None, cause: str = "exited", **given: Any
    ) -> Step:
        after = given.pop("after", 100.0)
        live = self.state.jobs[job]
        numbers = range(len(live.members)) if member is None else [member]
        self.now += after
        return self.step(
            *[
                i.MemberExited(
                    job, live.attempt, n, live.members[n].node, self.state.nodes[live.members[n].node].session,
                    cause, code, given.get("signal"), live.members[n].started_at, self.now,
                )
                for n in numbers
            ]
        )  # fmt: skip

    def diagnose(self, job: str, action: str, **given: Any) -> Step:
        base: dict[str, Any] = {
            "attempt": self.state.jobs[job].attempt if job in self.state.jobs else 1, "category": "X", "culpable": "user_code",
            "culprit_node": None, "node_evidence": False, "resume_from": None, "proposed_change": None,
            "work_was_complete": False, "confidence": 0.9,
        }  # fmt: skip
        return self.step(i.DiagnosisArrived(job=job, action=action, **{**base, **given}))

    def running(self, job: str, **given: Any) -> None:
        self.step(arrived(job, **given))
        assert self.state_of(job) == JobState.ASSIGNED, self.state_of(job)
        self.start(job)
        assert self.state_of(job) == JobState.RUNNING


def of_kind(done: Step | Sequence[d.Decision], kind: type) -> list[Any]:
    decisions = done.decisions if isinstance(done, Step) else done
    return [x for x in decisions if isinstance(x, kind)]


def cluster(nodes: int = 1, gpus: int = 8, **config: Any) -> PoolUnderTest:
    """Return a pool of so many equal nodes n1, n2, …"""
    made = PoolUnderTest(**config)
    made.step(*[report(f"n{number + 1}", gpus) for number in range(nodes)])
    return made


def next_round(p: PoolUnderTest) -> None:
    """Let time pass up to the next round, where the pool's policy decides in rounds."""
    if p.state.policy.rounds_s is not None:
        p.step(i.Tick(), after=p.state.policy.rounds_s)


def stopped_jobs(p: PoolUnderTest) -> list[str]:
    """Return the jobs that were stopped for another one, once a preemption."""
    return [x.job for x in of_kind(p.told, d.Moved) if x.event == "STOP" and x.reason in GIVES_WAY]


def ends_of(p: PoolUnderTest, job: str) -> list[str]:
    """Return the events that ended a job: exactly one, in a right world."""
    return [x.event for x in of_kind(p.told, d.Moved) if x.job == job and x.event in ENDS]
