"""The pool's log: leases, entries, snapshots, recovery and replay, on a store in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from schedmate.infra.clock import VirtualClock
from schedmate.infra.store.faults import Fault, Faults
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.schemas.codec import decode
from schedmate.schemas.events import JobAssigned, MemberAssigned
from schedmate.schemas.job import JobSpec
from schedmate.schemas.topology import topology
from schedmate.services.dispatcher import log as pool_log
from schedmate.services.dispatcher.core import decisions as d
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.state import CORE_VERSION, PoolState
from schedmate.services.dispatcher.leases import PoolLease
from schedmate.services.dispatcher.log import (
    AppendCollisionError,
    DeposedError,
    Entry,
    PoolLog,
    Refusal,
    Snapshot,
    entry_key,
)
from schedmate.services.dispatcher.recovery import fold_entry, missing_jobs, recover_pool
from schedmate.services.dispatcher.replay import replay
from tests.dispatching import START, arrived, report
from tests.pool_traces import fresh, step

SPEC = JobSpec(name="j", command=("x",), tenant="team-a", user="ann", pool="default")


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(Faults())
    await made.start()
    await made.setup(topology().collections.values())
    yield made
    await made.stop()


async def written(store: MemoryStore, *batches: list[i.Input], pool: str = "default") -> PoolState:
    """Decide batches and append them, as a leader does; return the state that it came to."""
    state, log = fresh(pool), PoolLog(store, pool)
    for number, batch in enumerate(batches):
        done = step(state, batch, START + number)
        refused = {place: Refusal(error) for place, error in done.refused.items()}
        await log.append(
            Entry(pool, state.seq, 1, state.at, "me", done.inputs, refused, {"t": [number + 1]}, "bus", done.decisions)
        )
    return state


def life() -> list[list[i.Input]]:
    return [
        [report("n1", 2)],
        [arrived("j1", spec=SPEC.model_dump_json()), arrived("j2", gpus=4, spec=SPEC.model_dump_json())],
        [i.NodeCommanded("nowhere", "drain", "op", "")],
        [i.MemberStarted("j1", 1, 0, "n1", 1, START)],
        [i.MemberExited("j1", 1, 0, "n1", 1, "exited", 0, None, START, START + 3)],
    ]


# --- leases ---


def lease(store: MemoryStore, clock: VirtualClock, holder: str) -> PoolLease:
    return PoolLease(store, "p", holder, f"{holder}:1", 10.0, clock)


async def test_a_standby_takes_over_only_what_stood_still_for_the_lease_on_its_own_clock(store: MemoryStore) -> None:
    clock = VirtualClock()
    first, second = lease(store, clock, "a"), lease(store, clock, "b")
    held = await first.try_take()
    assert held is not None
    assert held.term == 1
    for _ in range(5):
        assert await second.try_take() is None
        clock.advance(9.0)
        held = await first.renew(held)
        assert held is not None
    assert await second.try_take() is None
    clock.advance(9.9)
    assert await second.try_take() is None
    clock.advance(0.2)
    taken = await second.try_take()
    assert taken is not None
    assert taken.term == 2
    assert await first.renew(held) is None
    await first.release(held)  # late: it changes nothing
    assert (await store.get("pool_leases", "p")).body["holder"] == "b"  # type: ignore[union-attr]


async def test_a_renewal_whose_acknowledgement_was_lost_is_still_ours(store: MemoryStore) -> None:
    first = lease(store, VirtualClock(), "a")
    held = await first.try_take()
    assert held is not None
    store.faults.script("replace", Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(StoreUnavailableError):
        await first.renew(held)
    again = await first.renew(held)
    assert again is not None
    assert await first.renew(again) is not None


async def test_a_released_lease_is_taken_at_once_and_by_one_only(store: MemoryStore) -> None:
    clock = VirtualClock()
    first, second, third = (lease(store, clock, name) for name in "abc")
    held = await first.try_take()
    assert held is not None
    await first.release(held)
    assert (await second.try_take()).term == 2  # type: ignore[union-attr]
    assert await third.try_take() is None


async def test_of_two_that_take_a_new_pool_one_gets_it(store: MemoryStore) -> None:
    clock = VirtualClock()
    first, second = lease(store, clock, "a"), lease(store, clock, "b")
    get = store.get

    async def nothing_there(collection: str, doc_id: str) -> None:
        return None

    assert await first.try_take() is not None
    store.get = nothing_there  # type: ignore[method-assign,assignment] # both looked before either wrote
    assert await second.try_take() is None
    store.get = get  # type: ignore[method-assign]


# --- entries ---


async def test_an_entry_survives_the_store(store: MemoryStore) -> None:
    refusal = Refusal("bad", "schedmate.runs", 3, 7, "k\xe9", "v\x00\xff", (("ce_id", "x"),))
    entry = Entry("p", 0, 2, START, "me", (i.Tick(),), {0: refusal}, {"t": [1, 2]}, "bus", (d.NodeMarked("n", "lost"),), {"policy": "fifo"})  # fmt: skip
    log = PoolLog(store, "p")
    await log.append(entry)
    [back] = [x async for x in log.entries(-1)]
    assert back == entry
    assert back.id == entry.id
    assert json.loads(json.dumps(back.to_body())) == entry.to_body()


async def test_entries_come_in_order_however_many_there_are(store: MemoryStore) -> None:
    log = PoolLog(store, "p")
    for seq in range(450):
        await log.append(Entry("p", seq, 1, START, "me", (), {}, {}, "bus", ()))
    await PoolLog(store, "p2").append(Entry("p2", 0, 1, START, "me", (), {}, {}, "bus", ()))
    assert [x.seq async for x in log.entries(-1)] == list(range(450))
    assert [x.seq async for x in log.entries(99, 105)] == [100, 101, 102, 103, 104]


async def test_an_append_whose_result_is_unknown_is_read_back(store: MemoryStore) -> None:
    log = PoolLog(store, "p")
    mine = Entry("p", 0, 1, START, "me", (), {}, {}, "bus", ())
    store.faults.script("insert", Fault.REFUSED)
    with pytest.raises(StoreUnavailableError):  # nothing stands there
        await log.append(mine)
    store.faults.script("insert", Fault.LOST_ACKNOWLEDGEMENT)
    await log.append(mine)
    with pytest.raises(AppendCollisionError, match="written by me in term 1"):
        await log.append(replace(mine, writer="you"))
    await log.append(replace(mine, seq=1, term=5))
    with pytest.raises(DeposedError, match="belongs to term 5"):
        await log.append(replace(mine, seq=1, term=4))


# --- snapshots ---


async def test_a_snapshot_is_cut_into_parts_and_old_ones_go(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_log, "SNAPSHOT_PART_BYTES", 100)
    log = PoolLog(store, "p")
    body = {"text": "训练" * 200}
    for seq in (10, 20, 30, 30):
        await log.save(Snapshot(seq, 1, {"t": [seq]}, "bus", {**body, "seq": seq}))
    found = await log.newest_snapshot()
    assert found == Snapshot(30, 1, {"t": [30]}, "bus", {**body, "seq": 30})
    keys = [x.id for x in await store.scan("pool_snapshots", low="", high="~", limit=1000)]
    assert {key.split("/")[1] for key in keys} == {f"{20:012d}", f"{30:012d}", "index"}
    assert len(keys) > 5


async def test_a_snapshot_that_lacks_a_part_is_passed_over(store: MemoryStore) -> None:
    log = PoolLog(store, "p")
    for seq in (10, 20):
        await log.save(Snapshot(seq, 1, {}, "bus", {"seq": seq}))
    await store.delete("pool_snapshots", f"p/{20:012d}/000000")
    assert (await log.newest_snapshot()).seq == 10  # type: ignore[union-attr]
    assert await log.newest_snapshot(9) is None
    assert await PoolLog(store, "other").newest_snapshot() is None


async def test_a_snapshot_beyond_what_was_published_is_passed_over_for_the_one_before(store: MemoryStore) -> None:
    state = await written(store, *life())
    log = PoolLog(store, "default")
    early = fresh()
    async for entry in log.entries(-1):
        fold_entry(early, entry)
        if entry.seq in (1, 3):
            await log.save(Snapshot(entry.seq, 1, entry.offsets, entry.bus, early.to_json()))
    await log.set_published(2)
    for seq in (0, 1):
        await store.delete("pool_log", entry_key("default", seq))  # archived below the snapshot
    recovered = await recover_pool(log)
    assert recovered.state.to_json() == state.to_json()
    assert [seq for seq, _ in recovered.unpublished] == [3, 4]


# --- recovery ---


async def test_recovery_comes_to_the_leaders_state_and_tells_what_is_not_published(store: MemoryStore) -> None:
    state = await written(store, *life())
    log = PoolLog(store, "default")
    await log.set_published(0)
    recovered = await recover_pool(log)
    assert recovered.state.to_json() == state.to_json()
    assert recovered.offsets == {"t": [5]}
    assert recovered.bus == "bus"
    assert [seq for seq, _ in recovered.unpublished] == [1, 2, 3, 4]
    events = [decode(record).event for _, records in recovered.unpublished for record in records]
    assert {type(x) for x in events} >= {JobAssigned, MemberAssigned}
    again = await recover_pool(log)
    assert [r for _, r in again.unpublished] == [r for _, r in recovered.unpublished]  # the same, byte for byte


async def test_a_log_with_a_gap_is_not_folded(store: MemoryStore) -> None:
    await written(store, *life())
    await store.delete("pool_log", entry_key("default", 2))
    with pytest.raises(AssertionError, match="lacks entry 2"):
        await recover_pool(PoolLog(store, "default"))


async def test_an_empty_log_is_a_pool_with_the_default_settings(store: MemoryStore) -> None:
    recovered = await recover_pool(PoolLog(store, "new"))
    assert recovered.state.to_json() == fresh("new").to_json()
    assert (recovered.offsets, recovered.bus, recovered.unpublished) == ({}, "", [])


async def test_jobs_that_the_log_does_not_know_come_from_their_documents(store: MemoryStore) -> None:
    state = await written(store, *life())
    spec = SPEC.model_dump(mode="json")
    documents: dict[str, dict[str, Any]] = {
        "lost": {"pool": "default", "spec": spec, "submitted_at": START, "traceparent": "00-1-2-01"},
        "j1": {"pool": "default", "spec": spec, "submitted_at": START},  # has ended
        "j2": {"pool": "default", "spec": spec, "submitted_at": START},  # waits
        "else": {"pool": "other", "spec": spec, "submitted_at": START},
        "odd": {"pool": "default", "spec": {"name": "?"}, "submitted_at": START},
    }
    for job, body in documents.items():
        await store.insert("jobs", job, body)
    found = await missing_jobs(store, state)
    assert [(x.job, x.trace) for x in found if isinstance(x, i.JobArrived)] == [("lost", "00-1-2-01")]


# --- replay ---


async def test_a_replay_decides_the_same(store: MemoryStore) -> None:
    await written(store, *life())
    outcome = await replay(store, "default")
    assert (outcome.entries, outcome.difference, outcome.other_versions) == (5, None, ())
    assert outcome.decisions > 4


@pytest.mark.parametrize("how", ["changed", "added", "removed", "an input changed"])
async def test_a_replay_tells_the_first_difference_where_an_entry_was_tampered_with(
    store: MemoryStore, how: str
) -> None:
    await written(store, *life())
    key = entry_key("default", 1)
    found = await store.get("pool_log", key)
    assert found is not None
    body = json.loads(json.dumps(found.body))
    match how:
        case "changed":
            body["decisions"][2]["seats"] = [["n1", 1, [1]]]
        case "added":
            body["decisions"].append({"kind": "node", "node": "n1", "mark": "lost"})
        case "removed":
            del body["decisions"][-1]
        case _:
            body["inputs"][0]["gpus"] = 2
    body["core_version"] = "0"
    await store.put("pool_log", key, body)
    outcome = await replay(store, "default")
    assert outcome.entries == 1
    assert outcome.difference is not None
    assert outcome.difference.seq == 1
    told = str(outcome.difference)
    assert told.startswith(
        f"entry 1, decision {outcome.difference.index} (recorded by core 0, replayed by {CORE_VERSION}): "
    )
    missing = {"added": "replayed None", "removed": "recorded None"}.get(how)
    assert missing is None or missing in told


async def test_a_replay_says_which_other_cores_recorded_even_where_they_decided_the_same(store: MemoryStore) -> None:
    await written(store, *life())
    found = await store.get("pool_log", entry_key("default", 0))
    assert found is not None
    await store.put("pool_log", entry_key("default", 0), {**found.body, "core_version": "0"})
    outcome = await replay(store, "default")
    assert (outcome.difference, outcome.other_versions) == (None, ("0",))


def test_a_state_that_is_not_between_two_entries_has_no_snapshot() -> None:
    state = fresh()
    step(state, [arrived("j")], START)
    state.touch(state.jobs["j"])
    with pytest.raises(AssertionError, match="between two entries"):
        state.to_json()
