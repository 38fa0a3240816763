"""The faults that the memory store injects, and the parts of the stores that need no server."""

from __future__ import annotations

import asyncio

import pytest

from schedmate.infra.clock import VirtualClock
from schedmate.infra.local_disk import network_file_system
from schedmate.infra.store.documents import DOCUMENT_BYTES_MAX
from schedmate.infra.store.faults import Fault, Faults
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.mongo_keys import escaped, has_marks, unescaped
from schedmate.infra.store.mongo_settings import weaknesses_in
from schedmate.infra.store.port import Document, DuplicateKeyError, StoreError, StoreUnavailableError
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas.topology import Collection
from tests.waiting import eventually

THINGS = Collection("things", ())


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def memory(faults: Faults) -> MemoryStore:
    store = MemoryStore(faults)
    await store.setup([THINGS])
    return store


async def test_a_refused_write_did_not_happen(clock):
    store = await memory(Faults(clock=clock))
    store.faults.script("insert", Fault.REFUSED)
    with pytest.raises(StoreUnavailableError, match="refused"):
        await store.insert("things", "a", {})
    assert await store.count("things") == 0
    await store.insert("things", "a", {})
    assert store.faults.injected == 1


async def test_a_write_whose_acknowledgement_is_lost_happened_and_its_retry_meets_itself(clock):
    store = await memory(Faults(clock=clock))
    store.faults.script("insert", Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(StoreUnavailableError, match="acknowledgement is lost"):
        await store.insert("things", "a", {"by": "me"})
    with pytest.raises(DuplicateKeyError):
        await store.insert("things", "a", {"by": "me"})
    assert await store.get("things", "a") == Document("a", 1, {"by": "me"})
    store.faults.script("replace", Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(StoreUnavailableError):
        await store.replace("things", "a", {"by": "me again"}, version=1)
    assert await store.replace("things", "a", {"by": "me again"}, version=1) is False
    assert await store.get("things", "a") == Document("a", 2, {"by": "me again"})
    store.faults.script("delete", Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(StoreUnavailableError):
        await store.delete("things", "a")
    assert await store.delete("things", "a") is False


async def test_a_write_that_is_refused_by_its_content_keeps_its_own_error(clock):
    store = await memory(Faults(clock=clock))
    await store.insert("things", "a", {})
    store.faults.script("insert", Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(DuplicateKeyError):
        await store.insert("things", "a", {})


async def test_an_outage_refuses_everything_for_its_time(clock):
    store = await memory(Faults(clock=clock))
    store.faults.outage(30)
    for call in (store.start(), store.ping(), store.get("things", "a"), store.put("things", "a", {})):
        with pytest.raises(StoreUnavailableError, match="down"):
            await call
    clock.advance(29)
    with pytest.raises(StoreUnavailableError):
        await store.ping()
    clock.advance(1)
    await store.put("things", "a", {})
    store.faults.outage(30)
    store.faults.recover()
    assert await store.count("things") == 1


async def test_a_planned_outage_comes_and_goes_by_the_clock(clock):
    store = await memory(Faults(clock=clock, outages=[(10, 20)]))
    await store.ping()
    clock.advance(10)
    with pytest.raises(StoreUnavailableError):
        await store.ping()
    clock.advance(10)
    await store.ping()


async def test_a_delayed_operation_waits_on_the_injected_clock(clock):
    faults = Faults(clock=clock)
    store = await memory(faults)
    store.faults = Faults(clock=clock, delay=1.0, delay_s=(5.0, 5.0))
    put = asyncio.create_task(store.put("things", "a", {}))
    await eventually(lambda: len(clock._sleepers) == 1)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not put.done()
    clock.advance(0.2)
    await put


async def test_the_same_seed_gives_the_same_faults(clock):
    async def outcomes(seed: int) -> list[str]:
        store = await memory(Faults())
        store.faults = Faults(seed, clock, refused=0.2, lost_acknowledgement=0.2)
        found = []
        for n in range(60):
            try:
                await store.put("things", f"{n}", {})
                found.append("ok")
            except StoreUnavailableError as error:
                found.append("lost" if "lost" in str(error) else "refused")
        return found

    first = await outcomes(7)
    assert first == await outcomes(7)
    assert set(first) == {"ok", "lost", "refused"}
    assert first != await outcomes(8)


async def test_reads_lose_no_acknowledgement(clock):
    store = await memory(Faults())
    store.faults = Faults(1, clock, lost_acknowledgement=1.0)
    assert await store.get("things", "a") is None


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "%", "%2E", "a.b", "$set", "$", ".", "%%", "a\0b", "%25", "100%", "ä.ö"])
def test_any_key_is_written_without_marks_and_read_back(key):
    value = {key: [{key: 1}]}
    assert has_marks(value)
    written = escaped(value)
    assert not any(mark in name for name in written for mark in ".$\0")
    assert "" not in written
    assert unescaped(written) == value


def test_plain_keys_need_no_writing_differently():
    assert not has_marks({"a": {"b_c": [1, {"d-e": None}]}})


def test_the_size_limit_leaves_room_for_the_envelope():
    assert 16 * 1024 * 1024 - DOCUMENT_BYTES_MAX >= 1024 + 8 * 20 + 200


# --- settings of a server ---------------------------------------------------------------------------------------------

STRONG = {
    "hello": {"setName": "rs0", "maxBsonObjectSize": 16777216},
    "defaults": {"defaultWriteConcern": {"w": "majority", "wtimeout": 0}},
    "options": {"parsed": {"storage": {"journal": {"enabled": True}}}},
    "status": {"storageEngine": {"name": "wiredTiger", "persistent": True}},
    "replication": {"config": {"members": [{"votes": 1}] * 3, "writeConcernMajorityJournalDefault": True}},
}


def test_a_server_that_keeps_what_it_acknowledges_is_accepted():
    assert weaknesses_in(**STRONG) == []


def test_a_server_that_tells_nothing_is_accepted():
    assert weaknesses_in(hello={}, defaults={}, options={}, status={}, replication={}) == []


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ({"defaults": {"defaultWriteConcern": {"w": 1}}}, "setDefaultRWConcern"),
        ({"defaults": {"defaultWriteConcern": {"w": 0}}}, "w: 0"),
        ({"options": {"parsed": {"storage": {"journal": {"enabled": False}}}}}, "journal is off"),
        ({"status": {"storageEngine": {"name": "inMemory", "persistent": False}}}, "'inMemory' keeps nothing"),
        ({"replication": {"config": {"writeConcernMajorityJournalDefault": False}}}, "rs.reconfig"),
        ({"hello": {"maxBsonObjectSize": 4194304}}, "16 MiB are needed"),
    ],
)
def test_a_server_that_may_lose_what_it_acknowledged_is_refused_with_what_to_do(answer, rule):
    [found] = weaknesses_in(**{**STRONG, **answer})
    assert rule in found


def test_a_number_of_acknowledgements_that_is_a_majority_is_one():
    assert weaknesses_in(**{**STRONG, "defaults": {"defaultWriteConcern": {"w": 2}}}) == []


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/user/state", "nfs4"),
        ("/home/user/local/state", None),
        ("/var/state", None),
        ("/with space/state", "cifs"),
        ("/homely", None),
        ("/covered/state", None),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(tmp_path, path, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "rootfs / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/sda /home/user/local xfs rw 0 0\n"
        "//host/share /with\\040space cifs rw 0 0\nold:/x /covered nfs rw 0 0\n/dev/sdb /covered ext4 rw 0 0\n"
    )
    assert network_file_system(type(tmp_path)(path), mounts) == kind


async def test_a_sqlite_store_on_a_network_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("schedmate.infra.store.sqlite.network_file_system", lambda _: "nfs4")
    with pytest.raises(StoreError, match=r"nfs4.*local disk"):
        await SqliteStore(tmp_path / "store.db").start()
