"""What holds for every test: no network, a seed that is printed, Hypothesis without deadlines."""

from __future__ import annotations

import os
import random  # noqa: TID251 - the seed of the run; tests pass it on as SeededRandom
from collections import Counter
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import structlog

TESTS = Path(__file__).parent
LOOPBACK = ["127.0.0.1", "::1"]
# Folders whose tests talk to real servers or real processes over the loopback. Elsewhere a test says so: @pytest.mark.localhost.
MAY_USE_LOOPBACK = ("integration", "acceptance", "performance")
SEED_VARIABLE = "SCHEDMATE_TEST_SEED"

# No deadline and no complaint of slowness: on a busy machine both would fail tests that are right.
hypothesis.settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("default"), database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the run's seed once; the processes of xdist inherit it."""
    # the default draws every frame with its locals, which takes seconds on a busy machine
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )
    os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    config.stash[SEED] = int(os.environ[SEED_VARIABLE])


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED_VARIABLE}={config.stash[SEED]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _tell_apart(items)
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        if room in MAY_USE_LOOPBACK or item.get_closest_marker("servers") or item.get_closest_marker("localhost"):
            item.add_marker(pytest.mark.allow_hosts(LOOPBACK))


def _tell_apart(items: list[pytest.Item]) -> None:
    """Give every test an id of its own: of those that share one (Schemathesis names all operations alike) xdist runs a single one."""
    for item in items:
        if operation := getattr(item, "operation_label", None):
            item._id = replace(item.id, params=operation)
    doubled = [name for name, times in Counter(item.nodeid for item in items).items() if times > 1]
    if doubled:
        raise pytest.UsageError(
            f"{len(doubled)} test ids stand for several tests, of which xdist would run one: {doubled[:3]}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"again with {SEED_VARIABLE}={item.config.stash[SEED]}"))
    return report


SEED = pytest.StashKey[int]()


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed: another one in every run, printed at its head and with each failure of a test that uses it."""
    return pytestconfig.stash[SEED]
