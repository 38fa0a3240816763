"""GroupRunner on the bus in memory: order, bounds, commits, retries, dead letters, outages, hand-over."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from schedmate.infra.bus.memory import Faults, MemoryBus
from schedmate.infra.bus.port import MissingTopicError, Partition
from schedmate.infra.clock import SeededRandom, SystemClock
from schedmate.infra.deadletters import dead_letter, resend
from schedmate.infra.runner import GroupRunner
from schedmate.infra.store.port import StoreUnavailableError
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.tracing import current_traceparent, trace_id
from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import DeadLettered, JobCancelRequested, LogChunked
from schedmate.schemas.topology import Topic, topology
from schedmate.schemas.wire import HEADER_RESENT, HEADER_TOKEN, HEADER_TRACEPARENT, Delivery, Envelope, Record
from tests.waiting import eventually as until

COMMANDS = "schedmate.commands"
DEAD = "schedmate.dead-letters"
WITHIN_S = 10.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def cancel(job: str, number: int) -> Envelope[JobCancelRequested]:
    event = JobCancelRequested(job_id=job, pool="default", requested_by="user", why=str(number))
    return Envelope(id=f"{job}-{number}", source="schedmate/test", time=1.0, event=event, traceparent=TRACE)


class Impatient(SystemClock):
    """Sleeps a hundredth of what it is asked for: back-off in tests."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


@pytest.fixture
async def bus() -> MemoryBus:
    made = MemoryBus(SystemClock())
    await made.start()
    await made.create_topics(topology().topics.values())
    return made


def runner_of(bus: MemoryBus, handler, **settings) -> GroupRunner:
    given = {"clock": Impatient(), "random": SeededRandom(1), "service": "tester", "group": "g", "topics": [COMMANDS]}
    return GroupRunner(bus, handler=handler, **(given | settings))


@contextlib.asynccontextmanager
async def running(*runners: GroupRunner) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    tasks = [asyncio.ensure_future(r.run(stop)) for r in runners]
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*tasks)


async def committed(bus: MemoryBus, group: str = "g", topic: str = COMMANDS) -> int:
    """How many records of the topic the group has committed."""
    return sum(o for p, o in bus.group_state(group).committed.items() if p.topic == topic)


async def test_events_of_one_key_are_handled_in_order_and_different_keys_at_once(bus: MemoryBus) -> None:
    seen: dict[str, list[str]] = defaultdict(list)
    now: set[str] = set()
    widest = 0

    async def handler(envelope):
        nonlocal widest
        job = envelope.event.job_id
        assert job not in now, "two events of one key at once"
        now.add(job)
        widest = max(widest, len(now))
        await asyncio.sleep(0.001)
        now.discard(job)
        seen[job].append(envelope.event.why)
        return ()

    await bus.publish([encode(cancel(f"job-{n % 20}", n)) for n in range(400)])
    async with running(runner_of(bus, handler, concurrency=8)):
        await until(lambda: sum(map(len, seen.values())) == 400)
    assert all(numbers == sorted(numbers, key=int) for numbers in seen.values())
    assert 1 < widest <= 8
    assert await committed(bus) == 400


async def test_an_input_counts_as_done_only_when_its_result_is_acknowledged(bus: MemoryBus) -> None:
    async def handler(envelope):
        return (cancel("result", int(envelope.event.why)),)

    consumed = []

    async def once(envelope):
        consumed.append(envelope.id)
        return await handler(envelope) if envelope.event.job_id != "result" else ()

    runner = runner_of(bus, once, group="g2")
    bus.faults.next_publishes.append("ok")
    await bus.publish([encode(cancel("job", 1))])
    bus.faults.next_publishes.extend(["before", "before", "after", "ok"])
    async with running(runner):
        await until(lambda: len(consumed) == 3)  # the input, its result, and the repeat of the lost acknowledgement
        await until(runner.ready)
    assert consumed == ["job-1", "result-1", "result-1"]
    assert not bus.records(DEAD)


async def test_only_what_lies_below_the_lowest_unfinished_offset_is_committed(bus: MemoryBus) -> None:
    gate = asyncio.Event()
    done = 0

    async def handler(envelope):
        nonlocal done
        if envelope.event.why == "0":
            await gate.wait()
        done += 1
        return ()

    topic = Topic(COMMANDS, 1, 60, "delete", 1_000_000)
    one = MemoryBus(SystemClock())
    await one.create_topics([topic])
    await one.publish([encode(cancel(f"job-{n}", n)) for n in range(10)])
    runner = runner_of(one, handler)
    async with running(runner):
        await until(lambda: done == 9)
        await until(lambda: runner.in_flight == 1)
        assert await committed(one) == 0
        gate.set()
        await until(lambda: one.group_state("g").committed.get(Partition(COMMANDS, 0)) == 10)


