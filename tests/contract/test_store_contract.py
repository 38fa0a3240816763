"""What every adapter of the port `Store` does, said once and run on each."""

from __future__ import annotations

import asyncio
import enum
import json
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedmate.infra.store.documents import DEPTH_MAX, DOCUMENT_BYTES_MAX, LIMIT_MAX
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.mongo import MongoStore
from schedmate.infra.store.port import (
    Document,
    DocumentTooLargeError,
    DuplicateKeyError,
    InvalidDocumentError,
    Store,
    StoreUnavailableError,
    UnknownCollectionError,
    scan_all,
)
from schedmate.infra.store.sqlite import SqliteStore
from schedmate.schemas.topology import Collection, Index, topology
from tests.servers import shared

THINGS = Collection("things", (Index("rank", unique=False), Index("name", unique=True)))
PLAIN = Collection("plain", ())
LAST = "\U0010ffff"


class Place(Protocol):
    """Where documents lie; several stores may be opened on it."""

    async def open(self) -> Store: ...


class MemoryPlace:
    def __init__(self) -> None:
        self.store = MemoryStore()

    async def open(self) -> Store:
        await self.store.start()
        return self.store

    async def close(self) -> None:
        await self.store.stop()


class SqlitePlace:
    def __init__(self, path) -> None:
        self.path = path
        self.stack = AsyncExitStack()

    async def open(self) -> Store:
        store = SqliteStore(self.path)
        await store.start()
        self.stack.push_async_callback(store.stop)
        return store

    async def close(self) -> None:
        await self.stack.aclose()


class MongoPlace:
    def __init__(self, client) -> None:
        self.url = shared("SCHEDMATE_TEST_MONGO")
        self.client = client
        self.database = f"test_store_{secrets.token_hex(6)}"
        self.stack = AsyncExitStack()

    async def open(self) -> Store:
        store = MongoStore(self.url, self.database, self.client)
        await store.start()
        self.stack.push_async_callback(store.stop)
        return store

    async def close(self) -> None:
        store = await self.open()
        await store._connection.database.client.drop_database(self.database)
        await self.stack.aclose()


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("motor", marks=pytest.mark.servers),
        pytest.param("pymongo", marks=pytest.mark.servers),
    ]
)
async def place(request, tmp_path) -> AsyncIterator[Place]:
    if request.param == "memory":
        place = MemoryPlace()
    elif request.param == "sqlite":
        place = SqlitePlace(tmp_path / "state" / "store.db")
    else:
        place = MongoPlace(request.param)
    yield place
    await place.close()


@pytest.fixture
async def store(place) -> Store:
    store = await place.open()
    await store.setup([THINGS, PLAIN])
    return store


def ids(documents) -> list[str]:
    return [document.id for document in documents]


# --- one document -----------------------------------------------------------------------------------------------------


async def test_a_document_is_inserted_once_as_version_1(store):
    await store.insert("things", "a", {"rank": 1})
    assert await store.get("things", "a") == Document("a", 1, {"rank": 1})
    with pytest.raises(DuplicateKeyError):
        await store.insert("things", "a", {"rank": 2})
    assert await store.get("things", "a") == Document("a", 1, {"rank": 1})


async def test_what_is_not_there_is_none(store):
    assert await store.get("things", "a") is None
    assert await store.get_many("things", ["a", "b"]) == {}
    assert await store.get_many("things", []) == {}
    assert await store.replace("things", "a", {}, version=1) is False
    assert await store.delete("things", "a") is False
    assert await store.count("things") == 0


async def test_get_many_returns_those_that_exist_in_the_order_asked_for(store):
    await store.put_many("things", {f"{n:04}": {"rank": n} for n in range(1200)})
    asked = [f"{n:04}" for n in range(1199, -1, -1)]
    found = await store.get_many("things", ["none", *asked])
    assert list(found) == asked
    assert found["0007"].body == {"rank": 7}


async def test_replace_happens_at_the_expected_version_alone(store):
    await store.insert("things", "a", {"rank": 1})
    assert await store.replace("things", "a", {"rank": 2}, version=2) is False
    assert await store.replace("things", "a", {"rank": 2}, version=1) is True
    assert await store.replace("things", "a", {"rank": 3}, version=1) is False
    assert await store.get("things", "a") == Document("a", 2, {"rank": 2})


