"""Random lives of a pool: inputs that fit its state, mixed with those that come twice, late, from elsewhere or make no sense.

As a program it decides one such life and writes its log, or decides such a log again:

    python -m tests.pool_traces SEED STEPS            one entry a line
    python -m tests.pool_traces --again < LOG         the same lines, decided anew
"""

from __future__ import annotations

import json
import random  # noqa: TID251 - seeded
import sys
from typing import Any

from schedmate.schemas.states import HOLDS_GPUS
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policies, policy_named
from schedmate.services.dispatcher.core.state import ENDED, STARTED, Job, Member, PoolState
from schedmate.services.dispatcher.core.step import Step, step
from tests.dispatching import START, arrived, report

NODES = ("n1", "n2", "n3", "n4")
KINDS = (("a100", 40960), ("v100", 16384), ("a100", 81920))
ACTIONS = ("retry_elsewhere_cordon", "retry_from_checkpoint", "retry_with_changes", "do_not_retry")


class Trace:
    """Draws the next batch of inputs for a pool from `rng`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.jobs = 0
        self.past: list[i.Input] = []

    def batch(self, state: PoolState) -> list[i.Input]:
        """Return what the pool is told next."""
        out = [self._one(state) for _ in range(self.rng.randint(1, 4))]
        if self.past and self.rng.random() < 0.2:
            out.append(self.rng.choice(self.past))
        if self.rng.random() < 0.1:
            out.append(out[0])
        self.past.extend(out)
        return out

    def pause_s(self) -> float:
        """Return how long after the last batch it comes."""
        return self.rng.choice((0.0, 0.0, 0.5, 2.0, 15.0, 70.0, 400.0, -5.0))

    def _one(self, state: PoolState) -> i.Input:
        draws = (
            self._arrived, self._arrived, self._report, self._report, self._started, self._started, self._started, self._exited,
            self._exited, self._refused, self._silent, self._command, self._cancel, self._estimate, self._progress,
            self._diagnosis, self._diagnosis, self._profile, self._profile, self._config, self._tick, self._tick, self._reservation,
        )  # fmt: skip
        return self.rng.choice(draws)(state)

    def _arrived(self, _: PoolState) -> i.Input:
        rng = self.rng
        self.jobs += 1
        return arrived(
            f"j{self.jobs}",
            tenant=rng.choice("abc"),
            priority=rng.randint(0, 3),
            gpus=rng.choice((0, 1, 1, 1, 2, 2, 3, 4, 9)),
            nodes=rng.choice((1, 1, 1, 2, 3)),
            gpu_type=rng.choice((None, None, None, "a100", "v100", "tpu")),
            gpu_memory_mib=rng.choice((0, 0, 0, 16384, 50000)),
            time_limit_s=rng.choice((None, None, 50, 1000)),
            retries=rng.choice((0, 1, 3)),
            submitted_at=START + rng.randint(0, 100),
            resumable=rng.random() < 0.5,
            gpu_milli=rng.choice((1000, 1000, 1000, 300, 500, 700)),
        )

    def _report(self, state: PoolState) -> i.Input:
        rng = self.rng
        name = rng.choice(NODES)
        node = state.nodes.get(name)
        session = 1 if node is None else node.session + rng.choice((0, 0, 0, 0, 1, 1, -1))
        kind, memory = KINDS[NODES.index(name) % len(KINDS)] if rng.random() < 0.95 else rng.choice(KINDS)
        count = rng.choice((4, 4, 4, 4, 2, 0))
        return report(
            name,
            count,
            session=session,
            gpu_type=kind,
            memory_mib=memory,
            unusable=tuple(g for g in range(count) if rng.random() < 0.05),
            applied_seq=rng.choice((-1, state.seq, state.seq, 10_000)),
            applied_index=0,
            boot_id=rng.choice(("b1", "b1", "b2")),
            stopping=rng.random() < 0.05,
            runs=tuple(self._runs(state, name)),
        )

    def _runs(self, state: PoolState, name: str) -> list[i.RunSeen]:
        rng = self.rng
        out = []
        for job in state.jobs.values():
            for number, member in enumerate(job.members):
                if member.node != name or job.state not in HOLDS_GPUS or rng.random() < 0.1:
                    continue
                ended = member.state == ENDED or rng.random() < 0.1
                started = ended or member.state == STARTED or rng.random() < 0.5
                out.append(
                    i.RunSeen(
                        job.id, job.attempt, number, ended=ended, started=started and not ended,
                        cause=rng.choice(("exited", "stopped", "lost", "launch_failed", None)) if ended else None,
                        exit_code=rng.choice((0, 0, 1, None)) if ended else None,
                        started_at=state.at if started else None, ended_at=state.at if ended else None,
                    )
                )  # fmt: skip
        if rng.random() < 0.2:
            ghost = rng.choice((*state.jobs, *state.ended, "ghost"))
            ended = rng.random() < 0.5
            out.append(i.RunSeen(ghost, rng.randint(1, 3), rng.randint(0, 4), ended=ended, started=not ended))
        return out

    def _member(self, state: PoolState) -> tuple[Job, int, Member, int, int] | None:
        """Return a member that holds GPUs, with an attempt and a session that are mostly right."""
        rng = self.rng
        found = [(j, n, m) for j in state.jobs.values() if j.state in HOLDS_GPUS for n, m in enumerate(j.members)]
        if not found:
            return None
        job, number, member = rng.choice(found)
        attempt = max(1, job.attempt + rng.choice((0, 0, 0, 0, 0, -1)))
        session = max(1, state.nodes[member.node].session + rng.choice((0, 0, 0, 0, 0, -1, 1)))
        return job, number, member, attempt, session

    def _started(self, state: PoolState) -> i.Input:
        found = self._member(state)
        if found is None:
            return i.MemberStarted("nobody", 1, 0, "n1", 1, state.at)
        job, number, member, attempt, session = found
        node = member.node if self.rng.random() < 0.97 else "n4"
        return i.MemberStarted(job.id, attempt, number, node, session, state.at)

    def _exited(self, state: PoolState) -> i.Input:
        rng = self.rng
        found = self._member(state)
        if found is None:
            return i.MemberExited("nobody", 1, 0, "n1", 1, "exited", 0, None, None, state.at)
        job, number, member, attempt, session = found
        number = number if rng.random() < 0.97 else 7
        cause = rng.choice(
            ("exited", "exited", "exited", "stopped", "lease_expired", "launch_failed", "worker_stopped", "lost")
        )
        code, signal = rng.choice(((0, None), (0, None), (1, None), (None, 9)))
        started_at = rng.choice((member.started_at, state.at - 3.0, None))
        return i.MemberExited(job.id, attempt, number, member.node, session, cause, code, signal, started_at, state.at)

    def _refused(self, state: PoolState) -> i.Input:
        found = self._member(state)
        cause = self.rng.choice(("stale_session", "gpu_in_use", "setup_failed"))
        if found is None:
            return i.MemberRefused("nobody", 1, 0, "n1", 1, 0, 0, cause, "")
        job, number, member, attempt, session = found
        seq = job.place[0] - self.rng.choice((0, 0, 0, 1))
        return i.MemberRefused(job.id, attempt, number, member.node, session, seq, job.place[1], cause, "no")

    def _silent(self, state: PoolState) -> i.Input:
        name = self.rng.choice(NODES)
        session = state.nodes[name].session if name in state.nodes else 1
        return i.NodeSilent(name, session - self.rng.choice((0, 0, 1)))

    def _command(self, _: PoolState) -> i.Input:
        command = self.rng.choice(("drain", "undrain", "undrain", "undrain", "cordon", "dead", "explode"))
        return i.NodeCommanded(self.rng.choice(NODES), command, "op", self.rng.choice(("", "why not")))

    def _reservation(self, state: PoolState) -> i.Input:
        rng = self.rng
        name = f"r{rng.randint(1, 6)}"
        if rng.random() < 0.3:
            return i.ReservationWithdrawn(name, "op", "")
        start = state.at + rng.choice((-50.0, 0.0, 10.0, 100.0, 1000.0, 90_000.0))
        nodes = tuple(rng.sample(NODES, rng.randint(0, 2)))
        return i.ReservationMade(
            name,
            nodes,
            0 if nodes else rng.choice((0, 1, 2, 9)),
            start,
            start + rng.choice((-1.0, 60.0, 500.0)),
            "op",
            "disk",
        )

    def _some_job(self, state: PoolState) -> str:
        return self.rng.choice((*state.jobs, *list(state.ended)[-3:], f"j{self.jobs + 2}"))

    def _cancel(self, state: PoolState) -> i.Input:
        return i.CancelRequested(self._some_job(state), "ann")

    def _estimate(self, state: PoolState) -> i.Input:
        rng = self.rng
        p50 = rng.choice((None, 10.0, 1000.0))
        return i.EstimateArrived(
            self._some_job(state), rng.randint(1, 4), p50, p50, p50, "learned", rng.choice((None, True, False))
        )

    def _profile(self, state: PoolState) -> i.Input:
        rng = self.rng
        used = rng.choice((0.1, 0.1, 0.1, 0.5, 0.9, 1.5))
        return i.ProfileArrived(self._some_job(state), used, used / 4, rng.choice((1000, 4000, 20_000)))

    def _progress(self, state: PoolState) -> i.Input:
        job = self._some_job(state)
        attempt = state.jobs[job].attempt if job in state.jobs else 1
        return i.ProgressArrived(job, attempt, self.rng.choice((-1.0, 5.0, 500.0)))

    def _diagnosis(self, state: PoolState) -> i.Input:
        rng = self.rng
        job = self._some_job(state)
        attempt = state.jobs[job].attempt if job in state.jobs else 1
        return i.DiagnosisArrived(
            job, max(1, attempt - rng.choice((0, 0, 0, 1))), rng.choice(("X", "GPU_OOM")), rng.choice(("user_code", "infra_hardware", None)),
            rng.choice(ACTIONS), rng.choice((None, *NODES, "nowhere")), rng.random() < 0.5, rng.choice((None, "ckpt")), None,
            rng.random() < 0.1, rng.choice((0.2, 0.9)),
        )  # fmt: skip

    def _config(self, _: PoolState) -> i.Input:
        rng = self.rng
        if rng.random() < 0.1:
            return i.ConfigChanged({"policy": rng.choice(("nonsense", 7, "fifo")), "stop_timeout_s": "soon"})
        config = PoolConfig(
            policy=rng.choice((*sorted(policies()), "lucid", "lucid", "lucid")),
            start_timeout_s=rng.choice((20.0, 120.0)),
            stop_timeout_s=rng.choice((10.0, 60.0)),
            lease_expires=rng.random() < 0.8,
            gpus_per_job_max=rng.choice((None, 8)),
            tenant_gpus_max=rng.choice((None, None, 6)),
            tenant_gpus=rng.choice(({}, {"a": 2}, {"a": 3, "b": 1})),
            tenant_quota=rng.choice(({}, {}, {"a": 4}, {"a": 8, "b": 4}, {"a": 2, "b": 2, "c": 9})),
            borrowers=rng.choice(("any", "any", "resumable", "none")),
            reclaim_min_run_s=rng.choice((0.0, 60.0)),
            ageing_s=rng.choice((0.0, 0.0, 50.0)),
            ageing_classes_max=rng.choice((1, 3)),
            reservation_stops=rng.choice(("resumable", "all", "none")),
            preemption=rng.random() < 0.6,
            preemption_min_run_s=rng.choice((0.0, 60.0)),
            strikes_max=rng.choice((1, 3)),
            gpu_sharing=rng.random() < 0.6,
            profiler_nodes=rng.choice((None, None, 1)),
            early_max=rng.choice((2, 10_000)),
            decisions_max=rng.choice((1, 4, 2_000)),
        )
        return i.ConfigChanged(config.to_json())

    def _tick(self, _: PoolState) -> i.Input:
        return i.Tick()


def fresh(pool: str = "default") -> PoolState:
    """Return a pool as every log begins."""
    return PoolState(pool, PoolConfig(), policy_named(PoolConfig().policy))


def text(done: Step, at: float) -> str:
    """Return an entry as one line."""
    entry: dict[str, Any] = {
        "at": at,
        "inputs": [i.to_json(x) for x in done.inputs],
        "refused": {str(k): v for k, v in done.refused.items()},
        "decisions": [d.to_json(x) for x in done.decisions],
    }
    return json.dumps(entry, sort_keys=True, separators=(",", ":"))


def live(seed: int, steps: int) -> list[str]:
    """Return the log of one random life."""
    trace, state, now, lines = Trace(random.Random(seed)), fresh(), START, []
    for _ in range(steps):
        now += trace.pause_s()
        lines.append(text(step(state, trace.batch(state), now), now))
    return lines


def again(lines: list[str]) -> list[str]:
    """Decide a log again."""
    state, out = fresh(), []
    for line in lines:
        entry = json.loads(line)
        out.append(text(step(state, [i.from_json(x) for x in entry["inputs"]], entry["at"]), entry["at"]))
    return out


if __name__ == "__main__":
    made = (
        again(sys.stdin.read().splitlines()) if sys.argv[1] == "--again" else live(int(sys.argv[1]), int(sys.argv[2]))
    )
    sys.stdout.write("".join(f"{line}\n" for line in made))