async def test_a_failing_handler_is_called_again_then_its_event_is_dead_lettered_and_the_rest_goes_on(bus) -> None:
    calls: dict[str, int] = defaultdict(int)

    async def handler(envelope):
        calls[envelope.id] += 1
        if envelope.event.why == "13":
            raise RuntimeError("unlucky")
        if envelope.event.why == "14" and calls[envelope.id] < 3:
            raise ValueError("not yet")
        return ()

    await bus.publish([encode(cancel("job", n)) for n in range(20)])
    async with running(runner_of(bus, handler, attempts_max=4)):
        await until(lambda: len(calls) == 20)
        await until(lambda: len(bus.records(DEAD)) == 1)
    assert calls["job-13"] == 4
    assert calls["job-14"] == 3
    letter = decode(bus.records(DEAD)[0])
    assert isinstance(letter.event, DeadLettered)
    assert letter.event.attempts == 4
    assert "unlucky" in letter.event.error
    assert letter.event.service == "tester"
    assert trace_id(letter.traceparent) == trace_id(TRACE)
    assert await committed(bus) == 20
    sent = resend(letter.event)
    assert decode(sent).id == "job-13"
    assert sent.header(HEADER_RESENT) == b"1"


async def test_poison_is_dead_lettered_at_once_and_skipped(bus: MemoryBus) -> None:
    handled = []

    async def handler(envelope):
        handled.append(envelope.id)
        return ()

    poison = [
        Record(COMMANDS, b"job", b"not json", encode(cancel("job", 0)).headers),
        Record(COMMANDS, b"job", b"{}", ()),
        Record(COMMANDS, b"", b"", ()),
        Record(COMMANDS, b"\xff\x00", b"\xfe", (("x", b"\xff"),)),
    ]
    await bus.publish([*poison, encode(cancel("job", 7))])
    async with running(runner_of(bus, handler)):
        await until(lambda: len(bus.records(DEAD)) == 4 and handled == ["job-7"])
    letters = [decode(r).event for r in bus.records(DEAD)]
    assert {resend(e).value for e in letters} == {r.value for r in poison}
    assert {resend(e).key for e in letters} == {b"job", b"", b"\xff\x00"}
    assert all(e.attempts == 1 for e in letters)
    assert await committed(bus) == 5


async def test_an_outage_of_bus_or_store_is_waited_for_and_dead_letters_nothing(bus: MemoryBus) -> None:
    handled: list[str] = []
    outages = 30

    async def handler(envelope):
        nonlocal outages
        if outages > 0:
            outages -= 1
            raise StoreUnavailableError("down")
        handled.append(envelope.id)
        return ()

    await bus.publish([encode(cancel("job", n)) for n in range(5)])
    async with running(runner_of(bus, handler, attempts_max=2)):
        await until(lambda: outages < 20)
        bus.faults.unavailable = True
        await until(lambda: outages == 0)
        bus.faults.unavailable = False
        await until(lambda: len(handled) >= 5)
    assert sorted(set(handled)) == [f"job-{n}" for n in range(5)]
    assert not bus.records(DEAD)


async def test_no_more_than_the_bound_is_in_flight(bus: MemoryBus) -> None:
    gate = asyncio.Event()
    done = 0

    async def handler(envelope):
        nonlocal done
        await gate.wait()
        done += 1
        return ()

    await bus.publish([encode(cancel(f"job-{n}", n)) for n in range(200)])
    runner = runner_of(bus, handler, in_flight_max=40, concurrency=4)
    async with running(runner):
        await until(lambda: runner.in_flight >= 40)
        for _ in range(20):
            await asyncio.sleep(0.002)
            assert runner.in_flight <= 41
        gate.set()
        await until(lambda: done == 200)


async def test_large_records_are_bounded_by_bytes_too(bus: MemoryBus) -> None:
    gate = asyncio.Event()
    done = 0
    highest = 0

    async def handler(envelope):
        nonlocal done, highest
        await gate.wait()
        highest = max(highest, runner.in_flight)
        done += 1
        return ()

    value = cancel("x", 1)
    records = [encode(value)] * 50
    size = len(records[0].value)
    runner = runner_of(bus, handler, in_flight_bytes_max=size * 10, in_flight_max=10)
    await bus.publish(records)
    async with running(runner):
        await until(lambda: runner.in_flight >= 10)
        gate.set()
        await until(lambda: done == 50)
    assert highest <= 11