async def test_put_writes_whatever_was_there(store):
    await store.put("things", "a", {"rank": 1, "name": "x"})
    await store.put("things", "a", {"rank": 2})
    assert await store.get("things", "a") == Document("a", 2, {"rank": 2})
    assert await store.replace("things", "a", {"rank": 3}, version=2) is True
    await store.put("things", "a", {"rank": 4})
    assert await store.get("things", "a") == Document("a", 4, {"rank": 4})


async def test_put_many_writes_each(store):
    await store.insert("things", "b", {"rank": 1})
    await store.put_many("things", {key: {"rank": 7} for key in "abc"})
    found = await store.get_many("things", ["a", "b", "c"])
    assert {key: document.version for key, document in found.items()} == {"a": 1, "b": 2, "c": 1}
    await store.put_many("things", {})


async def test_delete_happens_at_the_expected_version_alone_or_at_any(store):
    await store.insert("things", "a", {"name": "x"})
    await store.insert("things", "b", {})
    assert await store.delete("things", "a", version=2) is False
    assert await store.delete("things", "a", version=1) is True
    assert await store.delete("things", "b") is True
    assert await store.count("things") == 0
    await store.insert("things", "a", {"name": "x"})
    assert await store.get("things", "a") == Document("a", 1, {"name": "x"})


async def test_drop_leaves_an_empty_collection_that_works(store):
    await store.put_many("things", {f"{n}": {"rank": n, "name": f"{n}"} for n in range(20)})
    await store.drop("things")
    assert await store.count("things") == 0
    assert await store.find("things", "rank", low=0, high=100, limit=10) == []
    await store.insert("things", "1", {"rank": 1, "name": "1"})
    assert ids(await store.find("things", "rank", low=0, high=100, limit=10)) == ["1"]


async def test_collections_are_apart(store):
    await store.insert("things", "a", {"name": "x"})
    await store.insert("plain", "a", {"name": "x"})
    assert await store.delete("plain", "a") is True
    assert await store.count("things") == 1


# --- bodies -----------------------------------------------------------------------------------------------------------

BODY = {
    "null": None,
    "true": True,
    "int": 7,
    "zero": 0,
    "float": 1.0,
    "minus zero": -0.0,
    "tiny": 5e-324,
    "third": 1 / 3,
    "largest": 2**63 - 1,
    "least": -(2**63),
    "beyond 32": 2**31,
    "text": "schön \U0001f600 \0 \u2028",
    "empty": {},
    "list": [],
    "nested": {"a.b": {"$set": [1, {"%2E": 2, "": 3, "%": 4, "a\0b": 5}]}, "$": 1, ".": 2},
    "version": "mine",
    "_id": 5,
}


def exactly(value: Any) -> str:
    """A text that differs where the JSON types differ: 1 and 1.0, 0.0 and -0.0, 1 and true."""
    return json.dumps(value, sort_keys=True)


async def test_a_body_keeps_its_json_types_exactly(store):
    await store.insert("plain", "a", BODY)
    found = (await store.get("plain", "a")).body
    assert exactly(found) == exactly(BODY)
    assert list(found) == list(BODY)
    assert type(found["largest"]) is int
    assert math.copysign(1, found["minus zero"]) == -1
    assert await store.replace("plain", "a", {"again": BODY}, version=1)
    await store.put_many("plain", {"b": BODY})
    assert exactly((await store.get("plain", "a")).body) == exactly({"again": BODY})
    assert exactly((await store.scan("plain", low="b", high="c", limit=1))[0].body) == exactly(BODY)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])) | st.text(".$%\0", max_size=3), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=5))
def test_any_json_comes_back_as_it_was_from_the_embedded_stores(body, tmp_path):
    async def round_trip() -> None:
        for store in (MemoryStore(), SqliteStore(tmp_path / "any.db")):
            await store.start()
            await store.setup([PLAIN])
            await store.put("plain", "a", body)
            assert exactly((await store.get("plain", "a")).body) == exactly(body)
            await store.stop()

    asyncio.run(round_trip())


@pytest.mark.servers
@settings(max_examples=60)
@given(body=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=5))
def test_any_json_comes_back_as_it_was_from_mongo(body):
    async def round_trip() -> None:
        store = MongoStore(shared("SCHEDMATE_TEST_MONGO"), "test_store_any_json", "pymongo")
        await store.start()
        await store.setup([PLAIN])
        await store.put("plain", "a", body)
        assert exactly((await store.get("plain", "a")).body) == exactly(body)
        await store.stop()

    asyncio.run(round_trip())


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


