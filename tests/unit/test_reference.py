"""The pages of docs/ that follow from the code are what the code gives; the rights follow from who writes and reads."""

from __future__ import annotations

import importlib
import re
import shutil
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest

from schedmate.infra.settings import SERVICES
from schedmate.reference import PageError, main, page, settings_classes, stale
from schedmate.rights import (
    ASSIGNMENTS,
    COLLECTION_RIGHTS,
    DEAD_LETTERS,
    groups_of,
    topics_read_by,
    topics_resent_to_by,
    topics_written_by,
)
from schedmate.schemas.events import READERS, WRITERS
from schedmate.schemas.topology import topology

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_pages_are_fresh():
    assert list(stale(DOCS)) == [], "run `python -m schedmate.reference`"


def test_a_stale_page_is_named_and_written_anew(tmp_path, capsys):
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    metrics = docs / "metrics.md"
    fresh = metrics.read_text()
    metrics.write_text(fresh.replace("schedmate_gpus", "schedmate_cpus"))
    assert main(["--check", "--docs", str(docs)]) == 1
    assert "metrics.md is stale" in capsys.readouterr().err
    assert main(["--docs", str(docs)]) == 0
    assert metrics.read_text() == fresh
    assert main(["--check", "--docs", str(docs)]) == 0


def test_a_page_without_the_marks_of_its_table_is_an_error(tmp_path, capsys):
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    (docs / "metrics.md").write_text("# Metrics\n")
    assert main(["--check", "--docs", str(docs)]) == 1
    assert "one pair of marks for 'metrics'" in capsys.readouterr().err
    with pytest.raises(PageError):
        page("nothing", {"metrics": "table"})


def test_every_setting_of_every_service_is_described_and_names_its_service():
    classes = settings_classes()
    assert [cls.service_name() for cls in classes] == [*SERVICES, "up"]
    for cls in classes:
        for name, field in cls.model_fields.items():
            assert field.description, f"{cls.__name__}.{name} has no description"


def test_services_that_share_a_setting_mean_the_same_by_it():
    seen: dict[str, tuple[str, str]] = {}
    for cls in settings_classes():
        for name, field in cls.model_fields.items():
            words = re.sub(r"<class '(.*)'>", r"\1", str(field.annotation))
            meaning = words.removesuffix(" | None")  # one service may need it, another not
            first = seen.setdefault(name, (cls.__name__, meaning))
            assert first[1] == meaning, (
                f"{name}: {first[0]} and {cls.__name__} give SCHEDMATE_{name.upper()} different types"
            )


def test_each_service_has_a_health_port_of_its_own():
    ports = [cls.model_fields["health_port"].default for cls in settings_classes() if cls.service_name() in SERVICES]
    assert len(set(ports)) == len(ports)


# --- rights -----------------------------------------------------------------------------------------------------------


def test_each_topic_is_written_by_one_service_alone():
    for topic, writer in WRITERS.items():
        writers = {service for service in SERVICES if topic in topics_written_by(service)}
        if topic == DEAD_LETTERS:
            continue
        assert writers == ({writer} & set(SERVICES)), topic


def test_only_the_dispatcher_may_write_assignments_resends_included():
    may = {s for s in SERVICES if ASSIGNMENTS in (*topics_written_by(s), *topics_resent_to_by(s))}
    assert may == {"dispatcher"}


def test_a_service_reads_what_the_catalogue_says():
    for topic, readers in READERS.items():
        assert {service for service in SERVICES if topic in topics_read_by(service)} == set(readers)


def test_every_topic_and_every_collection_has_its_rights():
    topics = {topic for service in SERVICES for topic in (*topics_read_by(service), *topics_written_by(service))}
    assert topics == set(topology().topics)
    assert COLLECTION_RIGHTS.keys() == topology().collections.keys()
    for collection, rights in COLLECTION_RIGHTS.items():
        assert len(rights.writers) == 1, collection
        assert not set(rights.writers) & set(rights.readers), collection


def test_the_groups_are_those_that_the_services_join():
    seen = 0
    for service in SERVICES:
        name = f"schedmate.services.{service.replace('-', '_')}.wiring"
        if find_spec(name) is None:
            continue
        joined = [value for key, value in vars(importlib.import_module(name)).items() if key.endswith("GROUP")]
        seen += len(joined)
        for group in joined:
            allowed = groups_of(service)
            assert any(fnmatch(group, one) or fnmatch(f"{group}-0", one) for one in allowed), f"{service} joins {group}"
    assert seen, "the search finds no group at all: it looks in the wrong place"


def test_the_worker_has_no_right_on_the_store():
    assert not any("worker" in (*rights.writers, *rights.readers) for rights in COLLECTION_RIGHTS.values())
