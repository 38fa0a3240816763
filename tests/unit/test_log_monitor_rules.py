"""The rules of failure causes against their own examples, and against hostile lines."""

from __future__ import annotations

import time

import pytest

from schedmate.services.log_monitor.failures.categories import load_categories
from schedmate.services.log_monitor.failures.rules import TEXT_MAX, load_rules
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.metrics.state import Metrics

RULES = load_rules()
EXAMPLES = [(rule, text) for rule in RULES.rules for text in rule.examples]
COUNTEREXAMPLES = [(rule, text) for rule in RULES.rules for text in rule.counterexamples]


def test_each_of_the_forty_four_causes_has_a_rule_with_examples_and_counterexamples():
    assert len(load_categories()) == 44
    assert {rule.category for rule in RULES.rules} - {"UNKNOWN"} == set(load_categories())
    assert all(rule.examples and rule.counterexamples for rule in RULES.rules)


@pytest.mark.parametrize(("rule", "text"), EXAMPLES, ids=[f"{r.id}-{i}" for i, (r, _) in enumerate(EXAMPLES)])
def test_a_rule_recognises_its_examples_and_none_outranks_it(rule, text):
    for source in rule.where:
        matched = RULES.match(text, source)
        assert rule in matched
        causes = [r for r in matched if r.role == rule.role]
        assert min(causes, key=lambda r: r.tier).category == rule.category


@pytest.mark.parametrize(
    ("rule", "text"), COUNTEREXAMPLES, ids=[f"{r.id}-{i}" for i, (r, _) in enumerate(COUNTEREXAMPLES)]
)
def test_a_rule_refuses_its_counterexamples(rule, text):
    assert all(rule not in RULES.match(text, source) for source in rule.where)


@pytest.mark.parametrize(
    "line",
    [
        "step 12/100 loss=0.3 lr=1e-4",
        "Epoch 3/10: 100%|##########| 50/50 [00:10<00:00, 5.00it/s]",
        "WARNING: this is only a warning",
        "INFO error rate: 0.02",
        "",
    ],
)
def test_an_ordinary_line_matches_no_rule(line):
    assert RULES.match(line) == ()


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "(",
        "Xid ",
        " ",
        "error: ",
        "1/",
        "a.",
        "[rank0]: ",
        "0",
        "loss",
        "saving ",
        "saving checkpoint ",
        "|",
        "epoch [",
        "\t:",
    ],
)
def test_a_hostile_line_is_read_in_bounded_time(piece):
    line = (piece * TEXT_MAX)[: TEXT_MAX * 2]
    start = time.thread_time()
    RULES.match(line)
    Follower(library()).follow(Metrics(), line)
    assert time.thread_time() - start < 0.25


def test_an_xid_number_finds_its_rule_and_an_unknown_one_none():
    assert {n: RULES.of_xid(n).category for n in (79, 48, 95, 74, 119)} == {
        79: "GPU_LOST", 48: "GPU_ECC", 95: "GPU_ECC", 74: "NVLINK_ERROR", 119: "GPU_DRIVER",
    }  # fmt: skip
    assert RULES.of_xid(999) is None
