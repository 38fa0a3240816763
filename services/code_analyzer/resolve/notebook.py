"""A notebook's code cells as one Python text, with the line of the notebook's file that each of its lines stands on."""

from __future__ import annotations

import json
import re
from typing import Any, Final

CELLS_MAX: Final = 2000
_MAGIC: Final = re.compile(r"^\s*[%!?]|^\s*\S+\?\s*$")


def cells_of(text: str) -> list[str]:
    """Return the code cells of a notebook.

    Raises:
        ValueError: it is no notebook.
    """
    book: Any = json.loads(text)
    cells = book.get("cells") if isinstance(book, dict) else None
    if cells is None and isinstance(book, dict) and isinstance(book.get("worksheets"), list):
        cells = [c for sheet in book["worksheets"] if isinstance(sheet, dict) for c in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise ValueError("it has no cells")  # noqa: TRY004 - what the caller is told
    out: list[str] = []
    for cell in cells[:CELLS_MAX]:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", cell.get("input", ""))
            out.append("".join(str(s) for s in source) if isinstance(source, list) else str(source))
    return out


def python_of(text: str) -> tuple[str, list[int]]:
    """Return the code cells as one text, magics left out, and for each of its lines the line of the notebook's file.

    Raises:
        ValueError: it is no notebook.
    """
    lines: list[str] = []
    numbers: list[int] = []
    at, number = 0, 1
    for body in cells_of(text):
        for source in body.split("\n"):
            found = text.find(json.dumps(source, ensure_ascii=False)[1:-1], at) if source.strip() else -1
            if found < 0 and not source.isascii():
                found = text.find(json.dumps(source)[1:-1], at)
            if found >= 0:
                number += text.count("\n", at, found)
                at = found
            lines.append("" if _MAGIC.match(source) else source)
            numbers.append(number)
    return "\n".join(lines) + "\n", numbers
