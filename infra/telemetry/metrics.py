"""Prometheus metrics from the registry of names, on a collector registry that is handed in.

A service has a `Metrics` of its own. Adapters and runners, which several services may share, use `count` and `observe` of
this module: as with traces, the host says in a context variable which service the code runs for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from threading import Lock
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.names import MetricName

SERIES_MAX: Final = 2000


class Metrics:
    """The metrics of one service. Label values are bounded per metric: what is beyond is counted and left out."""

    def __init__(self, registry: CollectorRegistry | None = None, *, series_max: int = SERIES_MAX) -> None:
        self.registry = CollectorRegistry(auto_describe=False) if registry is None else registry
        self._series_max = series_max
        self._lock = Lock()
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}

    def count(self, metric: MetricName, amount: float = 1.0, /, **labels: str) -> None:
        """Add to a counter."""
        found = self._child(metric, "counter", labels)
        if found is not None:
            found.inc(amount)

    def set(self, metric: MetricName, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        found = self._child(metric, "gauge", labels)
        if found is not None:
            found.set(value)

    def observe(self, metric: MetricName, value: float, /, **labels: str) -> None:
        """Add an observation to a histogram."""
        found = self._child(metric, "histogram", labels)
        if found is not None:
            found.observe(value)

    def replace(self, metric: MetricName, values: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge to exactly these series (label values in the metric's order); other series of it vanish."""
        with self._lock:
            gone = self._series.get(metric.name, set()) - values.keys()
            self._series.get(metric.name, set()).difference_update(gone)
            made = self._made.get(metric.name)
        if made is not None and metric.labels:
            for series in gone:
                made.remove(*series)
        for series, value in values.items():
            self.set(metric, value, **dict(zip(metric.labels, series, strict=True)))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make these the metrics of whatever runs inside, tasks started there included."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _child(self, metric: MetricName, kind: str, labels: Mapping[str, str]) -> Any:
        assert metric.kind == kind, f"{metric.name} is a {metric.kind}"
        assert labels.keys() == set(metric.labels), f"{metric.name} has the labels {metric.labels}"
        series = tuple(str(labels[label]) for label in metric.labels)
        with self._lock:
            made = self._made.get(metric.name)
            if made is None:
                made = self._made[metric.name] = self._make(metric)
                self._series[metric.name] = set()
            known = self._series[metric.name]
            if series not in known:
                if len(known) >= self._series_max:
                    self._dropped(metric)
                    return None
                known.add(series)
        return made.labels(*series) if metric.labels else made

    def _make(self, metric: MetricName) -> Counter | Gauge | Histogram:
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        if metric.kind == "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
        return Histogram(metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets)

    def _dropped(self, metric: MetricName) -> None:
        dropped = names.METRICS_DROPPED
        made = self._made.get(dropped.name)
        if made is None:
            made = self._made[dropped.name] = self._make(dropped)
            self._series[dropped.name] = set()
        assert isinstance(made, Counter)
        made.labels(metric.name).inc()


_current: ContextVar[Metrics | None] = ContextVar("schedmate_metrics", default=None)


def count(metric: MetricName, amount: float = 1.0, /, **labels: str) -> None:
    """Add to a counter of the service that the current context runs for; nothing outside of one."""
    current = _current.get()
    if current is not None:
        current.count(metric, amount, **labels)


def observe(metric: MetricName, value: float, /, **labels: str) -> None:
    """Add an observation to a histogram of the service that the current context runs for; nothing outside of one."""
    current = _current.get()
    if current is not None:
        current.observe(metric, value, **labels)


class _Merged(Collector):
    """Several services' registries as one: each sample gets its service's labels, families of one name become one."""

    def __init__(self, registries: Iterable[tuple[Mapping[str, str], CollectorRegistry]]) -> None:
        self._registries = tuple(registries)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for labels, registry in self._registries:
            for family in registry.collect():
                merged = families.get(family.name)
                if merged is None:
                    merged = families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
                for sample in family.samples:
                    if sample.name.endswith("_created"):
                        continue  # when a series began is of no use to anybody here, and doubles the text
                    merged.samples.append(sample._replace(labels={**labels, **sample.labels}))
        yield from families.values()


def merged_text(registries: Iterable[tuple[Mapping[str, str], CollectorRegistry]]) -> bytes:
    """Return the metrics of several services as one text in Prometheus' format; the labels tell whose a sample is."""
    together = CollectorRegistry(auto_describe=False)
    together.register(_Merged(registries))
    return generate_latest(together)


def process_text() -> bytes:
    """Return the process's own metrics (CPU, memory, file descriptors)."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)
