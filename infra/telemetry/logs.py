"""Structured logs: one line an event, with `action`, service and trace id; secrets are redacted before the sink.

Text from users is a value, never part of the message: `log.info("job accepted", action="job.accepted", job_id=…)`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from schedmate.infra.telemetry.redaction import redact, redact_value
from schedmate.infra.telemetry.tracing import current_service, current_trace_id

VALUE_CHARACTERS_MAX: Final = 8192
_NOISY: Final = {
    "aiokafka": logging.WARNING,
    "pymongo": logging.WARNING,
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "uvicorn": logging.WARNING,
}


class _StandardError:
    """Standard error as it is when something is written: whoever runs us in his own process may replace it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def setup_logging(
    level: str = "info",
    format: Literal["json", "console"] = "json",  # noqa: A002 - the setting's name
    stream: TextIO | None = None,
) -> None:
    """Send structlog's and the standard library's logs through one chain to one stream (standard error)."""
    sink: TextIO = cast("TextIO", _StandardError()) if stream is None else stream
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        add_origin,
        structlog.processors.format_exc_info,
        redacted,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(default=_unknown, ensure_ascii=False)
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sink.isatty(), repr_native_str=True)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sink),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name, least in _NOISY.items():
        logging.getLogger(name).setLevel(max(least, threshold))


def add_origin(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the service and the trace id of the current span, where there are some."""
    event.setdefault("service", current_service())
    found = current_trace_id()
    if found:
        event.setdefault("trace_id", found)
    return event


def redacted(_logger: WrappedLogger, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Replace secrets in all values, by their keys and by their shapes; cut what is too long."""
    return {key: value if key.startswith("_") else _shown(key, value) for key, value in event.items()}


def _shown(key: str, value: Any) -> Any:
    shown = redact_value(key, value)
    if isinstance(shown, str) and len(shown) > VALUE_CHARACTERS_MAX:
        return f"{shown[:VALUE_CHARACTERS_MAX]}… [{len(shown) - VALUE_CHARACTERS_MAX} more characters]"
    return shown


def _unknown(value: Any) -> str:
    return redact(str(value)) if not isinstance(value, Mapping) else f"[dropped: {type(value).__name__}]"
