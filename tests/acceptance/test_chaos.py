"""Whatever dies, sleeps or goes away: every job ends exactly once, no GPU has two owners, no job two living attempts, nothing is left.

SCHEDMATE_CHAOS_JOBS (500) short jobs run on 4 workers with 4 GPUs each, while every service and every worker is killed with SIGKILL
at moments of the seed's choosing, workers and the leader sleep past their leases, the broker and the store are killed, frozen and restarted,
and once everything dies at the same time.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - the order of the faults is the seed's
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schedmate.client import ApiError, Client, UnreachableError
from schedmate.infra.servers.ports import HOST
from schedmate.infra.servers.server import LocalServer
from schedmate.schemas.codec import decode
from schedmate.schemas.events import (
    JobAssigned,
    JobCancelled,
    JobDecision,
    JobFailed,
    JobRejected,
    JobSucceeded,
    NodeLost,
)
from schedmate.schemas.states import TERMINAL
from schedmate.services.dispatcher.replay import replay
from tests.acceptance.cluster import Cluster, ServiceProcess
from tests.journal_checker import check_directories
from tests.waiting import eventually_sync

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = int(os.environ.get("SCHEDMATE_CHAOS_JOBS", "500"))
WORKERS, GPUS = 4, 4
LEASE_S = 20.0
LEADER_LEASE_S = 5.0
OUTSTANDING_MAX = 48  # three times what runs at once: the queue is never empty while faults last
SUBMITTERS = 4
PATIENCE_S = 120.0
ENDS = (JobSucceeded, JobFailed, JobCancelled, JobRejected)
LONG_JOBS = 10  # of each of two batches: longer than a lease, so that a node that sleeps past it has something to lose
LONG_S = LEASE_S + 12
SLEEP_S = (LEASE_S + 8, LEASE_S + 12)
LOST_WITHIN_S = 90.0  # after that the worker wakes all the same
#: What a job sees for itself, whatever the journals say: a lock on each of its GPUs and on its own member, held until its last process ends.
LOCK = """
held=3
for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
  eval "exec $held>>$LOCKS/$SCHEDMATE_NODE.gpu$gpu"
  flock -n $held || echo "GPU $gpu of $SCHEDMATE_NODE: $SCHEDMATE_RUN_ID is not alone" >>"$LOCKS/violations"
  held=$((held + 1))
done
exec 8>>"$LOCKS/$SCHEDMATE_JOB_ID.$SCHEDMATE_MEMBER"
flock -n 8 || echo "$SCHEDMATE_JOB_ID.$SCHEDMATE_MEMBER: attempt $SCHEDMATE_ATTEMPT is not alone" >>"$LOCKS/violations"
"""
EXPECTED = {"good": {"SUCCEEDED"}, "long": {"SUCCEEDED"}, "bad": {"FAILED"}, "cancelled": {"CANCELLED", "SUCCEEDED"}}


@dataclass
class Load:
    """Jobs, submitted by several clients as the cluster takes them, some cancelled a moment later."""

    url: str
    rng: random.Random
    locks: Path
    kinds: dict[str, str] = field(default_factory=dict)  # job id -> kind
    lock: threading.Lock = field(default_factory=threading.Lock)
    open: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    next: int = 0

    def submit_all(self) -> None:
        with Client(self.url, retry_s=10.0) as client:
            while not self.stop.is_set():
                with self.lock:
                    if self.next >= JOBS:
                        return
                    number = self.next
                    self.next += 1
                    job, kind, cancel_after_s = self._job(number)
                while self.open >= OUTSTANDING_MAX and not self.stop.wait(0.1):
                    pass
                with self.lock:
                    self.open += 1
                view = _patiently(lambda job=job, number=number: client.submit(job, idempotency_key=f"chaos-{number}"))
                with self.lock:
                    self.kinds[view.job_id] = kind
                if cancel_after_s is not None:
                    self.stop.wait(cancel_after_s)
                    _patiently(lambda view=view: client.cancel(view.job_id, "chaos"))

    def watch(self) -> None:
        """Keep count of the jobs that have not ended."""
        with Client(self.url, retry_s=5.0) as client:
            while not self.stop.wait(0.5):
                try:
                    count = sum(1 for _ in client.jobs(unfinished=True))
                except (ApiError, UnreachableError):
                    continue
                with self.lock:
                    self.open = count

    def _job(self, number: int) -> tuple[dict[str, object], str, float | None]:
        rng = self.rng
        if number % (JOBS // 2) < LONG_JOBS:
            long = {
                "name": "long",
                "script": f"{LOCK}sleep {LONG_S}",
                "gpus": 1,
                "retries": 0,
                "env": {"LOCKS": str(self.locks)},
            }
            return long, "long", None
        kind = rng.choices(["good", "bad", "cancelled"], [0.8, 0.1, 0.1])[0]
        seconds = rng.uniform(0.5, 2.0)
        nodes = 2 if rng.random() < 0.12 else 1
        gpus = rng.choice([1, 1, 1, 2, 4]) if nodes == 1 else rng.choice([1, 2])
        script = f"{LOCK}echo step 1/2; sleep {seconds:.2f}; echo step 2/2; exit {1 if kind == 'bad' else 0}"
        job = {
            "name": f"chaos-{number % 20}",
            "script": script,
            "gpus": gpus,
            "nodes": nodes,
            "retries": 0,
            "env": {"LOCKS": str(self.locks)},
        }
        return job, kind, rng.uniform(0.0, 2.0) if kind == "cancelled" else None


def _patiently(call: Callable):
    """A call that may be repeated, through an outage of the API or of what stands behind it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (ApiError, UnreachableError) as error:
            if (isinstance(error, ApiError) and error.status < 500) or time.monotonic() > deadline:
                raise