async def test_tuples_become_lists_and_enums_plain_values(store):
    await store.insert("plain", "a", {"t": (1, (2, 3)), "s": Colour.RED, "n": Number.ONE, Colour.RED: {"k": ()}})
    body = (await store.get("plain", "a")).body
    assert body == {"t": [1, [2, 3]], "s": "red", "n": 1, "red": {"k": []}}


def nested(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(levels - 1):
        body = {"x": body}
    return body


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"n": 2**63}, "body.n is an integer beyond 64 bits"),
        ({"a": [{"n": -(2**63) - 1}]}, r"body.a.0.n is an integer beyond 64 bits"),
        ({"n": math.nan}, "nan"),
        ({"n": math.inf}, "inf"),
        ({1: "x"}, "a key in body is int"),
        ({"x": {None: 1}}, "a key in body.x is NoneType"),
        ({"x": b"bytes"}, "body.x is bytes"),
        ({"x": {1, 2}}, "body.x is set"),
        ({"x": "\ud800"}, "half a surrogate pair"),
        ({"\ud800": 1}, "half a surrogate pair"),
        (nested(DEPTH_MAX + 1), f"deeper than {DEPTH_MAX}"),
        ({"rank": True}, "field 'rank' is indexed"),
        ({"rank": [1]}, "field 'rank' is indexed"),
        ({"name": {}}, "field 'name' is indexed"),
        ({"name": None}, "field 'name' is unique: leave it out"),
    ],
)
async def test_a_body_that_cannot_be_kept_is_refused_by_every_write_and_named(store, body, rule):
    await store.insert("things", "old", {})
    for write in (
        store.insert("things", "a", body),
        store.put("things", "a", body),
        store.put_many("things", {"a": body}),
        store.replace("things", "old", body, version=1),
    ):
        with pytest.raises(InvalidDocumentError, match=rule):
            await write
    assert await store.count("things") == 1
    assert await store.get("things", "old") == Document("old", 1, {})


async def test_a_body_of_the_deepest_nesting_is_kept(store):
    await store.insert("things", "a", nested(DEPTH_MAX))
    assert (await store.get("things", "a")).body == nested(DEPTH_MAX)


async def test_a_document_of_the_largest_size_is_kept_and_a_larger_one_refused(store):
    largest = {"x": "y" * (DOCUMENT_BYTES_MAX - 5 - 3 - 5)}
    await store.insert("plain", "a", largest)
    assert (await store.get("plain", "a")).body == largest
    larger = {"x": largest["x"] + "y"}
    for write in (
        store.insert("plain", "b", larger),
        store.put("plain", "b", larger),
        store.put_many("plain", {"b": larger}),
        store.replace("plain", "a", larger, version=1),
    ):
        with pytest.raises(DocumentTooLargeError, match=str(DOCUMENT_BYTES_MAX)):
            await write
    assert await store.replace("plain", "a", {**largest, "x": largest["x"][:-1]}, version=1) is True


async def test_many_large_documents_are_put_in_one_call(store):
    bodies = {f"{n}": {"x": str(n) * 6_000_000} for n in range(9)}
    await store.put_many("plain", bodies)
    assert await store.count("plain") == 9
    assert (await store.get("plain", "8")).body == bodies["8"]


@pytest.mark.parametrize("doc_id", ["", "x" * 1025, "\ud800", 7, None])
async def test_an_id_that_is_none_is_refused(store, doc_id):
    for write in (store.insert("things", doc_id, {}), store.put_many("things", {doc_id: {}})):
        with pytest.raises(InvalidDocumentError):
            await write


async def test_neither_the_writer_nor_the_reader_can_change_what_is_stored(store):
    body = {"list": [1]}
    await store.insert("plain", "a", body)
    body["list"].append(2)
    first = await store.get("plain", "a")
    first.body["list"].append(3)
    assert (await store.get("plain", "a")).body == {"list": [1]}


# --- order ------------------------------------------------------------------------------------------------------------

WORDS = [
    "A",
    "Z",
    "a",
    "a!",
    "a/0",
    "a/1",
    "a/10",
    "a/2",
    "az",
    "b",
    "é",
    "ß",
    "中",
    "\uffee",
    "😀",
    "a\0",
    "\U0010fffe",
]


