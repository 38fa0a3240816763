"""Rows of a table, read with errors that name the file, the line and the column."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path

from schedmate.simulator.trace import TraceError

ROW_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `line` counts from 1 with the header."""

    file: str
    line: int
    values: dict[str, str]

    def wrong(self, column: str, what: str) -> TraceError:
        """Return the error of a value that cannot be taken."""
        return TraceError(f"{self.file}, line {self.line}: {column} is {self.values.get(column)!r}, {what}")

    def text(self, column: str) -> str:
        """Return a value that must not be empty."""
        value = self.values.get(column, "").strip()
        if not value:
            raise self.wrong(column, "it must not be empty")
        return value

    def number(self, column: str, least: float = 0.0) -> float:
        """Return a finite number, an int where it is written as one, that is at least so large."""
        text = self.values.get(column, "")
        try:
            value = int(text)
        except ValueError:
            try:
                value = float(text)  # type: ignore[assignment]
            except ValueError as error:
                raise self.wrong(column, "not a number") from error
        if not isfinite(value) or value < least:
            raise self.wrong(column, f"it must be a number from {least:g} on")
        return value

    def count(self, column: str, least: int = 0) -> int:
        """Return a whole number."""
        value = self.number(column, least)
        if value != int(value):
            raise self.wrong(column, "not a whole number")
        return int(value)

    def moment(self, column: str) -> datetime:
        """Return a date with time; a zone, where one is written, is dropped: traces tell local time."""
        try:
            return datetime.fromisoformat(self.text(column).replace(" PST", "").replace(" PDT", "")).replace(
                tzinfo=None
            )
        except ValueError as error:
            raise self.wrong(column, "not a date and time") from error


def header_of(path: Path) -> list[str]:
    """Return the first row of a table, whatever separates it (a comma, or a bar as Slurm writes it)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(ROW_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    if not first.strip():
        raise TraceError(f"{path.name} is empty")
    return [name.strip() for name in next(csv.reader([first], delimiter=_separator(first)))]


def rows_of(path: Path, names: list[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a table with a header (or without one, when its `names` are given)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(ROW_BYTES_MAX)
            file.seek(0)
            reader = csv.reader(file, delimiter=_separator(first), strict=True)
            header = names if names is not None else [name.strip() for name in next(reader)]
            closed = len(header) > 1 and not header[-1]  # Slurm's --parsable ends every line with a bar
            if closed:
                del header[-1]
            for values in reader:
                if not values:
                    continue
                if closed and len(values) == len(header) + 1 and not values[-1]:
                    del values[-1]
                if len(values) != len(header):
                    raise TraceError(
                        f"{path.name}, line {reader.line_num}: {len(values)} values where the header has {len(header)} names"
                    )
                yield Row(path.name, reader.line_num, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise TraceError(f"{path.name}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error


def _separator(first: str) -> str:
    return "|" if first.count("|") > first.count(",") else ","