class Faults:
    """One fault after the other, in the seed's order; sleeps run beside them."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.unasked: list[str] = []  # processes that ended although nobody killed them
        self._beside = ThreadPoolExecutor(8)
        self._sleeps: list[Future[None]] = []
        self._busy: set[str] = set()

    def plan(self) -> list[Callable[[], None]]:
        """A worker sleeps while nothing else disturbs the leader, so that its node is lost; then everything, another long sleep amid it."""
        c, rng = self.cluster, self.rng
        calm: list[Callable[[], None]] = [
            lambda n=n: self.kill(c[n]) for n in ("ingest", "code-analyzer", "history-estimator", "log-monitor")
        ]
        calm += [lambda: self.kill(rng.choice(c.workers))] * 3
        rest: list[Callable[[], None]] = [lambda p=p: self.kill(p) for p in c.workers]
        rest += [
            lambda: self.kill(rng.choice(c.workers)),
            lambda: self.kill(c["ingest"]),
            lambda: self.kill(c["log-monitor"]),
        ]
        rest += [
            lambda: self.restart(rng.choice(c.workers)),
            lambda: self.restart(self._leader()),
            lambda: self.restart(c["ingest"]),
        ]
        rest += [lambda: self.kill(self._leader())] * 2
        rest += [lambda: self.kill(c[rng.choice(["dispatcher-1", "dispatcher-2"])])]
        rest += [lambda: self.sleep(self._leader(), rng.uniform(1.5, 2.5) * LEADER_LEASE_S)] * 2
        rest += [lambda p=p: self.sleep(c[p], rng.uniform(3.0, 8.0)) for p in ("ingest", "log-monitor")]
        rest += [self.kill_broker, self.restart_broker, self.kill_store, self.kill_everything]
        rest += [
            lambda: self.freeze(c.kafka, rng.uniform(2.0, 6.0)),
            lambda: self.freeze(c.mongo, rng.uniform(2.0, 6.0)),
        ]
        rng.shuffle(calm)
        rng.shuffle(rest)
        rest.insert(len(rest) // 2, self.sleep_with_a_long_job)
        return [self.sleep_with_a_long_job, *calm, *rest]

    def run(self, pause_s: Callable[[], float]) -> None:
        for fault in self.plan():
            fault()
            self.revive()
            time.sleep(pause_s())
        wait(self._sleeps)
        for sleep in self._sleeps:
            sleep.result()

    def kill(self, process: ServiceProcess) -> None:
        if process.name in self._busy:  # it sleeps: another one of its kind, or later
            others = [
                p for p in self.cluster.processes.values() if p.service == process.service and p.name not in self._busy
            ]
            if not others:
                return
            process = self.rng.choice(others)
        process.kill()
        self.counts[f"kill {process.service}"] += 1
        time.sleep(self.rng.uniform(0.0, 2.0))
        process.start()

    def restart(self, process: ServiceProcess) -> None:
        """SIGTERM, as an update would: it drains, and its runs stay with their supervisors."""
        if process.name in self._busy:
            return
        self.counts[f"restart {process.service}"] += 1
        process.terminate()
        process.start()

    def sleep(self, process: ServiceProcess, seconds: float, *, until_lost: bool = False) -> None:
        """Pause a process for so long; a worker, if asked, until its node is seen lost: a busy machine counts more slowly."""
        if process.name in self._busy:
            return
        self._busy.add(process.name)
        self.counts[f"sleep {process.service}"] += 1
        process.pause()

        def wake() -> None:
            time.sleep(seconds)
            deadline = time.monotonic() + LOST_WITHIN_S
            while until_lost and time.monotonic() < deadline and not self._is_lost(process.name):
                time.sleep(0.5)
            process.resume()
            self._busy.discard(process.name)

        self._sleeps.append(self._beside.submit(wake))

    def sleep_with_a_long_job(self) -> None:
        """Put a worker to sleep that runs a long job, if there is one: its supervisor ends it, the leader starts it elsewhere."""
        try:
            views = eventually_sync(lambda: list(self.cluster.client.jobs(state="RUNNING", name="long")), 15)
            worker = self.cluster[self.rng.choice([view.placements[0].node for view in views])]
        except (AssertionError, ApiError, UnreachableError):
            worker = self.rng.choice(self.cluster.workers)
        self.sleep(worker, self.rng.uniform(*SLEEP_S), until_lost=True)

    def _is_lost(self, node: str) -> bool:
        try:
            with Client(self.cluster.client.url, retry_s=1.0) as client:
                return any(n.node == node and n.state == "lost" for n in client.nodes())
        except (ApiError, UnreachableError):
            return False

    def kill_broker(self) -> None:
        self.counts["kill broker"] += 1
        self.cluster.kafka.kill()
        time.sleep(self.rng.uniform(0.5, 3.0))
        self.cluster.kafka.start()

    def restart_broker(self) -> None:
        self.counts["restart broker"] += 1
        self.cluster.kafka.restart()

    def kill_store(self) -> None:
        self.counts["kill store"] += 1
        self.cluster.mongo.kill()
        time.sleep(self.rng.uniform(0.5, 3.0))
        self.cluster.mongo.start()

    def freeze(self, server: LocalServer, seconds: float) -> None:
        """A server that answers nothing for a while, and then all at once."""
        self.counts[f"freeze {server.name}"] += 1
        groups = [pid for process in server.processes() if (pid := process.living_pid()) is not None]
        for group in groups:
            os.killpg(group, signal.SIGSTOP)
        time.sleep(seconds)
        for group in groups:
            os.killpg(group, signal.SIGCONT)

    def kill_everything(self) -> None:
        """All services, all workers, the broker and the store at once; what runs stays with its supervisors."""
        self.counts["kill everything"] += 1
        for process in self.rng.sample(list(self.cluster.processes.values()), len(self.cluster.processes)):
            process.kill()
        self.cluster.kafka.kill()
        self.cluster.mongo.kill()
        self.cluster.kafka.start()
        self.cluster.mongo.start()
        for process in self.cluster.processes.values():
            process.start()

    def revive(self) -> None:
        """Start again what ended by itself, as an orchestrator would, and remember it."""
        for process in self.cluster.processes.values():
            if not process.living():
                self.unasked.append(f"{process.name} ({process.exit_code()}): {process.tail(2)}")
                process.start()

    def _leader(self) -> ServiceProcess:
        try:
            return self.cluster[self.cluster.leader()]
        except Exception:  # noqa: BLE001 - the store is away: any dispatcher will do
            return self.cluster["dispatcher-1"]


def test_every_job_ends_exactly_once_whatever_dies(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    locks = tmp_path / "locks"
    locks.mkdir()
    began = time.monotonic()
    with Cluster(tmp_path, workers=WORKERS, gpus=GPUS, lease_s=LEASE_S, leader_lease_s=LEADER_LEASE_S) as cluster:
        load = Load(f"http://{HOST}:{cluster.api_port}", random.Random(rng.random()), locks)
        faults = Faults(cluster, rng)
        with ThreadPoolExecutor(SUBMITTERS + 1) as pool:
            submitters = [pool.submit(load.submit_all) for _ in range(SUBMITTERS)]
            watcher = pool.submit(load.watch)
            try:
                faults.run(lambda: rng.uniform(1.0, 7.0))
                for submitter in submitters:
                    submitter.result(timeout=300)
                faults_end = time.monotonic()
                _wait_for_all(cluster, faults)
            finally:
                load.stop.set()
            watcher.result(timeout=60)
        ended = time.monotonic()
        _wait_until_nothing_is_left(cluster)
        decided = _decided(cluster)
        verdict = check_directories([tmp_path])
        views = {view.job_id: view for view in cluster.client.jobs()}
        letters = cluster.read("schedmate.dead-letters")
        replayed = _replayed(cluster)
        summary = _summary(cluster, faults, decided, verdict, seed, faults_end - began, ended - began)
    with capsys.disabled():
        print(f"\n{summary}")
    assert verdict.violations == []
    assert len(list(locks.glob("*.gpu*"))) == WORKERS * GPUS, "every GPU was used, and its jobs looked for others on it"
    assert not (locks / "violations").exists(), (locks / "violations").read_text()
    assert len(load.kinds) == JOBS
    assert {job: len(ends) for job, ends in decided.ends.items() if len(ends) != 1} == {}
    assert set(decided.ends) == set(load.kinds)
    assert decided.after_the_end == []
    assert {job: state for job, state in decided.states().items() if views[job].state.value != state} == {}
    unexpected = {
        job: (kind, views[job].state.value, views[job].detail)
        for job, kind in load.kinds.items()
        if views[job].state.value not in EXPECTED[kind]
    }
    assert unexpected == {}
    assert replayed.difference is None
    assert decided.nodes_lost > 0, "a worker that slept past its lease was not lost: these faults were too weak"
    assert letters == []
    assert faults.unasked == []


def _wait_for_all(cluster: Cluster, faults: Faults) -> None:
    def all_ended() -> bool:
        faults.revive()
        try:
            return not any(True for _ in cluster.client.jobs(unfinished=True, limit=1))
        except (ApiError, UnreachableError):
            return False

    try:
        eventually_sync(all_ended, 180)
    except AssertionError:
        stuck = [
            (v.job_id, v.state.value, v.attempt, v.reason.value, v.detail)
            for v in cluster.client.jobs(unfinished=True, limit=20)
        ]
        raise AssertionError(f"jobs that do not end: {stuck}") from None


def _wait_until_nothing_is_left(cluster: Cluster) -> None:
    try:
        eventually_sync(lambda: not cluster.left_processes(), 30)
    except AssertionError:
        raise AssertionError(f"left alive: {cluster.left_processes()}") from None


@dataclass
class Decided:
    """What the topic of decisions says, each decision once whatever its repeats."""

    ends: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # job -> decision's id -> state
    after_the_end: list[str] = field(default_factory=list)
    assignments: int = 0
    repeats: int = 0
    nodes_lost: int = 0

    def states(self) -> dict[str, str]:
        return {job: next(iter(ends.values())) for job, ends in self.ends.items()}


def _decided(cluster: Cluster) -> Decided:
    decided = Decided()
    seen: set[str] = set()
    ended_at: dict[str, tuple[int, int]] = {}
    envelopes = [decode(delivery.record) for delivery in cluster.read("schedmate.decisions")]
    for envelope in sorted(envelopes, key=lambda e: (e.event.seq, e.event.index)):
        event = envelope.event
        if envelope.id in seen:
            decided.repeats += 1
            continue
        seen.add(envelope.id)
        decided.nodes_lost += isinstance(event, NodeLost)
        if not isinstance(event, JobDecision):
            continue
        if event.job_id in ended_at:
            decided.after_the_end.append(
                f"{event.NAME} of {event.job_id} at {event.seq}, its end was at {ended_at[event.job_id]}"
            )
        decided.assignments += isinstance(event, JobAssigned)
        if isinstance(event, ENDS):
            assert event.state in TERMINAL
            decided.ends[event.job_id][envelope.id] = event.state.value
            ended_at[event.job_id] = (event.seq, event.index)
    return decided


def _replayed(cluster: Cluster):
    import asyncio  # noqa: PLC0415

    async def run():
        async with cluster.store() as store:
            return await replay(store, "default")

    return asyncio.run(run())


def _summary(
    cluster: Cluster, faults: Faults, decided: Decided, verdict, seed: int, faults_s: float, all_s: float
) -> str:
    ends = Counter(decided.states().values())
    attempts = Counter(life.job for life in verdict.lives if life.member == 0)
    return "\n".join(
        (
            f"chaos, seed {seed}: {JOBS} jobs on {WORKERS} x {GPUS} GPUs in {all_s:.0f} s (faults and submits until {faults_s:.0f} s)",
            "  faults: " + ", ".join(f"{what} x{count}" for what, count in sorted(faults.counts.items())),
            f"  starts of processes: {sum(p.starts for p in cluster.processes.values())}, ended unasked: {len(faults.unasked)}",
            "  ends: " + ", ".join(f"{state} {count}" for state, count in sorted(ends.items())),
            (
                f"  assignments {decided.assignments}, members started {len(verdict.lives)}, jobs with more than one started attempt "
                f"{sum(1 for n in attempts.values() if n > 1)}, refused {verdict.refused}, nodes lost {decided.nodes_lost}, repeated decisions {decided.repeats}"
            ),
        )
    )
