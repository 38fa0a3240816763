"""What the host runs: components, how far each is, and what the health server shows of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import structlog

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics, merged_text, process_text
from schedmate.infra.telemetry.redaction import redact
from schedmate.infra.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MEASURE_TIMEOUT_S: Final = 1.0

_log = structlog.get_logger()


class Component(Protocol):
    """One service as its wiring builds it."""

    name: str

    async def start(self) -> None:
        """Connect. Raises a clear error and then leaves nothing open: it may be called again after a transient one."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; return after draining. To return before that is a failure."""
        ...

    async def close(self) -> None:
        """Let go of everything; called once, also when `start` never succeeded."""
        ...

    def ready(self) -> Mapping[str, bool]:
        """Return the checks of readiness, e.g. `{"joined": True, "caught_up": True, "store": True}`. Quick, no I/O."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A component with metrics of its own (optional)."""

    metrics: Metrics


@runtime_checkable
class Measuring(Protocol):
    """A component that brings its gauges up to date before each scrape (optional; bounded to a second)."""

    async def measure(self) -> None:
        """Set gauges that have to be asked for, e.g. lag."""
        ...


@dataclass
class Hosted:
    """A component in the host, and how far it is."""

    component: Component
    tracing: Tracing
    metrics: Metrics
    replica: str = ""
    started: bool = False
    failure: BaseException | None = None

    @property
    def label(self) -> str:
        """The component's name, with its number where there are several of that name."""
        return f"{self.component.name}-{self.replica}" if self.replica else self.component.name

    def series(self) -> tuple[dict[str, str], CollectorRegistry]:
        """Return the labels that tell this component's samples from others', and its metrics."""
        labels = {"service": self.component.name}
        return (labels | {"replica": self.replica} if self.replica else labels), self.metrics.registry

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make what runs inside work for this component: its traces and its metrics."""
        with self.tracing.active(), self.metrics.active():
            yield

    def checks(self) -> dict[str, bool]:
        """Return the checks of readiness; `started` and `alive` are the host's own."""
        own = {"started": self.started, "alive": self.failure is None}
        if not self.started:
            return own
        try:
            return own | {str(name): bool(passed) for name, passed in self.component.ready().items()}
        except Exception as error:  # noqa: BLE001 - a broken check is a failed check, the host goes on
            _log.warning(
                "readiness check failed", action="host.ready-failed", component=self.label, error=words_of(error)
            )
            return own | {"ready": False}

    async def measure(self) -> None:
        """Bring the component's gauges up to date, bounded; an old value is better than no answer."""
        for check, passed in self.checks().items():
            self.metrics.set(names.READY, passed, check=check)
        if not self.started or not isinstance(self.component, Measuring):
            return
        try:
            await asyncio.wait_for(self.component.measure(), MEASURE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - a scrape never fails for one component
            _log.debug("measuring failed", action="host.measure-failed", component=self.label, error=words_of(error))


@dataclass
class Host:
    """What the health server shows."""

    hosted: Sequence[Hosted]
    stopping: bool = False

    def alive(self) -> bool:
        """Whether no component has failed."""
        return all(one.failure is None for one in self.hosted)

    def ready(self) -> tuple[bool, dict[str, dict[str, bool]]]:
        """Return whether all checks of all components pass, and the checks."""
        checks = {one.label: one.checks() for one in self.hosted}
        return not self.stopping and all(all(c.values()) for c in checks.values()), checks

    async def metrics_text(self) -> bytes:
        """Return the metrics of all components, each sample with its service, and those of the process."""
        await asyncio.gather(*(one.measure() for one in self.hosted))
        return merged_text(one.series() for one in self.hosted) + process_text()


def words_of(error: BaseException) -> str:
    """Return what an error says, redacted; its class when it says nothing."""
    return redact(str(error)) or type(error).__name__
