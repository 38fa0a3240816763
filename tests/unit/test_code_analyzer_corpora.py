"""The scores that code-analyzer must hold on its labelled jobs, without a model, and with one that talks garbage."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from schedmate.infra.clock import SystemClock
from schedmate.infra.llm.scripted import Reply, ScriptedModel
from schedmate.services.code_analyzer.agent import Agent, Bounds
from schedmate.services.code_analyzer.analysis import Subject
from schedmate.services.code_analyzer.reading import analyze_directory, directory_texts
from schedmate.services.code_analyzer.suggestions import merged, open_fields

CORPUS = Path(__file__).resolve().parents[1] / "corpora" / "sources"
_spec = importlib.util.spec_from_file_location("source_scorer", CORPUS / "score.py")
scorer = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scorer)

CASES = {s: sorted((CORPUS / s).glob("*/label.json")) for s in ("dev", "own", "later")}
GARBAGE = [
    "", "null", "[]", "{", '{"action": "answer"}', '{"action": "answer", "answers": [{}]}', "ignore all that", "\x00" * 99,
    '{"action": "answer", "answers": [{"field": "epochs", "value": 999, "file": "launch.sh", "quote": "epochs 999"}]}',
    '{"action": "answer", "answers": [{"field": "max_steps", "value": 1, "file": "launch.sh", "quote": "#!/bin/bash"}]}',
    '{"action": "read_file", "path": "../../etc/passwd"}', '{"action": "delete", "path": "launch.sh"}',
    '{"action": "answer", "answers": [{"field": "priority", "value": "urgent", "file": "launch.sh", "quote": "python"}]}',
]  # fmt: skip


def score(split, fields_of):
    """Return macro accuracy and the number of invented fields, by the scorer's default."""
    good, total, invented = {}, {}, 0
    for path in CASES[split]:
        label = json.loads(path.read_text("utf-8"))
        told = fields_of(label, path.parent / "job")
        for name in scorer.FIELDS:
            wanted = label["fields"][name]
            value = told.get(name)
            right = any(scorer.same(name, value, x, strict=False) for x in [wanted["value"], *wanted["accept"]])
            good[name] = good.get(name, 0) + right
            total[name] = total.get(name, 0) + 1
            invented += not right and wanted["value"] is None and value is not None
    return sum(good[n] / total[n] for n in total) / len(total), invented


def static(label, job):
    _, analysis = analyze_directory(Subject(entry=label["entry"]), job)
    return {name: found.value for name, found in analysis.fields.items()}


@pytest.mark.parametrize(("split", "cases", "least"), [("dev", 22, 0.95), ("own", 36, 0.85), ("later", 10, 0.95)])
def test_the_scores_hold_without_a_model(split, cases, least):
    assert len(CASES[split]) == cases
    accuracy, invented = score(split, static)
    print(f"{split}: macro {accuracy:.1%}, invented {invented}")
    assert accuracy >= least
    assert invented <= 2


@pytest.mark.parametrize("split", ["dev", "own", "later"])
async def test_a_model_that_talks_garbage_changes_nothing(split):
    answers = {}
    for path in CASES[split]:
        label = json.loads(path.read_text("utf-8"))
        _, analysis = analyze_directory(Subject(entry=label["entry"]), path.parent / "job")
        model = ScriptedModel([Reply(text) for text in GARBAGE * 3])
        agent = Agent(model, SystemClock(), Bounds(votes=3, steps_max=4))
        outcome = await agent.ask(directory_texts(path.parent / "job"), open_fields(analysis.fields))
        assert outcome.suggested == {}
        answers[label["id"]] = {n: f.value for n, f in merged(analysis.fields, outcome.suggested).items()}
    assert score(split, lambda label, _: answers[label["id"]]) == score(split, static)


@pytest.mark.parametrize("path", [p for paths in CASES.values() for p in paths], ids=lambda p: p.parent.name)
def test_every_field_rests_on_a_line_that_is_there(path):
    label = json.loads(path.read_text("utf-8"))
    _, analysis = analyze_directory(Subject(entry=label["entry"]), path.parent / "job")
    assert analysis.fields
    for name, found in analysis.fields.items():
        assert found.file is not None, name
        lines = (path.parent / "job" / found.file).read_text("utf-8").splitlines()
        assert 1 <= (found.line or 1) <= max(1, len(lines)), (name, found)
