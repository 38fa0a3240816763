"""A log that is there as a whole: read it from the beginning, and tell how far it is at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from schedmate.services.log_monitor.lines import Feed, flush, push
from schedmate.services.log_monitor.metrics.far import Hints, Snapshot, snapshot
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.metrics.state import Metrics

FIELDS: Final = ("step", "total_steps", "epoch", "total_epochs", "fraction", "steps_per_sec", "eta_s", "phase", "loss")


def read_whole(chunks: Iterable[bytes], follower: Follower | None = None) -> Metrics:
    """Return the metrics of a log's bytes, the last line included though nothing ends it. Keeps one chunk at a time."""
    reader = follower or Follower(library())
    feed, metrics = Feed(), Metrics()
    for chunk in chunks:
        for line in push(feed, feed.offset, feed.offset + len(chunk), chunk, gap=False):
            reader.follow(metrics, line.text)
    return reader.view(metrics, [line.text for line in flush(feed)])


def progress_of(chunks: Iterable[bytes], hints: Hints, follower: Follower | None = None) -> Snapshot:
    """Return how far a job is by its log's bytes."""
    return snapshot(read_whole(chunks, follower), hints)


def as_json(far: Snapshot) -> dict[str, Any]:
    """Return a snapshot as the command prints it: the fields of the corpora's predictions, and the interval of the remaining time."""
    told = asdict(far)
    slowed = told["slowed"] | {"size": far.slowed.size} if far.slowed is not None else None
    more = {"eta_low_s": far.eta_low_s, "eta_high_s": far.eta_high_s, "slowed": slowed}
    return {name: told[name] for name in FIELDS} | more
