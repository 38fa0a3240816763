"""A MongoDB server that dies, freezes, restarts or loses its answers: nothing acknowledged is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import pytest

from schedmate.infra.clock import SeededRandom
from schedmate.infra.store.mongo import MongoStore
from schedmate.infra.store.port import Document, DuplicateKeyError, StoreUnavailableError
from schedmate.schemas.topology import Collection, Index
from tests.processes import is_stopped
from tests.servers import OWN_MONGO, MongoServer, shared
from tests.waiting import eventually

pytestmark = [pytest.mark.servers]

LOG = Collection("log", (Index("place", unique=True),))
CLIENTS = ["motor", "pymongo"]


class LossyProxy:
    """Stands between client and server, and cuts the connection when a chosen command has reached the server.

    `lose(command, times)`: the command is passed on, the server's answer is awaited and thrown away, the connection cut.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.host, self.port = address.hostname, address.port
        self.to_lose: list[bytes] = []
        self.lost: list[bytes] = []
        self.on_loss: Callable[[], Awaitable[object]] | None = None
        self.serving: list[asyncio.Task[None]] = []

    def lose(self, command: str, times: int = 1, *, then: Callable[[], Awaitable[object]] | None = None) -> None:
        self.to_lose += [b"\x02" + command.encode() + b"\0"] * times  # the command's name is the message's first key
        self.on_loss = then

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield f"mongodb://127.0.0.1:{port}/?directConnection=true&retryWrites=false"
        for serving in self.serving:
            serving.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        server_reader, server_writer = await asyncio.open_connection(self.host, self.port)
        try:
            while True:
                request = await self._message(reader)
                server_writer.write(request)
                await server_writer.drain()
                answer = await self._message(server_reader)
                mark = next((mark for mark in self.to_lose if mark in request[:60]), None)
                if mark is not None:
                    self.to_lose.remove(mark)
                    self.lost.append(mark)
                    if self.on_loss is not None:
                        await self.on_loss()
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for each in (writer, server_writer):
                each.close()
            for each in (writer, server_writer):
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()

    @staticmethod
    async def _message(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(4)
        return head + await reader.readexactly(int.from_bytes(head, "little") - 4)


@pytest.fixture
def database() -> str:
    return f"test_faults_{secrets.token_hex(6)}"


@pytest.fixture
async def direct(database) -> AsyncIterator[MongoStore]:
    store = MongoStore(shared("SCHEDMATE_TEST_MONGO"), database)
    await store.start()
    await store.setup([LOG])
    yield store
    await store._connection.database.client.drop_database(database)
    await store.stop()


@pytest.fixture
def proxy() -> LossyProxy:
    return LossyProxy(shared("SCHEDMATE_TEST_MONGO"))


@pytest.fixture(params=CLIENTS)
async def lossy(request, database, direct, proxy) -> AsyncIterator[MongoStore]:
    async with proxy.listening() as url:
        store = MongoStore(url, database, request.param)
        await store.start()
        yield store
        await store.stop()


# --- lost acknowledgements --------------------------------------------------------------------------------------------


async def test_an_insert_whose_acknowledgement_is_lost_has_succeeded(lossy, proxy, direct):
    proxy.lose("insert", 2)
    await lossy.insert("log", "a", {"place": 1})
    assert len(proxy.lost) == 2
    assert await direct.get("log", "a") == Document("a", 1, {"place": 1})


async def test_an_insert_that_was_changed_before_its_retry_has_succeeded_too(lossy, proxy, direct):
    proxy.lose("insert", then=lambda: direct.replace("log", "a", {"place": 2}, version=1))
    await lossy.insert("log", "a", {"place": 1})
    assert await direct.get("log", "a") == Document("a", 2, {"place": 2})


async def test_an_insert_whose_acknowledgement_is_lost_is_still_refused_when_it_was_refused(lossy, proxy, direct):
    await direct.insert("log", "a", {"place": 1})
    proxy.lose("insert")
    with pytest.raises(DuplicateKeyError):
        await lossy.insert("log", "a", {"place": 2})
    proxy.lose("insert")
    with pytest.raises(DuplicateKeyError):
        await lossy.insert("log", "b", {"place": 1})
    assert await direct.count("log") == 1


async def test_a_compare_and_set_whose_acknowledgement_is_lost_has_succeeded_once(lossy, proxy, direct):
    await direct.insert("log", "a", {"n": 0})
    proxy.lose("update", 2)
    assert await lossy.replace("log", "a", {"n": 1}, version=1) is True
    assert await direct.get("log", "a") == Document("a", 2, {"n": 1})


async def test_a_compare_and_set_that_was_overwritten_before_its_retry_has_succeeded_too(lossy, proxy, direct):
    await direct.insert("log", "a", {"n": 0})

    async def others_go_on() -> None:
        for version in range(2, 9):
            assert await direct.replace("log", "a", {"n": version}, version=version)

    proxy.lose("update", then=others_go_on)
    assert await lossy.replace("log", "a", {"n": 1}, version=1) is True
    assert await direct.get("log", "a") == Document("a", 9, {"n": 8})


async def test_a_compare_and_set_that_lost_is_told_so_over_a_lost_acknowledgement(lossy, proxy, direct):
    await direct.insert("log", "a", {"n": 0})
    assert await direct.replace("log", "a", {"n": 7}, version=1)
    proxy.lose("update")
    assert await lossy.replace("log", "a", {"n": 1}, version=1) is False
    assert await direct.get("log", "a") == Document("a", 2, {"n": 7})


async def test_a_compare_and_set_of_which_nobody_can_know_is_no_guess(lossy, proxy, direct):
    await direct.insert("log", "a", {"n": 0})

    async def others_go_on() -> None:
        for version in range(2, 12):
            assert await direct.replace("log", "a", {"n": version}, version=version)

    proxy.lose("update", then=others_go_on)
    with pytest.raises(StoreUnavailableError, match="acknowledgement"):
        await lossy.replace("log", "a", {"n": 1}, version=1)


async def test_a_put_whose_acknowledgement_is_lost_happens_once_and_overwrites_nobody_later(lossy, proxy, direct):
    proxy.lose("update", 2)
    await lossy.put("log", "a", {"n": 1})
    assert await direct.get("log", "a") == Document("a", 1, {"n": 1})
    proxy.lose("update", then=lambda: direct.put("log", "a", {"n": "later"}))
    await lossy.put("log", "a", {"n": 2})
    assert await direct.get("log", "a") == Document("a", 3, {"n": "later"})


async def test_many_puts_whose_acknowledgement_is_lost_happen_once(lossy, proxy, direct):
    await direct.insert("log", "b", {})
    proxy.lose("update")
    await lossy.put_many("log", {key: {"n": key} for key in "abc"})
    assert {d.id: d.version for d in await direct.scan("log", low="", high="z", limit=9)} == {"a": 1, "b": 2, "c": 1}


async def test_a_removal_whose_acknowledgement_is_lost_counts_or_is_no_guess(lossy, proxy, direct):
    await direct.put_many("log", {"a": {}, "b": {}, "c": {}})
    proxy.lose("delete")
    assert await lossy.delete("log", "a") is True
    proxy.lose("delete")
    with pytest.raises(StoreUnavailableError, match="acknowledgement"):
        await lossy.delete("log", "b", version=1)
    proxy.lose("delete")
    assert await lossy.delete("log", "c", version=7) is False
    assert await direct.count("log") == 1


async def test_reads_survive_lost_answers(lossy, proxy, direct):
    await direct.put_many("log", {f"{n}": {"place": n} for n in range(9)})
    proxy.lose("find", 3)
    assert (await lossy.get("log", "3")).body == {"place": 3}
    proxy.lose("find")
    assert len(await lossy.scan("log", low="", high="z", limit=5)) == 5
    proxy.lose("aggregate")
    assert await lossy.count("log") == 9


# --- a server of its own ----------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    with MongoServer(tmp_path / "mongo", OWN_MONGO).start() as server:
        yield server


async def until(stop: asyncio.Event, step) -> int:
    """Repeat a step until told to stop; return how often it was done."""
    done = 0
    while not stop.is_set():
        await step(done)
        done += 1
    return done


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Awaitable[MongoStore]]]:
    """Opens stores, and closes them whatever happens."""
    async with contextlib.AsyncExitStack() as stack:

        async def opened(*args, **kwargs) -> MongoStore:
            store = MongoStore(*args, **kwargs)
            stack.push_async_callback(store.stop)
            await store.start()
            return store

        yield opened


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("fault", ["kill", "restart"])
async def test_nothing_acknowledged_is_lost_when_the_server_dies_under_four_writers(
    server, opened, client, fault, seed
):
    random = SeededRandom(seed)
    stores = [await opened(server.address, "faults", client, retry_s=60.0) for _ in range(4)]
    await stores[0].setup([LOG])
    await stores[0].insert("log", "counter", {"n": 0})
    acknowledged: list[str] = []
    wins: list[int] = []
    stop = asyncio.Event()

    async def write(writer: int, number: int) -> None:
        store = stores[writer]
        doc_id = f"w{writer}/{number:06}"
        await store.insert("log", doc_id, {"place": f"{writer}-{number}", "x": "y" * 2000})
        acknowledged.append(doc_id)
        counter = await store.get("log", "counter")
        if await store.replace("log", "counter", {"n": counter.body["n"] + 1, "by": doc_id}, version=counter.version):
            wins.append(counter.version)

    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(until(stop, lambda n, w=w: write(w, n))) for w in range(4)]
        for _ in range(2):
            goal = len(acknowledged) + 60 + int(random.uniform(0, 60))
            await eventually(lambda goal=goal: len(acknowledged) > goal, 60)
            if fault == "kill":
                await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
        goal = len(acknowledged) + 60
        await eventually(lambda: len(acknowledged) > goal, 60)
        stop.set()

    assert sum(writer.result() for writer in writers) == len(acknowledged)
    found = await stores[0].get_many("log", acknowledged)
    assert set(found) == set(acknowledged)
    counter = await stores[0].get("log", "counter")
    assert sorted(wins) == list(range(1, len(wins) + 1))
    assert counter.version == len(wins) + 1
    assert counter.body["n"] == len(wins)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_frozen_server_is_waited_for_and_a_write_happens_once(server, opened, client):
    store = await opened(server.address, "frozen", client, retry_s=60.0)
    await store.setup([LOG])
    await store.insert("log", "a", {"n": 0})
    [process] = server.processes()
    os.kill(process.living_pid(), signal.SIGSTOP)
    try:
        await eventually(lambda: is_stopped(process.living_pid()))
        put = asyncio.create_task(store.replace("log", "a", {"n": 1}, version=1))
        with pytest.raises(StoreUnavailableError, match=r"within 1\.0 s"):
            await store.ping()
        assert not put.done()
    finally:
        os.kill(process.living_pid(), signal.SIGCONT)
    assert await asyncio.wait_for(put, 60) is True
    assert await store.get("log", "a") == Document("a", 2, {"n": 1})
    await store.ping()


# PyMongo leaves a socket to the garbage collector when it is closed while its monitor connects (4.20).
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_server_that_stays_away_is_reported_within_the_budget(server, opened, client):
    store = await opened(server.address, "away", client, retry_s=0.5)
    await store.setup([LOG])
    await asyncio.to_thread(server.kill)
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailableError, match=r"away for 0\.5 s"):
        await store.insert("log", "a", {})
    with pytest.raises(StoreUnavailableError):
        await store.ping()
    assert asyncio.get_running_loop().time() - began < 30
    await store.stop()
    with pytest.raises(StoreUnavailableError):
        await store.start()
    await asyncio.to_thread(server.restart)
    await store.start()
    await store.insert("log", "a", {})
    await store.stop()
    gc.collect()  # while the filter holds
