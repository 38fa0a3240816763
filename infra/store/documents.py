"""What a document may be, decided once for all adapters: JSON types, depth, size, ids, indexed values, bounds.

The embedded store refuses what MongoDB would refuse, so that moving from one to the other brings no surprise. Sizes are
therefore counted as BSON, whatever an adapter writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from schedmate.infra.store.port import (
    DocumentTooLargeError,
    InvalidDocumentError,
    Json,
    UnknownCollectionError,
)
from schedmate.schemas.topology import Collection, Index

DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024 - 16 * 1024
"""Largest body, as BSON: MongoDB's 16 MiB less the envelope around it (id, version, write ids)."""
DEPTH_MAX: Final = 90
"""Deepest nesting of a body; MongoDB takes 100 levels with the envelope."""
ID_BYTES_MAX: Final = 1024
LIMIT_MAX: Final = 10_000
"""Most documents of one page."""

_T = TypeVar("_T")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_NAME: Final = re.compile(r"(?=.{1,60}\Z)[a-z][a-z0-9]*(_[a-z0-9]+)*")


def checked_id(doc_id: str) -> str:
    """Return the id if it may be one: 1 to 1024 bytes of UTF-8."""
    if not isinstance(doc_id, str):
        raise InvalidDocumentError(f"a document's id is a string, not {type(doc_id).__name__}")
    if not 0 < _utf8_bytes(doc_id, "id") <= ID_BYTES_MAX:
        raise InvalidDocumentError(f"a document's id has 1 to {ID_BYTES_MAX} bytes")
    return doc_id


