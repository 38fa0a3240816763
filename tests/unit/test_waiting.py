"""The waiting of the tests themselves."""

from __future__ import annotations

import asyncio
import socket

import pytest
import pytest_socket

from tests.waiting import eventually, eventually_sync


async def test_the_first_true_value_is_returned():
    values = iter([None, 0, "", "there"])
    assert await eventually(lambda: next(values)) == "there"
    more = iter([[], [1]])
    assert eventually_sync(lambda: next(more)) == [1]


async def test_a_coroutine_function_may_be_waited_for():
    calls: list[int] = []

    async def called_thrice() -> bool:
        await asyncio.sleep(0)
        calls.append(1)
        return len(calls) == 3

    assert await eventually(called_thrice)


async def test_what_does_not_come_in_time_fails_and_is_named():
    with pytest.raises(AssertionError, match=r"not within 0.01 s: .*nothing.* \(last value: 0\)"):
        await eventually(lambda: 0, 0.01, "nothing")
    with pytest.raises(AssertionError, match="eventually_sync"):
        eventually_sync(lambda: 0, 0.01)


async def test_a_predicate_that_hangs_is_given_up_at_the_deadline():
    with pytest.raises(AssertionError, match="not within"):
        await eventually(lambda: asyncio.Event().wait(), 0.05)


async def test_an_error_of_the_predicate_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 / 0)


@pytest.mark.filterwarnings("ignore:A test tried to use socket")
def test_a_test_outside_the_integration_tests_gets_no_socket():
    with pytest.raises(pytest_socket.SocketBlockedError):
        socket.socket(socket.AF_INET, socket.SOCK_STREAM)


@pytest.mark.localhost
@pytest.mark.filterwarnings("ignore:A test tried to use socket")
def test_a_test_marked_localhost_gets_the_loopback_only():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as outward,
        pytest.raises(pytest_socket.SocketConnectBlockedError),
    ):
        outward.connect(("192.0.2.1", 80))