async def test_a_scan_is_in_the_order_of_code_points_within_its_bounds(store):
    await store.put_many("plain", {word: {"w": word} for word in reversed(WORDS)})
    ordered = sorted(WORDS)
    assert ids(await store.scan("plain", low="", high=LAST, limit=100)) == ordered
    assert ids(await store.scan("plain", low="", high=LAST, limit=100, reverse=True)) == ordered[::-1]
    assert ids(await store.scan("plain", low="a/", high="a0", limit=100)) == ["a/0", "a/1", "a/10", "a/2"]
    assert ids(await store.scan("plain", low="a/", high="a0", limit=2)) == ["a/0", "a/1"]
    assert ids(await store.scan("plain", low="a/", high="a0", limit=2, reverse=True)) == ["a/2", "a/10"]
    assert ids(await store.scan("plain", low="a", high="a\0", limit=10)) == ["a"]
    assert ids(await store.scan("plain", low="a\0", high="a!", limit=10)) == ["a\0"]
    assert ids(await store.scan("plain", low="😀", high=LAST, limit=10)) == ["😀", "\U0010fffe"]
    assert await store.scan("plain", low="b", high="b", limit=10) == []
    assert await store.scan("plain", low="c", high="b", limit=10) == []


async def test_every_page_together_is_every_document_once(store):
    await store.put_many("plain", {f"p/{n:05}": {"n": n} for n in range(57)})
    await store.put_many("plain", {"o": {}, "q": {}})
    found = [document async for document in scan_all(store, "plain", low="p/", high="p0", page=10)]
    assert [document.body["n"] for document in found] == list(range(57))


async def test_find_is_in_the_order_of_the_field_and_then_of_ids(store):
    ranks = {"d": 2, "a": 2, "c": 1.5, "b": 10, "e": -3, "f": 2.0, "g": None, "h": "text", "i": 2**62, "j": 2**62 + 1}
    await store.put_many("things", {key: {"rank": rank} for key, rank in ranks.items()})
    await store.put("things", "k", {"other": 1})
    infinite = {"low": -math.inf, "high": math.inf}
    ordered = ["e", "c", "a", "d", "f", "b", "i", "j"]
    assert ids(await store.find("things", "rank", **infinite, limit=100)) == ordered
    assert ids(await store.find("things", "rank", **infinite, limit=100, reverse=True)) == ordered[::-1]
    assert ids(await store.find("things", "rank", low=2, high=10, limit=100)) == ["a", "d", "f"]
    assert ids(await store.find("things", "rank", low=2, high=10, limit=2)) == ["a", "d"]
    assert ids(await store.find("things", "rank", low=2, high=10, limit=2, reverse=True)) == ["f", "d"]
    assert ids(await store.find("things", "rank", low=1.5, high=2, limit=100)) == ["c"]
    assert ids(await store.find("things", "rank", low=2**62 + 1, high=2**63 - 1, limit=100)) == ["j"]
    assert ids(await store.find("things", "rank", low="", high=LAST, limit=100)) == ["h"]
    assert await store.find("things", "rank", low=10, high=2, limit=100) == []


async def test_find_compares_text_by_code_point(store):
    await store.put_many("things", {f"id{n:02}": {"name": word} for n, word in enumerate(WORDS)})
    found = await store.find("things", "name", low="", high=LAST, limit=100)
    assert [document.body["name"] for document in found] == sorted(WORDS)
    found = await store.find("things", "name", low="a/", high="a0", limit=2, reverse=True)
    assert [document.body["name"] for document in found] == ["a/2", "a/10"]


async def test_find_follows_every_change(store):
    await store.insert("things", "a", {"rank": 1})
    await store.put("things", "a", {"rank": 5})
    assert await store.find("things", "rank", low=1, high=2, limit=9) == []
    assert ids(await store.find("things", "rank", low=5, high=6, limit=9)) == ["a"]
    assert await store.replace("things", "a", {}, version=2)
    assert await store.find("things", "rank", low=5, high=6, limit=9) == []
    await store.put("things", "a", {"rank": 5})
    assert await store.delete("things", "a")
    assert await store.find("things", "rank", low=5, high=6, limit=9) == []


# --- unique fields ----------------------------------------------------------------------------------------------------


async def test_a_value_of_a_unique_field_stands_once(store):
    await store.insert("things", "a", {"name": "x"})
    await store.insert("things", "b", {"name": "y"})
    for write in (
        store.insert("things", "c", {"name": "x"}),
        store.put("things", "c", {"name": "x"}),
        store.put("things", "b", {"name": "x"}),
        store.replace("things", "b", {"name": "x"}, version=1),
    ):
        with pytest.raises(DuplicateKeyError):
            await write
    assert await store.get("things", "b") == Document("b", 1, {"name": "y"})
    assert await store.count("things") == 2
    await store.put("things", "a", {"name": "x", "rank": 2})
    await store.put("things", "a", {})
    await store.put("things", "c", {"name": "x"})