def checked_body(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return a copy of a body in plain JSON types (tuples become lists).

    Raises:
        InvalidDocumentError: not JSON, an integer beyond 64 bits, nested too deeply, text that is no UTF-8.
        DocumentTooLargeError: more than DOCUMENT_BYTES_MAX.
    """
    if not isinstance(body, Mapping):
        raise InvalidDocumentError(f"a document's body is an object, not {type(body).__name__}")
    copy, size = _object(body, (None, "body"), 1)
    if size > DOCUMENT_BYTES_MAX:
        raise DocumentTooLargeError(f"the document has {size} bytes (as BSON); a store takes {DOCUMENT_BYTES_MAX}")
    return copy


def index_values(indexes: Iterable[Index], body: Mapping[str, Json]) -> dict[str, str | float | None]:
    """Return the value of each indexed field of a checked body; None where the field is missing or null."""
    values: dict[str, str | float | None] = {}
    for index in indexes:
        value = body.get(index.field)
        if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
            raise InvalidDocumentError(
                f"field {index.field!r} is indexed: it takes a string, a number or null, not {type(value).__name__}"
            )
        if index.unique and value is None and index.field in body:
            raise InvalidDocumentError(f"field {index.field!r} is unique: leave it out instead of setting it to null")
        values[index.field] = value
    return values


def checked_collection(collection: Collection) -> Collection:
    """Return a collection if its names can be names in every adapter."""
    for name in (collection.name, *(index.field for index in collection.indexes)):
        if not _NAME.fullmatch(name):
            raise InvalidDocumentError(
                f"{name!r} cannot name a collection or an indexed field: small letters, digits and single _, at most 60"
            )
    return collection


def known(collections: Mapping[str, _T], collection: str) -> _T:
    """Return what an adapter knows of a collection, or say that it was never set up."""
    try:
        return collections[collection]
    except KeyError:
        raise UnknownCollectionError(
            f"collection {collection!r} is unknown; is it in topology.toml, and has `schedmate setup` run?"
        ) from None


def checked_page(low: str, high: str, limit: int) -> None:
    """Refuse bounds and limits that a scan cannot have."""
    for bound in (low, high):
        if not isinstance(bound, str):
            raise InvalidDocumentError(f"bounds of ids are strings, not {type(bound).__name__}")
        _utf8_bytes(bound, "bound")
    _checked_limit(limit)


def checked_find(indexes: Mapping[str, Index], collection: str, field: str, low: Json, high: Json, limit: int) -> None:
    """Refuse fields, bounds and limits that a find cannot have."""
    if field not in indexes:
        raise UnknownCollectionError(f"field {field!r} of collection {collection!r} is not indexed (see topology.toml)")
    for bound in (low, high):
        number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if not number and not isinstance(bound, str):
            raise InvalidDocumentError(f"bounds of {field!r} are strings or numbers, not {type(bound).__name__}")
        if isinstance(bound, float) and math.isnan(bound):
            raise InvalidDocumentError(f"a bound of {field!r} is NaN")
        if isinstance(bound, int) and not -_INT64_MAX - 1 <= bound <= _INT64_MAX:
            raise InvalidDocumentError(f"a bound of {field!r} is an integer beyond 64 bits; an infinite float will do")
        if isinstance(bound, str):
            _utf8_bytes(bound, "bound")
    if isinstance(low, str) != isinstance(high, str):
        raise InvalidDocumentError(f"bounds of {field!r} are both strings or both numbers")
    _checked_limit(limit)


def _checked_limit(limit: int) -> None:
    if not 0 < limit <= LIMIT_MAX:
        raise InvalidDocumentError(f"a page has 1 to {LIMIT_MAX} documents, not {limit}")


def _utf8_bytes(text: str, where: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidDocumentError(f"{where} holds half a surrogate pair, which is no text") from None


_Place = tuple[Any, str | int]
"""Where a value stands: its parent's place, and its key or position. Only an error turns it into text."""


def _object(value: Mapping[Any, Json], place: _Place, depth: int) -> tuple[dict[str, Json], int]:
    """Return a plain copy of an object and its size as BSON."""
    if depth > DEPTH_MAX:
        raise InvalidDocumentError(f"the body is nested deeper than {DEPTH_MAX} levels")
    copy: dict[str, Json] = {}
    size = 5
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidDocumentError(f"a key in {_told(place)} is {type(key).__name__}, not a string")
        plain, item_size = _value(item, place, key, depth)
        copy[key if type(key) is str else str(key)] = plain
        size += 2 + item_size + (len(key) if key.isascii() else _utf8_bytes(key, "a key"))
        if not key.isidentifier():
            size += 2 * sum(key.count(mark) for mark in ".$%\0")  # written as three characters
    return copy, size


def _array(value: Iterable[Json], place: _Place, depth: int) -> tuple[list[Json], int]:
    if depth > DEPTH_MAX:
        raise InvalidDocumentError(f"the body is nested deeper than {DEPTH_MAX} levels")
    copy: list[Json] = []
    size = 5
    for position, item in enumerate(value):
        plain, item_size = _value(item, place, position, depth)
        copy.append(plain)
        size += 2 + len(str(position)) + item_size
    return copy, size


def _value(value: Json, parent: _Place, key: str | int, depth: int) -> tuple[Json, int]:
    """Return a plain copy of a value and its size as BSON."""
    kind = type(value)
    if kind is str and value.isascii():  # the commonest first: every write passes here, on the event loop
        return value, 5 + len(value)
    if kind is dict:
        return _object(value, (parent, key), depth + 1)
    if kind is list:
        return _array(value, (parent, key), depth + 1)
    if kind is int and -_INT32_MAX <= value <= _INT32_MAX:
        return value, 4
    if value is None or kind is bool:
        return value, 0 if value is None else 1
    return _other(value, (parent, key), depth)


def _other(value: Json, place: _Place, depth: int) -> tuple[Json, int]:
    """Numbers, text beyond ASCII, and what is a subclass of a JSON type."""
    if isinstance(value, int):
        if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
            raise InvalidDocumentError(f"{_told(place)} is an integer beyond 64 bits; write it as a string")
        return int(value), 4 if -_INT32_MAX - 1 <= value <= _INT32_MAX else 8
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidDocumentError(f"{_told(place)} is {value}, which JSON does not have; use null")
        return float(value), 8
    if isinstance(value, str):
        return str.__str__(value), 5 + _utf8_bytes(value, "a text")
    if isinstance(value, Mapping):
        return _object(value, place, depth + 1)
    if isinstance(value, (list, tuple)):
        return _array(value, place, depth + 1)
    raise InvalidDocumentError(f"{_told(place)} is {type(value).__name__}, which JSON does not have")


def _told(place: _Place | None) -> str:
    """Return a place as text: `body.jobs.0.name`."""
    parts: list[str] = []
    while place is not None:
        place, key = place
        parts.append(str(key))
    return ".".join(reversed(parts))
