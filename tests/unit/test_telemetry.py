"""Metrics and logs; and that nothing is emitted that the registry of names does not know."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.logs import VALUE_CHARACTERS_MAX, setup_logging
from schedmate.infra.telemetry.metrics import Metrics, merged_text
from schedmate.infra.telemetry.redaction import REDACTED
from schedmate.infra.telemetry.tracing import Tracing, current_trace_id, span

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    path
    for room in ("services", "infra", "schedmate", "simulator")
    for path in sorted((ROOT / room).rglob("*.py"))
    if not any(part in ("node_modules", "servers") for part in path.parts)
    and not any(parent.is_symlink() for parent in path.relative_to(ROOT).parents if str(parent) != ".")
]

# --- the registry -----------------------------------------------------------------------------------------------------


def test_names_are_unique_and_follow_the_conventions():
    for registered in (
        [m.name for m in names.METRICS],
        [s.name for s in names.SPANS],
        [a.key for a in names.ATTRIBUTES],
    ):
        assert len(set(registered)) == len(registered)
    for metric in names.METRICS:
        assert re.fullmatch(r"schedmate_[a-z0-9]+(_[a-z0-9]+)*", metric.name), metric.name
        assert metric.help.endswith("."), metric.name
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert (metric.kind == "histogram") == bool(metric.buckets), metric.name
        assert tuple(sorted(metric.buckets)) == tuple(metric.buckets), metric.name
        if metric.unit:
            assert metric.name.removesuffix("_total").endswith(metric.unit), metric.name


def test_every_constant_of_the_registry_is_in_its_table():
    tables = {m.name for m in names.METRICS} | {s.name for s in names.SPANS} | {a.key for a in names.ATTRIBUTES}
    for constant, value in vars(names).items():
        if constant.isupper() and isinstance(value, str):
            assert value in tables, constant
        if isinstance(value, names.MetricName):
            assert value in names.METRICS, constant


def test_nothing_is_registered_that_nothing_emits():
    text = "\n".join(p.read_text("utf-8") for p in PRODUCT if p.name not in ("names.py", "reference.py"))
    used = set(re.findall(r"\bnames\.([A-Z][A-Z0-9_]+)\b", text))
    keywords = set(re.findall(r"\b([a-z_]+)=", text))
    attributes = {a.key for a in names.ATTRIBUTES}
    for constant, value in vars(names).items():
        by_keyword = (
            value in attributes
            and any(key == value and written in keywords for written, key in names.ATTRIBUTE_OF_KEYWORD.items())
            if isinstance(value, str)
            else False
        )
        if constant.isupper() and isinstance(value, (str, names.MetricName)) and not by_keyword:
            assert constant in used, f"{constant} is in the registry, and nothing emits it"


def test_a_keyword_names_one_attribute():
    assert names.ATTRIBUTE_OF_KEYWORD["job_id"] == "schedmate.job.id"
    assert names.ATTRIBUTE_OF_KEYWORD["messaging_destination_name"] == "messaging.destination.name"
    assert len(set(names.ATTRIBUTE_OF_KEYWORD.values())) == len(names.ATTRIBUTES)


SPAN_FUNCTIONS = {"span": 0, "span_from": 1, "consumer_span": 1, "producer_span": 1}
SPAN_KEYWORDS = {"kind", "links", "group"}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Call):
                yield path.relative_to(ROOT), node


def test_spans_are_opened_by_registered_names_with_registered_attributes():
    spans, seen = {s.name for s in names.SPANS}, 0
    for path, call in calls():
        function = (
            call.func.id
            if isinstance(call.func, ast.Name)
            else call.func.attr
            if isinstance(call.func, ast.Attribute)
            else ""
        )
        if function not in SPAN_FUNCTIONS or (
            isinstance(call.func, ast.Attribute) and not _is_tracing(call.func.value)
        ):
            continue
        seen += 1
        position = SPAN_FUNCTIONS[function]
        if len(call.args) > position:
            assert _registered(call.args[position], spans), (
                f"{path}:{call.lineno}: the span's name is not in the registry"
            )
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in SPAN_KEYWORDS:
                assert keyword.arg in names.ATTRIBUTE_OF_KEYWORD, (
                    f"{path}:{call.lineno}: attribute {keyword.arg} is not in the registry"
                )
    assert seen, "the search finds no span at all: it looks in the wrong place"


def _is_tracing(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "tracing"


def _registered(name: ast.expr, spans: set[str]) -> bool:
    """A constant of `names`, a registered literal, or a variable that the function was handed."""
    if isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name) and name.value.id == "names":
        return getattr(names, name.attr) in spans
    if isinstance(name, ast.Constant):
        return name.value in spans
    return isinstance(name, ast.Name)


METRIC_FUNCTIONS = {"count": "counter", "set": "gauge", "observe": "histogram"}


def test_metrics_are_used_as_the_registry_says():
    """A wrong label or kind is an assertion at run time: it must be found here."""
    seen = 0
    for path, call in calls():
        function = (
            call.func.id
            if isinstance(call.func, ast.Name)
            else call.func.attr
            if isinstance(call.func, ast.Attribute)
            else ""
        )
        if function not in METRIC_FUNCTIONS or not call.args or not _of_names(call.args[0]):
            continue
        seen += 1
        metric, where = getattr(names, call.args[0].attr), f"{path}:{call.lineno}"  # type: ignore[attr-defined]
        assert isinstance(metric, names.MetricName), where
        assert metric.kind == METRIC_FUNCTIONS[function], f"{where}: {metric.name} is a {metric.kind}"
        if all(keyword.arg is not None for keyword in call.keywords):
            assert {keyword.arg for keyword in call.keywords} == set(metric.labels), f"{where}: labels of {metric.name}"
    assert seen, "the search finds no metric at all: it looks in the wrong place"


def _of_names(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "names"


LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def log_calls() -> Iterator[tuple[Path, ast.Call]]:
    for path, call in calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS:
            of = call.func.value
            name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
            if name.lstrip("_") in ("log", "logger"):
                yield path, call


def test_log_lines_have_a_fixed_message_and_an_action():
    found = list(log_calls())
    assert found, "the search finds no log line at all: it looks in the wrong place"
    for path, call in found:
        where = f"{path}:{call.lineno}"
        assert call.args, where
        assert isinstance(call.args[0], ast.Constant), (
            f"{where}: the message must be a constant; what varies is a value"
        )
        action = next((keyword.value for keyword in call.keywords if keyword.arg == "action"), None)
        assert action is not None, f"{where}: no action"
        if isinstance(action, ast.Constant):
            assert re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+", str(action.value)), (
                f"{where}: an action is written `part.what-happened`"
            )


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_are_text_with_help_and_labels():
    metrics = Metrics()
    metrics.count(names.DECISIONS_TOTAL, 2, pool="default", kind="assigned")
    metrics.set(names.QUEUE_DEPTH, 5, pool="default")
    metrics.observe(names.JOB_WAIT_S, 3.0, pool="default")
    text = metrics.text().decode()
    assert (
        "# HELP schedmate_decisions_total Decisions of the pool's log.\n# TYPE schedmate_decisions_total counter\n"
        in text
    )
    assert 'schedmate_decisions_total{kind="assigned",pool="default"} 2.0\n' in text
    assert 'schedmate_queue_depth_jobs{pool="default"} 5.0\n' in text
    assert 'schedmate_job_wait_seconds_bucket{le="5.0",pool="default"} 1.0\n' in text


def test_two_services_have_metrics_of_their_own():
    one, two = Metrics(), Metrics()
    one.set(names.QUEUE_DEPTH, 1, pool="p")
    assert "schedmate_queue_depth_jobs" not in two.text().decode()
    text = merged_text([({"service": "ingest"}, one.registry), ({"service": "worker"}, two.registry)]).decode()
    assert 'schedmate_queue_depth_jobs{pool="p",service="ingest"} 1.0' in text


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: m.count(names.QUEUE_DEPTH, pool="p"), "is a gauge"),
        (lambda m: m.set(names.QUEUE_DEPTH, 1, queue="p"), "has the labels"),
        (lambda m: m.observe(names.JOB_WAIT_S, 1), "has the labels"),
    ],
)
def test_a_metric_used_in_the_wrong_way_is_an_error(call, match):
    with pytest.raises(AssertionError, match=match):
        call(Metrics())


def test_series_are_bounded_and_what_is_left_out_is_counted():
    metrics = Metrics(series_max=3)
    for number in range(10):
        metrics.set(names.QUEUE_DEPTH, number, pool=f"p{number}")
    text = metrics.text().decode()
    assert text.count("schedmate_queue_depth_jobs{") == 3
    assert 'schedmate_metrics_dropped_total{metric="schedmate_queue_depth_jobs"} 7.0' in text
    metrics.set(names.QUEUE_DEPTH, 9, pool="p1")
    assert 'schedmate_queue_depth_jobs{pool="p1"} 9.0' in metrics.text().decode(), "a known series goes on"


def test_replacing_a_gauge_lets_series_that_are_gone_vanish():
    metrics = Metrics()
    metrics.replace(names.JOBS, {("p", "RUNNING"): 2, ("p", "QUEUED"): 1})
    metrics.replace(names.JOBS, {("p", "RUNNING"): 3})
    text = metrics.text().decode()
    assert 'schedmate_jobs{pool="p",state="RUNNING"} 3.0' in text
    assert "QUEUED" not in text


def test_the_registry_makes_every_metric():
    metrics = Metrics()
    for metric in names.METRICS:
        labels = dict.fromkeys(metric.labels, "x")
        {"counter": metrics.count, "gauge": metrics.set, "histogram": metrics.observe}[metric.kind](
            metric, 1.0, **labels
        )
    text = metrics.text().decode()
    assert all(f"# HELP {metric.name} " in text for metric in names.METRICS)


# --- logs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sink():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(sink: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_a_line_has_action_time_service_and_the_spans_trace_id(sink):
    setup_logging("info", "json", sink)
    with Tracing("worker").active(), span(names.START_MEMBER):
        structlog.get_logger().info("run started", action="run.started", job_id="j1")
        trace = current_trace_id()
    (line,) = lines(sink)
    assert {k: line[k] for k in ("event", "action", "job_id", "level", "service", "trace_id")} == {
        "event": "run started",
        "action": "run.started",
        "job_id": "j1",
        "level": "info",
        "service": "worker",
        "trace_id": trace,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["at"])


def test_secrets_never_reach_the_sink_by_key_by_shape_or_in_a_traceback(sink):
    setup_logging("info", "json", sink)
    log = structlog.get_logger()
    log.info(
        "x", action="a.b", password="one-secret", url="postgres://u:two-secret@h", nested={"api_key": "three-secret"}
    )
    try:
        int("token=four4secret4four4")
    except ValueError:
        log.exception("y", action="a.c")
    logging.getLogger("foreign").warning("Authorization: Bearer five-secret")
    text = sink.getvalue()
    for secret in ("one-secret", "two-secret", "three-secret", "four4secret", "five-secret"):
        assert secret not in text
    assert text.count(REDACTED) >= 5
    assert "ValueError" in text


def test_a_value_from_a_user_cannot_forge_a_line_in_either_format(sink):
    for form in ("json", "console"):
        setup_logging("info", form, sink)
        structlog.get_logger().info("job accepted", action="job.accepted", name='x\n{"action": "forged"}\x1b[31m')
    text = sink.getvalue()
    assert len(text.splitlines()) == 2
    assert "\x1b[31m" not in text


def test_long_values_are_cut(sink):
    setup_logging("info", "json", sink)
    structlog.get_logger().info("x", action="a.b", text="a " * VALUE_CHARACTERS_MAX)
    assert lines(sink)[0]["text"].endswith(f"[{VALUE_CHARACTERS_MAX} more characters]")


def test_levels_below_the_threshold_are_left_out_and_noisy_libraries_kept_down(sink):
    setup_logging("info", "json", sink)
    structlog.get_logger().debug("x", action="a.b")
    logging.getLogger("aiokafka.consumer").info("chatter")
    logging.getLogger("foreign").info("heard")
    assert [line["event"] for line in lines(sink)] == ["heard"]
    assert lines(sink)[0]["logger"] == "foreign"


def test_a_value_that_is_no_json_is_text(sink):
    setup_logging("info", "json", sink)
    structlog.get_logger().info("x", action="a.b", path=Path("/tmp"), error=ValueError("v"), raw=b"abc", many={1})
    (line,) = lines(sink)
    assert (line["path"], line["error"], line["raw"], line["many"]) == ("/tmp", "v", "[dropped: 3 bytes]", [1])