async def test_documents_without_a_unique_field_do_not_collide(store):
    await store.put_many("things", {"a": {}, "b": {}, "c": {"rank": 1}})
    assert await store.count("things") == 3


async def test_put_many_writes_all_but_the_colliding(store):
    await store.insert("things", "a", {"name": "x"})
    with pytest.raises(DuplicateKeyError):
        await store.put_many("things", {"b": {"name": "b"}, "c": {"name": "x"}, "d": {"name": "d"}})
    assert ids(await store.scan("things", low="", high=LAST, limit=9)) == ["a", "b", "d"]


# --- setup ------------------------------------------------------------------------------------------------------------


async def test_the_systems_own_topology_can_be_set_up_twice(store):
    await store.setup(topology().collections.values())
    await store.insert("jobs", "j", {"unpublished": 1, "submitted_at": 1.5})
    await store.setup(topology().collections.values())
    assert ids(await store.find("jobs", "submitted_at", low=0, high=2, limit=9)) == ["j"]


async def test_a_new_index_holds_the_documents_that_were_there(store):
    await store.put_many("plain", {f"{n:04}": {"rank": n % 7} for n in range(2100)})
    await store.setup([Collection("plain", (Index("rank", unique=False),))])
    assert len(await store.find("plain", "rank", low=3, high=4, limit=1000)) == 300
    await store.put("plain", "new", {"rank": 3})
    assert len(await store.find("plain", "rank", low=3, high=4, limit=1000)) == 301


async def test_an_index_may_become_unique_and_plain_again(store):
    await store.put_many("things", {"a": {"rank": 1}, "b": {"rank": 2}})
    await store.setup([Collection("things", (Index("rank", unique=True),))])
    with pytest.raises(DuplicateKeyError):
        await store.insert("things", "c", {"rank": 1})
    await store.setup([THINGS])
    await store.insert("things", "c", {"rank": 1})
    with pytest.raises(DuplicateKeyError):
        await store.setup([Collection("things", (Index("rank", unique=True),))])


async def test_a_store_opened_before_the_setup_knows_it_afterwards(place):
    early = await place.open()
    with pytest.raises(UnknownCollectionError, match="setup"):
        await early.get("things", "a")
    other = await place.open()
    await other.setup([Collection("things", ())])
    await early.insert("things", "a", {"rank": 1})
    with pytest.raises(UnknownCollectionError, match="rank"):
        await early.find("things", "rank", low=0, high=2, limit=9)
    await other.setup([THINGS])
    assert ids(await early.find("things", "rank", low=0, high=2, limit=9)) == ["a"]
    await early.insert("things", "b", {"rank": 1})
    assert ids(await other.find("things", "rank", low=0, high=2, limit=9)) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "Things", "a b", "a.b", "$a", "a;drop table x", "a__b", "_a", "é", "x" * 61])
async def test_names_that_no_server_should_see_are_refused(store, name):
    for collection in (Collection(name, ()), Collection("fine", (Index(name, unique=False),))):
        with pytest.raises(InvalidDocumentError):
            await store.setup([collection])


async def test_an_unknown_collection_is_an_error_everywhere(store):
    for call in (
        store.insert("nothing", "a", {}),
        store.get("nothing", "a"),
        store.get_many("nothing", ["a"]),
        store.replace("nothing", "a", {}, version=1),
        store.put("nothing", "a", {}),
        store.put_many("nothing", {"a": {}}),
        store.delete("nothing", "a"),
        store.scan("nothing", low="", high="b", limit=1),
        store.find("nothing", "rank", low=0, high=1, limit=1),
        store.count("nothing"),
        store.drop("nothing"),
    ):
        with pytest.raises(UnknownCollectionError, match="'nothing'"):
            await call


async def test_a_field_without_an_index_cannot_be_searched(store):
    await store.insert("things", "a", {"other": 1})
    with pytest.raises(UnknownCollectionError, match="'other'"):
        await store.find("things", "other", low=0, high=2, limit=1)


@pytest.mark.parametrize(
    ("low", "high", "limit"),
    [
        (0, "x", 1),
        (None, 1, 1),
        (0, True, 1),
        (math.nan, 1, 1),
        ([], [], 1),
        (0, 2**63, 1),
        (0, 1, 0),
        (0, 1, LIMIT_MAX + 1),
    ],
)
async def test_bounds_and_limits_that_make_no_sense_are_refused(store, low, high, limit):
    with pytest.raises(InvalidDocumentError):
        await store.find("things", "rank", low=low, high=high, limit=limit)


