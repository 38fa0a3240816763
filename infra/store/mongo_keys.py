"""Keys of JSON objects as MongoDB takes them: dots, dollars and NUL bytes are written as `%` and their number."""

from __future__ import annotations

import re
from typing import Any, Final

from schedmate.infra.store.port import Json

_MARKS: Final = re.compile(r"[.$%\0]")
_ESCAPE: Final = {".": "%2E", "$": "%24", "%": "%25", "\0": "%00"}
_ESCAPED: Final = re.compile(r"%(2E|24|25|00)")
_EMPTY: Final = "%"  # no key begins so otherwise: a percent sign is written as %25


def has_marks(value: Json) -> bool:
    """Whether any key in a plain JSON value must be written differently."""
    if isinstance(value, dict):
        return any(not key or _MARKS.search(key) or has_marks(item) for key, item in value.items())
    return isinstance(value, list) and any(has_marks(item) for item in value)


def escaped(value: Json) -> Any:
    """Return the value with its keys as they are written."""
    if isinstance(value, dict):
        return {_MARKS.sub(_mark, key) or _EMPTY: escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list) else value


def unescaped(value: Any) -> Json:
    """Return the value with its keys as they were."""
    if isinstance(value, dict):
        return {_key(key): unescaped(item) for key, item in value.items()}
    return [unescaped(item) for item in value] if isinstance(value, list) else value


def _mark(match: re.Match[str]) -> str:
    return _ESCAPE[match[0]]


def _key(key: str) -> str:
    return "" if key == _EMPTY else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), key)