async def test_two_members_share_the_work_and_lose_nothing_when_one_leaves(bus: MemoryBus) -> None:
    handled: dict[str, list[str]] = defaultdict(list)

    def handler_of(name: str):
        async def handler(envelope):
            await asyncio.sleep(0)
            handled[name].append(envelope.id)
            return ()

        return handler

    first, second = (runner_of(bus, handler_of(n)) for n in ("first", "second"))
    async with running(first):
        async with running(second):
            await until(lambda: first.ready() and second.ready())
            await bus.publish([encode(cancel(f"job-{n}", n)) for n in range(100)])
            await until(lambda: len(handled["first"]) + len(handled["second"]) == 100)
        await bus.publish([encode(cancel(f"job-{n}", n + 1000)) for n in range(100)])
        await until(lambda: len(handled["first"]) + len(handled["second"]) == 200)
    assert handled["first"]
    assert handled["second"]
    everything = handled["first"] + handled["second"]
    assert len(set(everything)) == len(everything) == 200


async def test_a_running_handler_is_drained_before_its_partition_is_handed_over(bus: MemoryBus) -> None:
    gate, began = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def slow(envelope):
        calls.append("begin " + envelope.id)
        began.set()
        await gate.wait()
        calls.append("end " + envelope.id)
        return ()

    async def other(envelope):
        calls.append("other " + envelope.id)
        return ()

    await bus.publish([encode(cancel(f"job-{n}", n)) for n in range(64)])
    first, second = runner_of(bus, slow, concurrency=64), runner_of(bus, other)
    async with running(first):
        await began.wait()
        await until(lambda: sum(c.startswith("begin") for c in calls) == 64)
        async with running(second):
            await asyncio.sleep(0.05)
            assert not any(c.startswith("other") for c in calls), "handed over while handlers ran"
            gate.set()
            await until(lambda: sum(c.startswith("end") for c in calls) == 64)
            await until(lambda: first.ready() and second.ready())
    assert not any(c.startswith("other") for c in calls), "what was drained was committed, so none is handled twice"


async def test_a_drain_is_bounded_and_what_it_cut_off_is_handled_by_the_next_holder(bus: MemoryBus) -> None:
    stuck_forever = asyncio.Event()
    handled: list[str] = []

    async def stuck(envelope):
        await stuck_forever.wait()
        return ()

    async def good(envelope):
        handled.append(envelope.id)
        return ()

    await bus.publish([encode(cancel(f"job-{n}", n)) for n in range(30)])
    first = runner_of(bus, stuck, drain_timeout_s=0.05)
    async with running(first):
        await until(lambda: first.in_flight == 30)
    async with running(runner_of(bus, good)):
        await until(lambda: len(handled) == 30)


async def test_results_carry_the_trace_of_their_input(bus: MemoryBus) -> None:
    inside: list[str] = []

    async def handler(envelope):
        inside.append(current_traceparent())
        if envelope.event.job_id == "result":
            return ()
        return (Envelope("r", "schedmate/test", 1.0, cancel("result", 1).event),)

    await bus.publish([encode(cancel("job", 1))])
    async with running(runner_of(bus, handler)):
        await until(lambda: len(inside) == 2)
    assert [trace_id(t) for t in inside] == [trace_id(TRACE)] * 2
    result = next(r for r in bus.records(COMMANDS) if r.key == b"result")
    assert trace_id((result.header(HEADER_TRACEPARENT) or b"").decode()) == trace_id(TRACE)


async def test_records_may_be_skipped_by_header_before_they_are_decoded(bus: MemoryBus) -> None:
    handled = []

    async def handler(envelope):
        handled.append(envelope.id)
        return ()

    undecodable = Record(COMMANDS, b"k", b"rubbish", (("pool", b"other"),))
    await bus.publish([undecodable, encode(cancel("job", 1))])
    async with running(runner_of(bus, handler, skip=lambda r: r.header("pool") == b"other")):
        await until(lambda: handled == ["job-1"])
    assert not bus.records(DEAD)
    assert await committed(bus) == 2


async def test_a_handler_that_hangs_is_timed_out_and_dead_lettered(bus: MemoryBus) -> None:
    async def handler(envelope):
        await asyncio.Event().wait()
        return ()

    await bus.publish([encode(cancel("job", 1))])
    async with running(runner_of(bus, handler, handler_timeout_s=0.01, attempts_max=2)):
        await until(lambda: len(bus.records(DEAD)) == 1)


async def test_a_result_that_no_topic_takes_is_the_input_s_dead_letter(bus: MemoryBus) -> None:
    async def handler(envelope):
        if envelope.event.job_id == "result":
            return ()
        big = JobCancelRequested(job_id="result", pool="default", requested_by="user", why="x" * 900)
        return (Envelope("big", "schedmate/test", 1.0, big),)

    small = MemoryBus(SystemClock())
    await small.create_topics([Topic(COMMANDS, 1, 60, "delete", 1200), Topic(DEAD, 1, 60, "delete", 1_000_000)])
    await small.publish([encode(cancel("job", 1))])
    async with running(runner_of(small, handler)):
        await until(lambda: len(small.records(DEAD)) == 1)
    assert "RecordTooLarge" in decode(small.records(DEAD)[0]).event.error


