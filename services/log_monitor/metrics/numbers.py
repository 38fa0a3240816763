"""Reads the tokens of a line: numbers, clocks, stamps. What is no number is None; NaN is kept, for it is news."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

_DAYS: Final = re.compile(r"(\d{1,3}) days?,? ")
_WORDED: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ([dhms])[a-z]{2,6}")
_UNITS: Final = re.compile(r"(\d{1,3})([hms])")
_DECIMAL_COMMA: Final = re.compile(r"[-+]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE][-+]?\d{1,3})?")
_PARTS: Final = re.compile(r"\d+")
_MONTH: Final = {
    m: i for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}
DAY_S: Final = 86_400.0


def number(text: str) -> float | None:
    """Return a number, NaN for `nan` and `inf`, None for nonsense or what is too large."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = float(text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text.replace(",", ""))
        except ValueError:
            return None
    if math.isfinite(value):
        return value if abs(value) < 1e18 else None  # noqa: PLR2004 - no counter of ours
    return math.nan


def clock(text: str) -> float | None:
    """Return the seconds of `MM:SS`, `H:MM:SS`, `1 day, 2:03:04`, `2h 3m`, or None."""
    if (" " in text and text[-1] in "sy" and ":" not in text) or text.endswith(("hour", "minute", "second")):
        worded = _WORDED.findall(text)
        if worded:
            return sum(float(amount) * {"d": DAY_S, "h": 3600, "m": 60, "s": 1}[unit] for amount, unit in worded)
    seconds = 0.0
    days = _DAYS.match(text)
    if days is not None:
        seconds, text = int(days.group(1)) * DAY_S, text[days.end() :]
    if ":" not in text:
        for amount, unit in _UNITS.findall(text):
            seconds += int(amount) * {"h": 3600, "m": 60, "s": 1}[unit]
        return seconds
    whole = 0.0
    for part in text.split(":"):
        try:
            whole = whole * 60 + float(part)
        except ValueError:
            return None
    return seconds + whole


def stamp(text: str) -> float | None:
    """Return the time of a stamp in seconds since some fixed moment, or None. Only differences mean anything."""
    found = [int(part) for part in _PARTS.findall(text[:32])]
    fraction = 0.0
    try:
        if text[0] in "IWEF":
            month, day = int(text[1:3]), int(text[3:5])
            year, (hour, minute, second), rest = 2001, found[1:4], found[4:5]
        elif text[:3] in _MONTH:
            month, day = _MONTH[text[:3]], found[0]
            (hour, minute, second), rest = found[1:4], []
            year = found[4] if len(found) > 4 else 2001  # noqa: PLR2004 - with a year
        elif len(_PARTS.findall(text[:5])) and text[:4].isdigit():
            year, month, day, hour, minute, second, *rest = found
        elif len(found) >= 6 and text[2] in "./" and text[5] in "./":  # noqa: PLR2004 - day, month, year
            first, middle, year, hour, minute, second, *rest = found
            day, month = (first, middle) if middle <= 12 else (middle, first)  # noqa: PLR2004 - months
            year += 2000 if year < 100 else 0  # noqa: PLR2004 - two digits
        else:
            month, day, hour, minute, second, *rest = found
            year = 2001
        if rest:
            digits = _PARTS.findall(text)[-1]
            fraction = float(f"0.{digits}")
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp() + fraction
    except (ValueError, IndexError):
        return None
