"""What is generated is fresh, says what everything means, and agrees with the models."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from schedmate.schemas import generate
from schedmate.schemas.events import BY_TYPE, EVENTS
from schedmate.schemas.glossary import MEANINGS, meaning, word
from schedmate.schemas.json_schema import event_schema
from tests.event_fixtures import path_of

ROOT = Path(__file__).resolve().parents[2]
FILES = functools.cache(generate.files)  # a second each time, and the same each time (tested below)


def models() -> list[type[BaseModel]]:
    """Return every event and every model inside one."""
    found: dict[str, type[BaseModel]] = {event.__name__: event for event in EVENTS}
    named = {name for event in EVENTS for name in event_schema(event).get("$defs", {})}

    def subclasses(of: type[BaseModel]) -> list[type[BaseModel]]:
        return [model for child in of.__subclasses__() for model in (child, *subclasses(child))]

    return list(
        (found | {model.__name__: model for model in subclasses(BaseModel) if model.__name__ in named}).values()
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    (root / "pyproject.toml").touch()
    generate.write(root)
    return root


def test_the_files_in_git_are_fresh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generate, "files", FILES)
    assert generate.stale(ROOT) == {}


def test_the_same_code_gives_the_same_text():
    assert generate.files() == FILES()


def test_what_was_written_is_fresh(checkout: Path, capsys: pytest.CaptureFixture[str]):
    assert generate.main(["--check", "--root", str(checkout)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("docs/events.md", lambda path: path.write_text("older"), "docs/events.md is stale; run `make schemas`"),
        ("docs/states.md", Path.unlink, "docs/states.md is missing"),
        ("schemas/generated/schedmate.job.queued.v1.json", Path.unlink, "schedmate.job.queued.v1.json is missing"),
        ("schemas/generated/asyncapi.yaml", lambda path: path.write_text("x: 1\n"), "asyncapi.yaml is stale"),
        ("schemas/generated/old.json", lambda path: path.write_text("{}"), "old.json is generated from nothing"),
    ],
)
def test_a_file_that_is_not_fresh_is_named_and_mended(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str, change, words: str
):
    monkeypatch.setattr(generate, "files", FILES)
    change(checkout / file)
    assert generate.main(["--check", "--root", str(checkout)]) == 1
    assert words in capsys.readouterr().err
    assert generate.main(["--root", str(checkout)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert generate.main(["--check", "--root", str(checkout)]) == 0


def test_outside_a_checkout_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert generate.main(["--root", str(tmp_path)]) == 2
    assert "no checkout" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ce_type", BY_TYPE)
def test_a_schema_is_valid_and_takes_the_fixture(ce_type: str):
    schema = event_schema(BY_TYPE[ce_type])
    Draft202012Validator.check_schema(schema)
    value = json.loads(path_of(ce_type).read_text("utf-8"))["value"]
    assert list(Draft202012Validator(schema).iter_errors(value)) == []


@pytest.mark.parametrize("ce_type", BY_TYPE)
def test_schema_and_model_take_and_refuse_the_same_fields(ce_type: str):
    model, schema = BY_TYPE[ce_type], event_schema(BY_TYPE[ce_type])
    validator = Draft202012Validator(schema)
    value = json.loads(path_of(ce_type).read_text("utf-8"))["value"]
    candidates = [{**value, "unheard_of": 1}]
    for field in model.model_fields:
        candidates.append({name: given for name, given in value.items() if name != field})
        if schema["properties"][field].get("contentEncoding") is None:  # which strings are base64 no schema can say
            candidates += [{**value, field: other} for other in ("17", 17, -17, 1.5, True, None, [], {}, "", [None])]
    for candidate in candidates:
        try:
            model.model_validate_json(json.dumps(candidate), strict=True)
        except ValidationError:
            taken = False
        else:
            taken = True
        assert validator.is_valid(candidate) is taken, candidate


def test_a_map_of_variables_takes_no_other_names():
    value = json.loads(path_of("schedmate.job.submitted.v1").read_text("utf-8"))["value"]
    validator = Draft202012Validator(event_schema(BY_TYPE["schedmate.job.submitted.v1"]))
    value["spec"]["env"] = {"A=B": "x"}
    assert not validator.is_valid(value)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_field_has_a_meaning(model: type[BaseModel]):
    for field in model.model_fields:
        words = meaning(model, field)
        assert words.endswith((".", "log.")), f"{model.__name__}.{field}: {words!r} is no sentence"


def test_no_meaning_is_left_over():
    used = {
        word(model, name) for model in models() for name, field in model.model_fields.items() if not field.description
    }
    assert set(MEANINGS) - used == set()


def test_the_catalogue_names_every_event_and_every_field():
    page = (ROOT / "docs" / "events.md").read_text("utf-8")
    for model in models():
        assert model.__name__ in page
        assert all(f"| `{field}` |" in page for field in model.model_fields)
    assert all(f"### {ce_type}\n" in page for ce_type in BY_TYPE)


def test_links_inside_the_catalogue_lead_somewhere():
    lines = (ROOT / "docs" / "events.md").read_text("utf-8").splitlines()
    headings = {line.lstrip("# ").replace(".", "").lower() for line in lines if line.startswith("#")}
    wanted = {part.split(")")[0] for line in lines for part in line.split("](#")[1:]}
    assert wanted <= headings
