"""The leader against memory adapters: every interleaving of the log's protocol that needs no real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schedmate.infra.bus.memory import MemoryBus
from schedmate.infra.bus.partitioner import partition_of
from schedmate.infra.bus.port import BusUnavailableError, Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.store.faults import Fault
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas import events as e
from schedmate.schemas.ids import run_id
from schedmate.schemas.job import JobSpec
from schedmate.schemas.topology import topology
from schedmate.schemas.wire import Record
from schedmate.services.dispatcher.core import fold as folding
from schedmate.services.dispatcher.core import step as stepping
from schedmate.services.dispatcher.core.inputs import EstimateArrived, ProgressArrived
from schedmate.services.dispatcher.log import AppendCollisionError, DeposedError, Entry, PoolLog
from schedmate.services.dispatcher.replay import replay
from tests.leading import CLOCK, World
from tests.waiting import eventually

pytestmark = pytest.mark.localhost  # the leader answers `why` on the loopback


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.setup()
    yield made
    await made.close()


async def test_a_job_goes_from_its_event_to_its_end(world: World) -> None:
    await world.leader()
    await world.report()
    await world.submit("j1", gpus=2)
    [assigned] = await world.until("schedmate.assignments", e.MemberAssigned)
    assert (assigned.node, assigned.gpus, assigned.session, assigned.term) == ("n1", (0, 1), 1, 1)
    await world.started("j1")
    await world.until("schedmate.decisions", e.JobStarted)
    await world.exited("j1")
    await world.until("schedmate.decisions", e.JobSucceeded)
    await world.until("schedmate.assignments", e.MemberReleased)
    outcome = await replay(world.store, "default")
    assert outcome.difference is None
    assert outcome.decisions >= 5


async def test_a_new_leader_goes_on_where_the_old_one_was_killed(world: World) -> None:
    first = await world.leader("d1")
    await world.report()
    for n in range(30):
        await world.submit(f"j{n}", gpus=1)
    await world.until("schedmate.assignments", e.MemberAssigned, 4)
    await world.kill(first)
    await world.leader("d2")
    for n in range(4):
        await world.started(f"j{n}")
        await world.exited(f"j{n}")
    again = await world.until("schedmate.assignments", e.MemberAssigned, 8)
    attempts = {(x.job_id, x.attempt) for x in again}
    assert len(attempts) == len({(x.job_id, x.attempt, x.seq, x.index) for x in again})
    assert max(x.term for x in again) == 2
    assert (await replay(world.store, "default")).difference is None


async def test_what_was_appended_but_not_published_is_published_by_the_next_leader(world: World) -> None:
    first = await world.leader("d1")
    await world.report()
    await world.until("schedmate.decisions", e.NodeJoined)
    world.bus.faults.fail_before_write = 1.0  # the leader stalls between append and publish
    pool_log = PoolLog(world.store, "default")
    world.bus.faults.next_publishes.append("ok")
    await world.submit("j1")

    async def appended() -> bool:
        return any(d.KIND == "placed" for entry in [x async for x in pool_log.entries(-1)] for d in entry.decisions)

    await eventually(appended)
    await world.kill(first)
    world.bus.faults.fail_before_write = 0.0
    assert await world.events("schedmate.assignments", e.MemberAssigned) == []
    await world.leader("d2")
    [assigned] = await world.until("schedmate.assignments", e.MemberAssigned)
    assert assigned.term == 1  # published unchanged: its term, its ids


async def test_of_two_dispatchers_that_both_believe_they_lead_one_is_refused(world: World) -> None:
    first = await world.leader("d1")
    await world.report()
    await world.until("schedmate.decisions", e.NodeJoined)
    stalled = first.leaders["default"]
    lease = stalled._lease
    lease.renew = lambda held: asyncio.sleep(0, held)  # type: ignore[method-assign] # believes for ever that it holds the lease
    second = await world.leader("d2")
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned, 1)
    await eventually(lambda: first.leaders.get("default") is not stalled)
    assigned = await world.events("schedmate.assignments", e.MemberAssigned)
    assert {(x.job_id, x.attempt, x.term) for x in assigned} == {("j1", 1, 2)}
    assert second.leaders["default"].held.term == 2


async def test_a_deposed_leader_that_appends_collides_with_the_opening_entry() -> None:
    store = MemoryStore()
    await store.start()
    await store.setup(topology().collections.values())
    log = PoolLog(store, "p")

    def entry(seq: int, term: int, writer: str) -> Entry:
        return Entry("p", seq, term, 1.0, writer, (), {}, {}, "bus", ())

    await log.append(entry(0, 1, "old"))
    await log.append(entry(1, 2, "new"))
    with pytest.raises(DeposedError):
        await log.append(entry(1, 1, "old"))
    with pytest.raises(AppendCollisionError):
        await log.append(entry(0, 3, "new"))


async def test_a_lost_acknowledgement_of_an_append_is_recognised_as_our_own() -> None:
    store = MemoryStore()
    await store.start()
    await store.setup(topology().collections.values())
    log = PoolLog(store, "p")
    entry = Entry("p", 0, 1, 1.0, "me", (), {}, {}, "bus", ())
    store.faults.script("insert", Fault.LOST_ACKNOWLEDGEMENT)
    await log.append(entry)
    await log.append(entry)
    assert [x.id async for x in log.entries(-1)] == [entry.id]


async def test_a_sleeping_leader_cannot_append_below_a_snapshot(world: World) -> None:
    await world.leader(snapshot_every=10)
    await world.report()
    for n in range(25):
        await world.submit(f"j{n}")
        await world.until("schedmate.decisions", e.JobQueued, n + 1)
    log = PoolLog(world.store, "default")
    snapshot = await eventually(log.newest_snapshot)
    assert snapshot.seq >= 10
    with pytest.raises((DeposedError, AppendCollisionError)):
        await log.append(Entry("default", 5, 1, 1.0, "sleeper", (), {}, {}, "bus", ()))


async def test_an_event_before_its_job_and_a_cancel_before_its_job_are_kept(world: World) -> None:
    await world.leader()
    await world.report()
    await world.say(
        e.RunTimeEstimated(
            job_id="j1", pool="default", revision=1, p10_s=1, p50_s=2, p90_s=3, basis=e.EstimateBasis.LEARNED
        )
    )
    await world.say(e.JobCancelRequested(job_id="j2", pool="default", requested_by="ann"))
    await asyncio.sleep(0)
    await world.submit("j2")
    await world.submit("j1")
    [assigned] = await world.until("schedmate.decisions", e.JobAssigned)
    assert assigned.predicted_p50_s == 2
    [cancelled] = await world.until("schedmate.decisions", e.JobCancelled)
    assert cancelled.job_id == "j2"


async def test_poison_on_a_topic_and_poison_for_the_fold_end_in_dead_letters_and_stop_nothing(world: World) -> None:
    await world.leader()
    await world.report()
    await world.bus.publish([Record("schedmate.runs", b"k", b"not json", (("pool", b"default"),))])
    await world.say(
        e.NodeDrainRequested(node="nowhere", pool="default", requested_by="op")
    )  # decodes, but the fold refuses it
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    letters = await world.until("schedmate.dead-letters", e.DeadLettered, 2)
    assert {x.original_topic for x in letters} == {"schedmate.runs", "schedmate.commands"}
    assert all(x.service == "dispatcher" for x in letters)
    assert (await replay(world.store, "default")).difference is None


async def test_an_input_that_breaks_the_core_is_refused_and_the_pool_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = folding._HANDLERS[EstimateArrived]

    def bad(state: Any, value: Any) -> None:
        if value.job == "evil":
            state.jobs.clear()  # half-done damage
            raise ZeroDivisionError("a bug")
        good(state, value)

    monkeypatch.setitem(folding._HANDLERS, EstimateArrived, bad)
    await world.leader()
    await world.report()
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.say(e.RunTimeEstimated(job_id="evil", pool="default", revision=1, basis=e.EstimateBasis.UNKNOWN))
    [letter] = await world.until("schedmate.dead-letters", e.DeadLettered)
    assert letter.original_topic == "schedmate.estimates"
    await world.started("j1")
    await world.until("schedmate.decisions", e.JobStarted)
    assert (await replay(world.store, "default")).difference is None


async def test_a_silent_node_is_lost_only_after_its_lease_and_its_job_runs_elsewhere(world: World) -> None:
    await world.leader()
    await world.report("n1")
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.started("j1")
    await world.report("n1", lease_s=0.5)  # its last
    await world.report("n2", session=1)
    [lost] = await world.until("schedmate.decisions", e.NodeLost)
    assert lost.node == "n1"
    await world.until("schedmate.assignments", e.MemberAssigned, 1, lambda x: x.node == "n2" and x.attempt == 2)


async def test_a_takeover_after_a_long_outage_of_the_bus_calls_no_node_lost(world: World) -> None:
    first = await world.leader("d1", lease_margin_s=0.0)
    await world.report("n1", lease_s=3.0)
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.started("j1")
    await world.until("schedmate.decisions", e.JobStarted)
    world.bus.faults.unavailable = True
    await world.kill(first)
    await asyncio.sleep(3.5)  # the outage itself lasts longer than the lease
    world.bus.faults.unavailable = False
    second = await world.leader("d2", lease_margin_s=0.0)
    for _ in range(12):
        job = next(iter(second.leaders["default"].state.jobs.values()))  # type: ignore[union-attr]
        await world.report("n1", lease_s=3.0, applied_seq=job.place[0], applied_index=job.place[1], runs=(
            e.RunReport(job_id="j1", run_id=run_id("j1", 1), attempt=1, member=0, pool="default", seq=job.place[0], index=job.place[1],
                        gpus=(0,), state="running", started_at=CLOCK.now()),))  # fmt: skip
        await asyncio.sleep(0.3)
    assert await world.events("schedmate.decisions", e.NodeLost) == []
    assert second.leaders["default"].state.jobs["j1"].attempt == 1  # type: ignore[union-attr]


async def test_records_lost_to_retention_start_a_reconciliation_from_the_job_documents(world: World) -> None:
    first = await world.leader("d1")
    await world.report()
    await world.submit("j0")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.kill(first)
    spec = JobSpec(name="j1", command=("x",), tenant="t", user="u", pool="default")
    await world.store.insert(
        "jobs", "j1", {"pool": "default", "spec": spec.model_dump(mode="json"), "submitted_at": CLOCK.now()}
    )
    await world.submit("j1")
    partition = Partition("schedmate.jobs", partition_of(b"j1", await world.bus.partitions("schedmate.jobs")))
    end = (await world.bus.bounds([partition]))[partition].end
    world.bus.truncate(partition, end)
    await world.submit("j2")
    await world.leader("d2")
    found = await world.until("schedmate.decisions", e.JobQueued, 3)
    assert {x.job_id for x in found} == {"j0", "j1", "j2"}


async def test_a_waiting_job_is_told_why_and_what_would_unblock_it(world: World) -> None:
    made = await world.leader()
    await world.report("n1", 4)
    await world.say(
        e.RunTimeEstimated(
            job_id="j1", pool="default", revision=1, p10_s=50, p50_s=100, p90_s=200, basis=e.EstimateBasis.EXACT_PRIOR
        )
    )
    await world.submit("j1", gpus=3)
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.submit("j2", gpus=4)
    told = (await world.until("schedmate.reasons", e.JobReasoned, 1, lambda x: x.job_id == "j2"))[-1]
    assert told.reason == "INSUFFICIENT_GPUS"
    assert "needs 4 GPUs on one node; the largest free is 1 on n1" in told.detail
    assert told.unblocks is not None
    assert told.unblocks.waits_for_jobs == ("j1",)
    assert told.unblocks.expected_at is not None
    assert made.ready()["caught_up"]


async def test_a_stopped_dispatcher_hands_over_at_once(world: World) -> None:
    await world.leader("d1", lease_s=30.0)
    stop, task, made = world.stops[0]
    stop.set()
    await asyncio.wait_for(task, 10)
    second = await world.leader("d2", lease_s=30.0)
    assert second.leaders["default"].held.term == 2
    assert made.leaders == {}


async def test_another_bus_than_the_logs_is_noticed(world: World) -> None:
    first = await world.leader("d1")
    await world.report()
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.kill(first)
    world.bus = MemoryBus(CLOCK)
    await world.bus.start()
    await world.bus.create_topics(topology().topics.values())
    second = await world.leader("d2")
    assert second.leaders["default"].state.jobs["j1"].attempt == 1  # type: ignore[union-attr]


async def test_a_change_of_the_pools_settings_is_taken_over_and_recorded(world: World) -> None:
    made = await world.leader(config_every_s=0.05)
    await world.report("n1", 4)
    await world.store.put("pool_config", "default", {"tenant_gpus_max": 1})
    await eventually(lambda: made.leaders["default"].state.config.tenant_gpus_max == 1)  # type: ignore[union-attr]
    await world.submit("j1")
    await world.submit("j2")
    await world.until("schedmate.reasons", e.JobReasoned, 1, lambda x: x.reason == "TENANT_GPU_LIMIT")
    refused = {"placer": "nobody", "tenant_gpus_max": 2}  # there is no such placer: the old ones stay
    await world.store.put("pool_config", "default", refused)
    state = made.leaders["default"].state
    assert state is not None
    assert await made.leaders["default"]._configured(state) is None
    await world.store.put("pool_config", "default", {"tenant_gpus_max": "many"})  # makes no sense: the old ones stay
    await world.submit("j3", tenant="team-b")
    await world.until("schedmate.assignments", e.MemberAssigned, 2)
    await world.store.put("pool_config", "default", {})
    await world.until("schedmate.assignments", e.MemberAssigned, 3)
    assert (await replay(world.store, "default")).difference is None


async def test_what_was_read_is_folded_though_the_bus_stops_answering_right_after(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.leader()
    await world.report()
    await world.until("schedmate.decisions", e.NodeJoined)
    leader = made.leaders["default"]
    bounds, failures = world.bus.bounds, 3

    async def fails(partitions: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise BusUnavailableError("the bus does not answer")
        return await bounds(partitions)

    monkeypatch.setattr(world.bus, "bounds", fails)
    for n in range(3):
        await world.submit(f"j{n}")
        await eventually(lambda n=n: leader.state is not None and f"j{n}" in leader.state.jobs)
    await eventually(lambda: failures < 0 and leader.ready)


async def test_any_number_of_inputs_that_break_the_core_in_one_batch_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, decide = folding._HANDLERS[EstimateArrived], stepping.decide

    def bad(state: Any, value: Any) -> None:
        if value.job == "evil":
            raise ZeroDivisionError("a bug in the fold")
        good(state, value)

    def worse(state: Any) -> Any:
        if any(job.tenant == "evil" for job in state.jobs.values()):
            raise ZeroDivisionError("a bug in deciding")
        return decide(state)

    monkeypatch.setitem(folding._HANDLERS, EstimateArrived, bad)
    monkeypatch.setattr(stepping, "decide", worse)
    await world.report()
    for n in range(3):  # at-least-once: the same again and again
        await world.say(e.RunTimeEstimated(job_id="evil", pool="default", revision=1, basis=e.EstimateBasis.UNKNOWN))
        await world.submit(f"evil{n}", tenant="evil")
    await world.submit("j1")
    await world.leader()
    letters = await world.until("schedmate.dead-letters", e.DeadLettered, 6)
    assert {x.original_topic for x in letters} == {"schedmate.estimates", "schedmate.jobs"}
    await world.until("schedmate.assignments", e.MemberAssigned, 1, lambda x: x.job_id == "j1")
    assert (await replay(world.store, "default")).difference is None


async def test_a_recovery_that_takes_longer_than_the_lease_keeps_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await world.leader("d1")
    await world.report()
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.kill(first)
    entries = PoolLog.entries

    async def slow(self: PoolLog, *given: Any) -> AsyncIterator[Entry]:
        async for entry in entries(self, *given):
            await asyncio.sleep(0.4)
            yield entry

    monkeypatch.setattr(PoolLog, "entries", slow)
    second = await world.dispatcher("d2")
    third = await world.dispatcher("d3")
    ready = await eventually(lambda: [x for x in (second, third) if x.leaders and x.leaders["default"].ready], 20)
    assert len(ready) == 1
    assert ready[0].leaders["default"].held.term == 2  # nobody took it over in between


async def test_a_term_is_opened_before_the_bus_answers(world: World) -> None:
    first = await world.leader("d1")
    await world.report()
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.kill(first)
    second = await world.dispatcher("d2")
    world.bus.faults.unavailable = True
    log = PoolLog(world.store, "default")

    async def opened() -> list[Entry]:
        return [x async for x in log.entries(-1) if x.term == 2]

    [opening, *_] = await eventually(opened)
    with pytest.raises(DeposedError):
        await log.append(Entry("default", opening.seq, 1, 1.0, "d1", (), {}, {}, "bus", ()))
    assert not second.ready()["caught_up"]
    world.bus.faults.unavailable = False
    await eventually(lambda: second.ready()["caught_up"] and second.leaders)


async def test_progress_that_says_nothing_new_stays_out_of_the_log(world: World) -> None:
    made = await world.leader()
    await world.report()
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    await world.started("j1")
    await world.until("schedmate.decisions", e.JobStarted)
    for eta in (1000.0, 999.0, 1001.0, 998.0, 4000.0):
        await world.say(
            e.ProgressObserved(
                job_id="j1", pool="default", run_id=run_id("j1", 1), attempt=1, member=0, log_offset=9, eta_s=eta
            )
        )
    state = made.leaders["default"].state
    assert state is not None
    await eventually(lambda: (state.jobs["j1"].expected_end or 0.0) > CLOCK.now() + 3000)
    log = PoolLog(world.store, "default")
    told = [x.remaining_s async for entry in log.entries(-1) for x in entry.inputs if isinstance(x, ProgressArrived)]
    assert (told[0], told[-1]) == (1000.0, 4000.0)
    batches = [[x for x in entry.inputs if isinstance(x, ProgressArrived)] async for entry in log.entries(-1)]
    assert sum(bool(batch) for batch in batches) <= 2  # what came in one batch may stand together


async def test_an_earlier_leaders_clock_that_was_ahead_stops_no_timer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda self: now(self) + 3600.0)
    first = await world.leader("d1", policy="fifo")
    await world.store.put("pool_config", "default", {"start_timeout_s": 1.0})
    await world.report()
    await world.until("schedmate.decisions", e.NodeJoined)
    await world.kill(first)
    monkeypatch.setattr(SystemClock, "now", now)
    await world.leader("d2")
    await world.submit("j1")
    await world.until("schedmate.assignments", e.MemberAssigned)
    [stopping] = await world.until("schedmate.decisions", e.JobStopping)  # after a second, not after an hour
    assert stopping.reason == "START_TIMEOUT"