@pytest.mark.parametrize(
    ("low", "high", "limit"), [(0, "x", 1), (None, "x", 1), ("\ud800", "x", 1), ("", "x", 0), ("", "x", -1)]
)
async def test_a_scan_that_makes_no_sense_is_refused(store, low, high, limit):
    with pytest.raises(InvalidDocumentError):
        await store.scan("things", low=low, high=high, limit=limit)


# --- at once ----------------------------------------------------------------------------------------------------------


async def test_of_eight_that_compare_and_set_exactly_one_wins_each_round(place, store):
    stores = [store, *[await place.open() for _ in range(3)]]
    await store.insert("plain", "counter", {"n": 0})
    wins = []

    async def contend(task: int) -> None:
        mine = stores[task % len(stores)]
        for round_number in range(1, 16):
            while True:
                document = await mine.get("plain", "counter")
                if document.version > round_number:
                    break
                if await mine.replace(
                    "plain", "counter", {"n": document.body["n"] + 1, "by": task}, version=round_number
                ):
                    wins.append(round_number)

    await asyncio.gather(*(contend(task) for task in range(8)))
    assert sorted(wins) == list(range(1, 16))
    assert await store.get("plain", "counter") == Document("counter", 16, {"n": 15, "by": pytest.approx(3.5, abs=3.5)})


async def test_of_eight_inserts_exactly_one_wins(place, store):
    stores = [store, await place.open()]
    for round_number in range(10):
        outcomes = await asyncio.gather(
            *(stores[task % 2].insert("plain", f"{round_number}", {"by": task}) for task in range(8)),
            return_exceptions=True,
        )
        assert outcomes.count(None) == 1
        assert all(isinstance(outcome, DuplicateKeyError) for outcome in outcomes if outcome is not None)
        winner = outcomes.index(None)
        assert (await store.get("plain", f"{round_number}")).body == {"by": winner}


async def test_of_eight_that_delete_at_a_version_exactly_one_wins(place, store):
    stores = [store, await place.open()]
    for round_number in range(10):
        await store.insert("plain", "a", {"round": round_number})
        outcomes = await asyncio.gather(*(stores[task % 2].delete("plain", "a", version=1) for task in range(8)))
        assert outcomes.count(True) == 1


async def test_puts_at_once_all_count(place, store):
    stores = [store, await place.open()]
    await asyncio.gather(*(stores[n % 2].put("plain", "a", {"n": n}) for n in range(40)))
    assert (await store.get("plain", "a")).version == 40
    await asyncio.gather(*(stores[n % 2].put_many("plain", {"b": {"n": n}, "c": {"n": n}}) for n in range(20)))
    assert [document.version for document in await store.scan("plain", low="b", high="d", limit=2)] == [20, 20]


async def test_hundreds_of_writes_at_once_are_all_there(store):
    await asyncio.gather(*(store.insert("things", f"{n:04}", {"rank": n, "name": f"n{n}"}) for n in range(500)))
    assert await store.count("things") == 500
    assert len(await store.find("things", "rank", low=100, high=200, limit=1000)) == 100


# --- lives ------------------------------------------------------------------------------------------------------------


async def test_what_was_written_is_there_after_a_restart(place, store):
    await store.insert("things", "a", {"rank": 1, "name": "x"})
    await store.put("things", "b", {"rank": 2})
    await store.stop()
    again = await place.open()
    assert ids(await again.scan("things", low="", high=LAST, limit=9)) == ["a", "b"]
    assert ids(await again.find("things", "rank", low=2, high=3, limit=9)) == ["b"]
    assert await again.replace("things", "a", {}, version=1) is True
    with pytest.raises(DuplicateKeyError):
        await again.insert("things", "b", {})


async def test_a_store_can_stop_twice_and_start_again(store):
    await store.put("plain", "a", {})
    await store.stop()
    await store.stop()
    await store.start()
    await store.ping()
    assert await store.get("plain", "a") == Document("a", 1, {})
    await store.stop()


async def test_a_stopped_store_says_so(place, store):
    if isinstance(store, MemoryStore):
        return  # memory has nothing to disconnect from
    await store.stop()
    for call in (store.put("plain", "a", {}), store.get("plain", "a"), store.ping()):
        with pytest.raises(StoreUnavailableError):
            await call