async def test_a_missing_topic_ends_the_runner_with_a_clear_error(bus: MemoryBus) -> None:
    async def handler(envelope):
        return ()

    with pytest.raises(MissingTopicError, match="nowhere"):
        await runner_of(bus, handler, topics=["nowhere"]).run(asyncio.Event())


async def test_a_result_for_a_missing_topic_ends_the_runner_too(bus: MemoryBus) -> None:
    async def handler(envelope):
        chunk = LogChunked(
            job_id="job", pool="default", run_id="run", attempt=1, member=0, node="n", start=0, end=1, content=b"x"
        )
        return (Envelope("c", "schedmate/test", 1.0, chunk),)

    lean = MemoryBus(SystemClock())
    await lean.create_topics([topology().topics[COMMANDS]])
    await lean.publish([encode(cancel("job", 1))])
    with pytest.raises(MissingTopicError, match=r"schedmate\.logs"):
        await asyncio.wait_for(runner_of(lean, handler).run(asyncio.Event()), WITHIN_S)


@pytest.mark.parametrize("turn", range(5))
async def test_noise_on_the_bus_loses_nothing_and_never_reorders_a_key(turn: int, seed: int) -> None:
    faults = Faults(
        seed + turn, write_twice=0.2, redeliver=0.1, reorder=0.5, fail_before_write=0.1, fail_after_write=0.1
    )
    bus = MemoryBus(SystemClock(), faults)
    await bus.create_topics(topology().topics.values())
    sent: dict[str, list[str]] = defaultdict(list)
    seen: dict[str, list[str]] = defaultdict(list)

    async def handler(envelope):
        await asyncio.sleep(0)
        seen[envelope.event.job_id].append(envelope.event.why)
        return ()

    for n in range(60):
        event = cancel(f"job-{n % 7}", n)
        sent[event.event.job_id].append(str(n))
        while True:
            try:
                await bus.publish([encode(event)])
                break
            except Exception:  # noqa: BLE001 - publish until acknowledged
                continue
    async with running(runner_of(bus, handler), runner_of(bus, handler)):
        await until(lambda: all(set(seen[job]) == set(numbers) for job, numbers in sent.items()))
        faults.heal()
    for job, numbers in sent.items():
        first_seen = list(dict.fromkeys(seen[job]))
        assert first_seen == numbers, job
    assert not bus.records(DEAD)


def test_a_dead_letter_has_an_id_from_its_cause_and_leaves_the_token_out() -> None:
    record = Record("schedmate.requests", b"k", b"v", ((HEADER_TOKEN, b"secret"), ("x", b"1"), (HEADER_RESENT, b"2")))
    letters = [
        dead_letter(
            Delivery(record, 3, 9), "ingest", ValueError("bad token=ghp_0123456789abcdefghijABCDEFGHIJ012345"), 1, 5.0
        )
        for _ in range(2)
    ]
    assert letters[0] == letters[1]
    assert "secret" not in letters[0].event.model_dump_json()
    assert "ghp_0123" not in letters[0].event.error
    back = resend(letters[0].event)
    assert back == Record("schedmate.requests", b"k", b"v", (("x", b"1"), (HEADER_RESENT, b"3")))
    assert decode(encode(letters[0])).event == letters[0].event


async def test_what_is_handled_retried_and_dead_lettered_is_counted(bus: MemoryBus) -> None:
    metrics = Metrics()

    async def handler(envelope):
        if envelope.event.why == "2":
            raise ValueError("bad")
        return ()

    await bus.publish([encode(cancel("job", n)) for n in range(3)])
    with metrics.active():
        async with running(runner_of(bus, handler, attempts_max=2)):
            await until(lambda: len(bus.records(DEAD)) == 1)
    text = metrics.text().decode()
    for line in (
        'schedmate_runner_handled_total{outcome="done",topic="schedmate.commands"} 2.0',
        'schedmate_runner_handled_total{outcome="dead-lettered",topic="schedmate.commands"} 1.0',
        'schedmate_runner_retries_total{topic="schedmate.commands"} 2.0',
        'schedmate_dead_letters_total{topic="schedmate.commands"} 1.0',
        'schedmate_bus_published_total{topic="schedmate.dead-letters"} 1.0',
    ):
        assert line in text


async def test_a_runner_under_a_steady_stream_is_ready_once_it_has_done_what_was_there(bus: MemoryBus) -> None:
    handled = 0

    async def handler(envelope):
        nonlocal handled
        handled += 1
        return (cancel(envelope.event.job_id, handled),)  # each event begets the next: the stream never ends

    await bus.publish([encode(cancel(f"job-{n}", n)) for n in range(50)])
    runner = runner_of(bus, handler)
    async with running(runner):
        await until(runner.ready)
        assert handled >= 50
        assert runner.lags.keys() == {COMMANDS}
