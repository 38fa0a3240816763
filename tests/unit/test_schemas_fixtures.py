"""Every version of every event has one record that is kept for ever."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from schedmate.schemas.codec import decode, encode
from schedmate.schemas.events import BY_TYPE
from tests import event_fixtures
from tests.event_fixtures import FOLDER, add, path_of, read, sums

FILES = sorted(FOLDER.glob("*.json"))


def test_every_event_has_a_fixture_and_every_fixture_an_event():
    assert {file.stem for file in FILES} == set(BY_TYPE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_fixture_decodes_to_its_model_and_encodes_to_the_same_record(file: Path):
    record = read(file)
    envelope = decode(record)
    assert type(envelope.event) is BY_TYPE[file.stem]
    assert encode(envelope) == record


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_fixture_is_never_edited(file: Path):
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sums()[file.name], (
        f"{file.name} was changed: a version of an event is never edited, add the next one"
    )


def test_every_sum_has_its_fixture():
    assert set(sums()) == {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_fixture_shows_every_field_that_its_model_has(file: Path):
    value = json.loads(file.read_text("utf-8"))["value"]
    fields = BY_TYPE[file.stem].model_fields
    joined_later = {name for name, field in fields.items() if field.exclude_if is not None}  # docs/adr/0017
    assert set(value) == set(fields) - joined_later


def test_a_field_that_joined_a_version_later_is_optional_and_left_out_at_its_default():
    joined = [(m, n, f) for m in BY_TYPE.values() for n, f in m.model_fields.items() if f.exclude_if is not None]
    assert {(m.__name__, name) for m, name, _ in joined} == {
        ("RunTimeEstimated", "worth_probing"),
        ("RunTimeEstimated", "sharing_class"),
    }
    for _, _, field in joined:
        assert not field.is_required()
        assert field.exclude_if(field.get_default())


def test_a_new_fixture_is_written_with_its_sum_and_never_over_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    record = read(path_of("schedmate.node.lost.v1"))
    monkeypatch.setattr(event_fixtures, "FOLDER", tmp_path)
    monkeypatch.setattr(event_fixtures, "SUMS", tmp_path / "SHA256SUMS")
    written = add(record)
    assert read(written) == record
    assert sums() == {written.name: hashlib.sha256(written.read_bytes()).hexdigest()}
    with pytest.raises(FileExistsError):
        add(record)
