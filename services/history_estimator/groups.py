"""What is remembered of a group of jobs (those of one pool and size, of one user, of one name): running statistics, all causal.

Durations are kept as natural logarithms of seconds. A group is told of a submission, a start and an end at the instant it happens;
what it answers at an instant rests on nothing later. Memory is bounded whatever is told.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import log, log1p, nan
from typing import Final

LAST_MAX: Final = 200
RECENT_MAX: Final = 12
SUBMITTED_MAX: Final = 2_000
RUNNING_MAX: Final = 4_000
RUNNING_SHOWN: Final = 64
BURST_GAP_S: Final = 120.0
BURST_MAX: Final = 100
WINDOWS_S: Final = (60.0, 600.0, 3600.0)
PERIODS_S: Final = ((600.0, 4.0), (3600.0, 6.0), (86_400.0, 15.0))
"""Periods at which jobs are submitted by a timer, with how far from it a submission may lie."""
EWMA: Final = 0.2

DURATION_NAMES: Final = (
    "ewma", "last", "last_2", "median_5", "median_20", "median_200", "p10_200", "p90_200", "p25_20", "p75_20",
    "recent", "recent_2", "recent_mean",
)  # fmt: skip
SHAPE_NAMES: Final = (
    "ended", "since_end", "since_submission", "in_60", "in_600", "in_3600", "running", "running_age",
    "recent_age", "recent_2_age", "recent_ended",
)  # fmt: skip
SERIES_NAMES: Final = ("period_600", "period_3600", "period_86400", "burst_median")
SERIES_SHAPE_NAMES: Final = ("burst", "burst_age", "burst_ended")


def median(ordered: Sequence[float]) -> float:
    """Return the median of ordered values, NaN of none."""
    count = len(ordered)
    if not count:
        return nan
    middle = count // 2
    return ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Group:
    """The jobs of one group. Times in seconds of one clock; a duration is told as its logarithm."""

    __slots__ = ("_durations", "_ewma", "_last", "_last_end", "_ordered", "_recent", "_running", "_submitted", "ended")

    def __init__(self) -> None:
        self.ended = 0
        self._ewma = nan
        self._last_end = nan
        self._last: deque[float] = deque()  # the newest durations, in the order in which they became known
        self._ordered: list[float] = []  # the same by size
        self._recent: deque[str] = deque(maxlen=RECENT_MAX)  # the newest jobs, in the order of submission
        self._running: OrderedDict[str, float] = OrderedDict()
        self._submitted: list[tuple[float, str]] = []  # (at, job), ordered
        self._durations: dict[str, float] = {}  # of jobs in `_submitted` that have ended

    def submit(self, job: str, at: float) -> None:
        """A job has been submitted."""
        self._recent.append(job)
        if not self._submitted or self._submitted[-1][0] <= at:
            self._submitted.append((at, job))
        else:
            insort(self._submitted, (at, job))
        if len(self._submitted) > SUBMITTED_MAX:
            gone = self._submitted[: SUBMITTED_MAX // 2]
            del self._submitted[: SUBMITTED_MAX // 2]
            for _, old in gone:
                self._durations.pop(old, None)

    def start(self, job: str, at: float) -> None:
        """A job runs since then."""
        self._running[job] = at
        if len(self._running) > RUNNING_MAX:
            self._running.popitem(last=False)

    def stop(self, job: str) -> None:
        """A job does not run any more, and says nothing of how long it takes."""
        self._running.pop(job, None)

    def end(self, job: str, at: float, log_s: float) -> None:
        """A job has ended, and took so long."""
        self._running.pop(job, None)
        self._durations[job] = log_s
        if len(self._durations) > 2 * SUBMITTED_MAX:
            self._durations.pop(next(iter(self._durations)))
        if len(self._last) == LAST_MAX:
            del self._ordered[bisect_left(self._ordered, self._last.popleft())]
        self._last.append(log_s)
        insort(self._ordered, log_s)
        self._ewma = log_s if self.ended == 0 else (1 - EWMA) * self._ewma + EWMA * log_s
        self._last_end = at
        self.ended += 1

    @property
    def median(self) -> float:
        """Return the median of the last durations, NaN of none."""
        return median(self._ordered)

    @property
    def ordered(self) -> Sequence[float]:
        """Return the last durations by size."""
        return self._ordered

    def newest(self, count: int) -> list[str]:
        """Return the jobs that ended last, newest first."""
        return [job for job, _ in zip(reversed(self._durations), range(count), strict=False)]

    def runs(self, at: float, count: int) -> tuple[list[float], list[bool]]:
        """Return the run times of the jobs submitted last, newest first, and whether each has ended; of one that runs, its age so far."""
        logs: list[float] = []
        ended: list[bool] = []
        for _, job in reversed(self._submitted):
            duration = self._durations.get(job)
            since = self._running.get(job) if duration is None else None
            if duration is None and since is None:
                continue
            logs.append(duration if duration is not None else log(max(at - since, 1.0)) if since is not None else 0.0)
            ended.append(duration is not None)
            if len(logs) == count:
                break
        return logs, ended

    def durations(self, at: float) -> list[float]:
        """Return the features that are durations, by `DURATION_NAMES`; NaN is unknown.

        Of a recent job that still runs the mean takes its age, the least that it can come to.
        """
        last, ordered = self._last, self._ordered
        count = len(last)
        newest = [last[-n] for n in range(1, min(count, 20) + 1)]
        five, twenty = sorted(newest[:5]), sorted(newest)
        recent = [self._durations.get(job, nan) for job in self._recent]
        known = [
            duration if duration == duration else self._age(job, at)  # noqa: PLR0124 - NaN is not itself
            for job, duration in zip(self._recent, recent, strict=True)
        ]
        return [
            self._ewma, newest[0] if count else nan, newest[1] if count > 1 else nan, median(five), median(twenty), median(ordered),
            ordered[count // 10] if count else nan, ordered[count * 9 // 10] if count else nan,
            twenty[len(twenty) // 4] if count else nan, twenty[len(twenty) * 3 // 4] if count else nan,
            recent[-1] if recent else nan, recent[-2] if len(recent) > 1 else nan,
            sum(known) / len(known) if known else nan,
        ]  # fmt: skip

    def shape(self, at: float) -> list[float]:
        """Return the features that are no durations, by `SHAPE_NAMES`."""
        submitted, running = self._submitted, self._running
        count = len(submitted)
        low = max(count - 400, 0)
        within = [count - bisect_left(submitted, (at - window, ""), low) for window in WINDOWS_S]
        ages = sorted(at - since for since in _newest(running))
        recent = list(self._recent)
        ended = sum(job in self._durations for job in recent)
        return [
            log1p(self.ended), _log_since(at, self._last_end) if self.ended else nan,
            _log_since(at, submitted[-1][0]) if submitted else nan, *within,
            float(len(running)), log1p(max(median(ages), 0.0)) if ages else nan,
            self._open_age(recent, 1, at), self._open_age(recent, 2, at), ended / len(recent) if recent else nan,
        ]  # fmt: skip

    def series(self, at: float) -> tuple[list[float], list[float]]:
        """Return what series of submissions say, by `SERIES_NAMES` and `SERIES_SHAPE_NAMES`.

        A sweep is a burst of submissions close after each other; a timer's job was submitted a period ago, too.
        """
        submitted, durations = self._submitted, self._durations
        periodic = [self._a_period_ago(at, period, about) for period, about in PERIODS_S]
        before, first = at, len(submitted)
        while first > 0 and before - submitted[first - 1][0] <= BURST_GAP_S and len(submitted) - first < BURST_MAX:
            first -= 1
            before = submitted[first][0]
        burst = submitted[first:]
        known = sorted(durations[job] for _, job in burst if job in durations)
        share = len(known) / len(burst) if burst else nan
        return [*periodic, median(known)], [float(len(burst)), _log_since(at, before), share]

    def _a_period_ago(self, at: float, period_s: float, about_s: float) -> float:
        submitted, found, best = self._submitted, nan, about_s
        place = bisect_left(submitted, (at - period_s - about_s, ""))
        while place < len(submitted) and submitted[place][0] <= at - period_s + about_s:
            when, job = submitted[place]
            off = abs(at - period_s - when)
            if off <= best and job in self._durations:
                best, found = off, self._durations[job]
            place += 1
        return found

    def _age(self, job: str, at: float) -> float:
        since = self._running.get(job)
        return _log_since(at, since) if since is not None else 0.0

    def _open_age(self, recent: Sequence[str], back: int, at: float) -> float:
        """Return the age of the job submitted so many before, NaN where it does not run."""
        if len(recent) < back:
            return nan
        since = self._running.get(recent[-back])
        return _log_since(at, since) if since is not None else nan


def _newest(running: OrderedDict[str, float]) -> list[float]:
    """Return the starts of the runs that began last."""
    if len(running) <= RUNNING_SHOWN:
        return list(running.values())
    newest = reversed(running.values())
    return [next(newest) for _ in range(RUNNING_SHOWN)]


def _log_since(at: float, before: float) -> float:
    """Return log(1 + seconds) since an instant; a clock that went back makes it 0."""
    return log1p(max(at - before, 0.0))
