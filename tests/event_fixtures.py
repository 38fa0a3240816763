"""The fixtures of events: one whole record a version, kept for ever (tests/fixtures/events).

To add one for a new version:

    python -c 'from tests.event_fixtures import *; add(encode(Envelope(...)))'

writes the file and its line in SHA256SUMS. A file that is there is never written again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from schedmate.schemas.codec import encode
from schedmate.schemas.wire import Envelope, Record

__all__ = ["FOLDER", "SUMS", "Envelope", "Record", "add", "encode", "path_of", "read", "sums"]

FOLDER = Path(__file__).parent / "fixtures" / "events"
SUMS = FOLDER / "SHA256SUMS"


def path_of(ce_type: str) -> Path:
    return FOLDER / f"{ce_type}.json"


def read(path: Path) -> Record:
    """Return the record: the value's bytes are the JSON without spaces, in the order of the file."""
    stored = json.loads(path.read_text("utf-8"))
    value = json.dumps(stored["value"], separators=(",", ":"), ensure_ascii=False).encode()
    headers = tuple((name, text.encode()) for name, text in stored["headers"])
    return Record(stored["topic"], stored["key"].encode(), value, headers)


def sums() -> dict[str, str]:
    """Return each fixture's sha256 by its file name."""
    lines = SUMS.read_text("utf-8").splitlines() if SUMS.exists() else []
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def add(record: Record) -> Path:
    """Write the record as the fixture of its type. Raises FileExistsError when there is one: it is never edited."""
    ce_type = record.header("ce_type")
    assert ce_type is not None, "not an event"
    stored = {
        "topic": record.topic,
        "key": record.key.decode(),
        "headers": [[name, value.decode()] for name, value in record.headers],
        "value": json.loads(record.value),
    }
    text = json.dumps(stored, indent=2, ensure_ascii=False) + "\n"
    path = path_of(ce_type.decode())
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    with SUMS.open("a", encoding="utf-8") as file:
        file.write(f"{hashlib.sha256(text.encode()).hexdigest()}  {path.name}\n")
    assert read(path) == record, "the fixture does not give the record back: its JSON is not canonical"
    return path
