"""A resubmission reads only what has changed: parsed files by their content, fields by the files they rest on, a model's words by the file quoted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedmate.infra.blobs.memory import MemoryBlobs
from schedmate.infra.clock import SystemClock
from schedmate.infra.llm.scripted import ScriptedModel
from schedmate.infra.pacing import Budget, Pacing
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.work_pool import WorkPool
from schedmate.services.code_analyzer import reading
from schedmate.services.code_analyzer.agent import Agent, Bounds
from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.bundles import BundlesFromBlobs
from schedmate.services.code_analyzer.handlers import COLLECTION, Analyzer, lineage_of
from schedmate.services.code_analyzer.reading import read_directory
from schedmate.services.code_analyzer.resolve.units import Units
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.source import Tree
from schedmate.services.code_analyzer.suggesting import Suggester
from tests.advice import Job, envelope, memory_store
from tests.waiting import eventually

CORPUS = Path(__file__).resolve().parents[1] / "corpora" / "sources"
MANY = 30


def job(folder: Path) -> Path:
    """A job of many files: a script, a configuration, a program that imports thirty modules, and one that nobody imports."""
    (folder / "lib").mkdir()
    (folder / "lib" / "__init__.py").write_text("")
    for n in range(MANY):
        (folder / "lib" / f"m{n}.py").write_text(f"SIZE = {n}\n\ndef f(x):\n    return x + {n}\n")
    (folder / "c.yaml").write_text("epochs: 3\noptim: {name: sgd}\n")
    (folder / "run.sh").write_text("python t.py --config c.yaml\n")
    imports = "\n".join(f"from lib.m{n} import SIZE as S{n}" for n in range(MANY))
    (folder / "t.py").write_text(
        "import argparse, yaml\n" + imports + "\np = argparse.ArgumentParser()\np.add_argument('--config')\n"
        "p.add_argument('--batch_size', type=int, default=8)\na = p.parse_args()\ncfg = yaml.safe_load(open(a.config))\n"
        "for epoch in range(cfg['epochs']):\n    print(epoch)\n"
    )
    (folder / "unused.py").write_text("x = 1\n")
    (folder / "README.md").write_text("words\n")
    return folder


@pytest.fixture(autouse=True)
def _nothing_parsed_yet():
    reading._units.cache_clear()


SUBJECT = Subject(command=("bash", "run.sh"))


@pytest.mark.parametrize(
    ("edited", "text"),
    [("lib/m7.py", "SIZE = 700\n"), ("t.py", None), ("c.yaml", "epochs: 5\noptim: {name: sgd}\n"), ("run.sh", "python t.py --config c.yaml --batch_size 16\n")],
)  # fmt: skip
def test_an_edit_of_one_file_of_many_parses_that_file_only(tmp_path, edited, text):
    first = read_directory(SUBJECT, job(tmp_path), None)
    assert len(first.parsed) >= MANY + 3
    assert first.reused == ()
    (tmp_path / edited).write_text(text or (tmp_path / edited).read_text().replace("default=8", "default=4"))
    second = read_directory(SUBJECT, tmp_path, first.known)
    assert second.analysis is not None
    assert second.parsed == (edited,)
    assert len(second.reused) == len(first.parsed) - 1
    reading._units.cache_clear()
    assert read_directory(SUBJECT, tmp_path, None).analysis.fields == second.analysis.fields


def test_fields_say_which_files_they_rest_on(tmp_path):
    found = read_directory(SUBJECT, job(tmp_path), None).analysis
    assert found.rests["epochs"] == ("c.yaml", "run.sh")
    assert found.rests["batch_size_per_device"] == ("run.sh", "t.py")
    assert set(found.rests) == set(found.fields)


@pytest.mark.parametrize("edited", ["README.md", "unused.py"])
def test_an_edit_of_what_nothing_rests_on_parses_nothing(tmp_path, edited):
    first = read_directory(SUBJECT, job(tmp_path), None)
    (tmp_path / edited).write_text("other\n")
    second = read_directory(SUBJECT, tmp_path, first.known)
    assert (second.analysis, second.parsed) == (None, ())


def test_what_is_parsed_once_gives_the_same_fields_in_every_later_analysis():
    units = Units()
    for label in sorted(CORPUS.glob("*/*/label.json"))[::4]:
        subject = Subject(entry=json.loads(label.read_text("utf-8"))["entry"])
        files = {p.relative_to(label.parent / "job").as_posix(): p.read_bytes() for p in (label.parent / "job").rglob("*") if p.is_file()}  # fmt: skip
        alone = analyze(subject, Tree(files)).fields
        assert [analyze(subject, Tree(files), units).fields for _ in range(2)] == [alone, alone], label.parent.name


def test_the_parsed_forms_that_are_kept_are_bounded():
    units = Units(characters_max=100)
    made = []
    for n in range(30):
        units.get("python", f"x = {n:04d}\n", lambda text: made.append(text) or text)
    assert units.get("python", "x = 0029\n", made.append) == ("x = 0029\n", True)
    assert units.get("python", "x = 0000\n", lambda text: text) == ("x = 0000\n", False)
    assert units.get("yaml", "x = 0029\n", lambda text: text)[1] is False
    with pytest.raises(ValueError, match="no"):
        units.get("python", "bad", lambda _: (_ for _ in ()).throw(ValueError("no")))


async def test_a_resubmission_asks_the_model_only_about_what_changed(tmp_path):
    (tmp_path / "run.sh").write_text("./solve --rounds 40\n")
    (tmp_path / "README.md").write_text("words\n")
    quote = {"field": "epochs", "value": 40, "file": "run.sh", "quote": "./solve --rounds 40"}
    model = ScriptedModel([{"action": "answer", "answers": [quote]}] * 9)
    store, said, pool = await memory_store(), [], WorkPool(1)

    async def publish(one):
        said.append(one)

    async def keep(pending, fields):
        await handler.keep(pending, fields)

    agent = Agent(model, SystemClock(), Bounds(votes=3, steps_max=4))
    settings = CodeAnalyzerSettings(read_workdirs=True)
    blobs = BundlesFromBlobs(MemoryBlobs(SystemClock()))
    suggester = Suggester(agent, keep, publish, Metrics(), Pacing(Budget(100)), SystemClock())
    handler = Analyzer(store, blobs, pool, settings, SystemClock(), Metrics(), suggester)
    submitted = Job(fields={"command": ("bash", "run.sh"), "workdir": str(tmp_path)}).submitted()

    async def analysed():
        (one,) = await handler(envelope(submitted))
        while suggester._pending:
            await suggester._one(suggester._next())
        return one.event

    try:
        assert "epochs" not in (await analysed()).fields
        assert (len(model.asked), said[-1].event.fields["epochs"].value) == (3, 40)
        (tmp_path / "README.md").write_text("other words\n")
        assert (await analysed()).fields["epochs"].value == 40
        assert len(model.asked) == 3
        lineage = await store.get(COLLECTION, lineage_of(submitted.spec, Subject.of(submitted.spec)))
        assert lineage.body["suggested"]["epochs"]["field"]["file"] == "run.sh"
        (tmp_path / "run.sh").write_text("./solve --rounds 50\n")
        changed = await analysed()
        assert "epochs" not in changed.fields
        await eventually(lambda: len(model.asked) > 3)
    finally:
        await pool.close()
