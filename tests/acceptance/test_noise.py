"""At-least-once as it is: every record twice and across keys in another order, poison on every topic, a broker restart. No outcome changes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import random  # noqa: TID251 - the order of repeats is the seed's
import subprocess
import sys
import tarfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from schedmate.client import ApiError
from schedmate.infra.bus.port import BusUnavailableError, Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.servers.ports import HOST
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import READERS, DeadLettered, JobDecision, JobRequested
from schedmate.schemas.ids import job_id
from schedmate.schemas.job import JobRequest
from schedmate.schemas.states import TERMINAL
from schedmate.schemas.wire import Delivery, Envelope, Record
from tests.acceptance.cluster import Cluster
from tests.journal_checker import check_directories
from tests.waiting import eventually_sync

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(300)]

TOPICS = tuple(topic for topic in READERS if topic != DeadLettered.TOPIC)
#: takes one type by its header and reads the recent past again at each start: what is none of its type is the others' to put aside
WATCHES = {("schedmate.nodes", "log-monitor")}
JOBS = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("noise"), workers=2, dispatchers=1, lease_s=120.0) as made:
        yield made


class Repeater:
    """Publishes every record of every topic once more, unchanged: the order of each key is kept, that of different keys is not."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.repeated: Counter[str] = Counter()
        self.stop = threading.Event()
        self._seen: set[tuple[str, bytes, bytes]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop.set()
        self._thread.join(30)
        assert self.failure is None, self.failure

    async def _run(self) -> None:
        try:
            async with self.cluster.bus() as bus:
                partitions = [Partition(topic, n) for topic in TOPICS for n in range(await bus.partitions(topic))]
                reader = bus.reader(dict.fromkeys(partitions, 0))
                await reader.start()
                while not self.stop.is_set():
                    batch: list[Delivery] = []
                    try:
                        for _ in range(self.rng.randint(1, 5)):
                            batch += await reader.poll(500, 0.3)
                        repeats = self._shuffled(batch)
                        for _ in range(20):  # a broker that is away takes no repeats
                            try:
                                await bus.publish(repeats)
                                break
                            except BusUnavailableError:
                                await asyncio.sleep(0.5)
                    except BusUnavailableError:
                        continue
                await reader.stop()
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failure = error

    def _shuffled(self, batch: list[Delivery]) -> list[Record]:
        by_key: dict[tuple[str, bytes], list[Record]] = defaultdict(list)
        for delivery in batch:
            record = delivery.record
            seen = (record.topic, record.key, record.header("ce_id") or record.value)
            if seen not in self._seen:
                self._seen.add(seen)
                by_key[record.topic, record.key].append(record)
                self.repeated[record.topic] += 1
        out: list[Record] = []
        queues = list(by_key.values())
        while queues:
            queue = self.rng.choice(queues)
            out.append(queue.pop(0))
            queues = [q for q in queues if q]
        return out


def poison(topic: str) -> list[Record]:
    """What is no event at all, an event of an unknown type, and a value that does not fit its type; keyed so that a node's own reader sees it."""
    key = b"n1" if topic in ("schedmate.assignments", "schedmate.nodes") else b"poison"
    known = {"ce_specversion": b"1.0", "ce_id": b"x", "ce_source": b"nobody", "ce_time": b"2026-01-01T00:00:00Z"}
    headers = tuple(known.items())
    return [
        Record(topic, key, b"\xff\x00 no event", ()),
        Record(topic, key, b"{}", (*headers, ("ce_type", b"schedmate.nothing.v1"))),
        Record(topic, key, b'{"job_id": 5}', (*headers, ("ce_type", b"schedmate.job.submitted.v1"))),
    ]


def test_noise_changes_no_outcome_and_poison_ends_in_dead_letters(cluster: Cluster, seed: int) -> None:
    rng = random.Random(seed)
    expected: dict[str, str] = {}
    with Repeater(cluster, rng) as repeater:
        for number in range(JOBS):
            code = rng.choice([0, 0, 0, 1])
            nodes = rng.choice([1, 1, 1, 2])
            script = f"echo step 1/2; sleep {rng.uniform(0.1, 1.0):.2f}; exit {code}"
            view = cluster.client.submit(
                {
                    "name": f"noise-{number % 5}",
                    "script": script,
                    "gpus": rng.choice([1, 2]),
                    "nodes": nodes,
                    "retries": 0,
                }
            )
            expected[view.job_id] = "FAILED" if code else "SUCCEEDED"
            if number == JOBS // 3:
                cluster.publish(*[record for topic in TOPICS for record in poison(topic)])
            if number == JOBS // 2:
                cluster.kafka.restart()
        eventually_sync(
            lambda: not any(True for _ in cluster.client.jobs(unfinished=True, limit=1)), 150, "all jobs end"
        )
        eventually_sync(lambda: _at_rest(repeater), 30, "everything has been repeated")

    views = {view.job_id: view.state.value for view in cluster.client.jobs()}
    assert views == expected
    assert all(
        repeater.repeated[topic] > 0
        for topic in (
            "schedmate.jobs",
            "schedmate.decisions",
            "schedmate.assignments",
            "schedmate.runs",
            "schedmate.nodes",
            "schedmate.logs",
        )
    ), repeater.repeated
    ends: dict[str, set[str]] = defaultdict(set)
    for delivery in cluster.read("schedmate.decisions"):
        if delivery.record.key == b"poison":
            continue
        envelope = decode(delivery.record)
        if isinstance(envelope.event, JobDecision) and envelope.event.state in TERMINAL:
            ends[envelope.event.job_id].add(envelope.id)
    assert {job: len(ids) for job, ids in ends.items() if len(ids) != 1} == {}
    verdict = check_directories([cluster.directory])
    assert verdict.violations == []
    assert set(Counter((life.job, life.member) for life in verdict.lives).values()) == {1}, "one start per member"
    try:
        eventually_sync(lambda: not _undelivered(cluster), 30)
    except AssertionError:
        raise AssertionError(f"poison that its readers have not put aside: {_undelivered(cluster)}") from None
    assert all(process.living() for process in cluster.processes.values())


def _at_rest(repeater: Repeater) -> bool:
    before = repeater.repeated.total()
    return not repeater.stop.wait(3.0) and repeater.repeated.total() - before < 20  # nodes go on reporting


def _undelivered(cluster: Cluster) -> list[str]:
    """Readers of topics of which not all poison has been dead-lettered by them."""
    letters = [decode(d.record).event for d in cluster.read(DeadLettered.TOPIC)]
    found: dict[tuple[str, str], set[bytes]] = defaultdict(set)
    for letter in letters:
        assert isinstance(letter, DeadLettered)
        found[letter.original_topic, letter.service].add(letter.original_value)
    wanted = {(topic, reader) for topic in TOPICS for reader in READERS[topic]} - WATCHES
    return [
        f"{topic} by {reader}: {len(found[topic, reader])}"
        for topic, reader in sorted(wanted)
        if len(found[topic, reader]) < 3
    ]


def test_a_request_that_could_not_be_accepted_is_sent_back_once_what_it_lacked_is_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    archive = tmp_path / "source.tar"
    with tarfile.open(archive, "w") as tar:
        content = b"print('step 1/1')\n"
        member = tarfile.TarInfo("train.py")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    request = JobRequest(name="late source", command=("/bin/true",), bundle=sha256, entry="train.py")
    asked = JobRequested(request_id="late-source-1", request=request)
    cluster.publish(encode(Envelope("late-source-1", "platform", SystemClock().now(), asked, None)))

    def letter():
        return next((one for one in cluster.client.dead_letters() if one.original_key == "late-source-1"), None)

    dead = eventually_sync(letter, 30, "the request is a dead letter: its bundle is not here")
    assert "bundle" in dead.error
    with pytest.raises(ApiError) as refused:  # nothing has been mended yet
        cluster.client.resend(dead.id)
    assert refused.value.status == 409
    cluster.client.put_bundle(sha256, archive)
    answer = cluster.client.resend(dead.id)
    assert answer.job_id == job_id("default", "late-source-1")
    assert cluster.client.resend(dead.id).job_id == answer.job_id, "twice is once"
    eventually_sync(lambda: cluster.client.job(answer.job_id).state in TERMINAL, 60)
    assert cluster.client.job(answer.job_id).state.value == "SUCCEEDED"


def command_line(cluster: Cluster, *arguments: str) -> str:
    environment = {**os.environ, "SCHEDMATE_API": f"http://{HOST}:{cluster.api_port}"}
    program = [sys.executable, "-c", "from schedmate.cli import main; main()"]
    done = subprocess.run(
        [*program, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_record_that_is_still_poison_comes_back_as_another_letter_that_counts(cluster: Cluster) -> None:
    cluster.publish(Record("schedmate.estimates", b"still-poison", b"no event", ()))

    def letters() -> list[DeadLettered]:
        found = [decode(d.record).event for d in cluster.read(DeadLettered.TOPIC)]
        return [
            one
            for one in found
            if isinstance(one, DeadLettered) and one.original_key == "still-poison" and one.service == "dispatcher"
        ]

    eventually_sync(letters, 30)
    view = eventually_sync(
        lambda: next(
            (
                v
                for v in cluster.client.dead_letters()
                if v.original_key == "still-poison" and v.service == "dispatcher"
            ),
            None,
        ),
        30,
    )
    told = json.loads(command_line(cluster, "events", "resend", view.id, "--json"))
    assert (told["topic"], told["resends"]) == ("schedmate.estimates", 1)
    again = eventually_sync(lambda: found if len(found := letters()) == 2 else None, 30)
    assert [dict(one.original_headers).get("schedmate-resent") for one in again] == [None, "1"]
