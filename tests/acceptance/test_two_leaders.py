"""Two dispatchers that both believe they lead: one wins, the other's writes are refused, workers refuse its assignments (protocol §§1-2)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from schedmate.infra.clock import SystemClock
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import MemberAssigned, NodeReported, RefusalCause, RunRefused
from schedmate.schemas.ids import run_id
from schedmate.schemas.job import JobSpec
from schedmate.schemas.wire import Envelope
from schedmate.services.dispatcher.log import DeposedError, Entry, PoolLog
from tests.acceptance.cluster import Cluster
from tests.journal_checker import check_directories
from tests.waiting import eventually_sync

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(300)]

POOL = "default"
LEADER_LEASE_S = 3.0
ROUNDS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("two-leaders"), workers=2, advisors=(), leader_lease_s=LEADER_LEASE_S) as made:
        yield made


def job(seconds: float = 0.3, **fields) -> dict:
    return {"name": "two-leaders", "script": f"sleep {seconds}", "gpus": 1, "retries": 0, **fields}


def entries(cluster: Cluster) -> list[Entry]:
    async def read() -> list[Entry]:
        async with cluster.store() as store:
            return [entry async for entry in PoolLog(store, POOL).entries(-1)]

    return asyncio.run(read())


def other(name: str) -> str:
    return "dispatcher-2" if name == "dispatcher-1" else "dispatcher-1"


def ended(cluster: Cluster, jobs: list[str]) -> bool:
    return all(cluster.client.job(job_id).state.value == "SUCCEEDED" for job_id in jobs)


def test_a_leader_that_slept_past_its_lease_is_deposed_and_nothing_of_it_stands(cluster: Cluster) -> None:
    jobs: list[str] = []
    for _ in range(ROUNDS):
        old, new = _depose(cluster, jobs)
        assert cluster.leader() == new
        eventually_sync(cluster[old].ready, 30, "it stands by")

    log = entries(cluster)
    assert [e.seq for e in log] == list(range(len(log)))
    terms = [e.term for e in log]
    assert terms == sorted(terms), "no entry of an older term behind one of a newer"
    writers = defaultdict(set)
    for entry in log:
        writers[entry.term].add(entry.writer)
    assert {len(names) for names in writers.values()} == {1}, "a term has one writer"
    assert len(writers) >= ROUNDS + 1
    by_seq = {entry.seq: entry for entry in log}
    for delivery in (*cluster.read("schedmate.decisions"), *cluster.read("schedmate.assignments")):
        event = decode(delivery.record).event
        entry = by_seq[event.seq]
        assert event.index < len(entry.decisions), "what is published stands in the log"
        assert getattr(event, "term", entry.term) == entry.term
    verdict = check_directories([cluster.directory])
    assert verdict.violations == []
    assert len({life.job for life in verdict.lives}) == len(jobs)


def _depose(cluster: Cluster, jobs: list[str]) -> tuple[str, str]:
    """Put the leader to sleep in the middle of work, let the other one take over, and wake it; its name, and the other's."""
    old = cluster.leader()
    before = deposals(cluster, old)
    # Asleep between reading, appending and publishing, wherever the signal finds it.
    jobs.extend(cluster.client.submit(job()).job_id for _ in range(6))
    cluster[old].pause()
    jobs.extend(cluster.client.submit(job()).job_id for _ in range(3))
    eventually_sync(lambda: cluster.leader() == other(old), 30, "the standby takes over")
    eventually_sync(lambda: ended(cluster, jobs), 60, "the new leader runs what the old one left and what came since")
    cluster[old].resume()
    jobs.extend(cluster.client.submit(job()).job_id for _ in range(3))
    eventually_sync(lambda: deposals(cluster, old) > before, 30, "the old leader learns that it leads no more")
    eventually_sync(lambda: ended(cluster, jobs), 60)
    return old, other(old)


def deposals(cluster: Cluster, name: str) -> int:
    return cluster[name].actions().count("dispatcher.deposed")


def newest_report(cluster: Cluster, node: str) -> NodeReported:
    reports = [
        event for d in cluster.read("schedmate.nodes") if isinstance(event := decode(d.record).event, NodeReported)
    ]
    return max((r for r in reports if r.node == node), key=lambda r: (r.session, r.report_no))


@pytest.mark.parametrize(
    ("back", "session_back", "cause"),
    [
        (0, 0, RefusalCause.SUPERSEDED),
        (3, 0, RefusalCause.SUPERSEDED),
        (0, 1, RefusalCause.STALE_SESSION),
        (-1, 1, RefusalCause.STALE_SESSION),
    ],
    ids=[
        "at the newest place",
        "at an old place",
        "for an earlier session",
        "for an earlier session at a higher place",
    ],
)
def test_a_worker_refuses_what_a_deposed_leader_orders(
    cluster: Cluster, back: int, session_back: int, cause: RefusalCause
) -> None:
    done = cluster.client.submit(job()).job_id
    eventually_sync(lambda: ended(cluster, [done]), 60)
    node = cluster.client.job(done).placements[0].node
    report = newest_report(cluster, node)
    forged = MemberAssigned(
        pool=POOL, seq=report.applied_seq - back, index=report.applied_index, term=1, node=node, session=report.session - session_back,
        job_id=f"forged-{back}-{session_back}", run_id=run_id(f"forged-{back}-{session_back}", 1), attempt=1, member=0, members=1, gpus=(0,),
        spec=JobSpec.model_validate({**job(30), "tenant": "default", "user": "u", "pool": POOL}), master_addr="127.0.0.1", master_port=20000,
    )  # fmt: skip
    cluster.publish(encode(Envelope(forged.run_id, "schedmate/dispatcher", SystemClock().now(), forged, None)))

    def refusal() -> RunRefused | None:
        events = [decode(d.record).event for d in cluster.read("schedmate.runs")]
        return next((e for e in events if isinstance(e, RunRefused) and e.run_id == forged.run_id), None)

    told = eventually_sync(refusal, 30)
    assert (told.cause, told.seq, told.node) == (cause, forged.seq, node)
    assert forged.run_id not in {life.run for life in check_directories([cluster.directory]).lives}, (
        "nothing was started"
    )
    again = cluster.client.submit(
        job()
    ).job_id  # and the pool goes on: the leader acts on no refusal that is not of its own order
    eventually_sync(lambda: ended(cluster, [again]), 60)


def test_the_log_takes_no_entry_of_a_deposed_leader(cluster: Cluster) -> None:
    async def append() -> None:
        async with cluster.store() as store:
            log = PoolLog(store, POOL)
            opening = next(e for e in [entry async for entry in log.entries(-1)] if e.term > 1)
            late = replace(opening, term=opening.term - 1, writer="deposed")
            with pytest.raises(DeposedError):
                await log.append(late)
            standing = [entry async for entry in log.entries(opening.seq - 1, opening.seq + 1)]
            assert standing == [opening], "what stands there is untouched"

    asyncio.run(append())
