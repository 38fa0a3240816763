"""A notebook's code cells as one Python text, whose lines are those of the notebook's file as far as they can be found."""

from __future__ import annotations

import json
import re
from typing import Any, Final

CELLS_MAX: Final = 2000
_MAGIC: Final = re.compile(r"^\s*[%!?]|^\s*\S+\?\s*$")


def cells_of(text: str) -> list[tuple[int, str]]:
    """Return the code cells of a notebook: the line of the file on which each begins, and its text.

    Raises:
        ValueError: it is no notebook.
    """
    book: Any = json.loads(text)
    cells = book.get("cells") if isinstance(book, dict) else None
    if cells is None and isinstance(book, dict) and isinstance(book.get("worksheets"), list):
        cells = [c for sheet in book["worksheets"] if isinstance(sheet, dict) for c in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise ValueError("it has no cells")  # noqa: TRY004 - what the caller is told
    out: list[tuple[int, str]] = []
    at = 0
    for cell in cells[:CELLS_MAX]:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        body = "".join(str(s) for s in source) if isinstance(source, list) else str(source)
        first = json.dumps(body.split("\n", 1)[0], ensure_ascii=False)[1:-1]
        found = text.find(first, at) if first else -1
        at = found if found >= 0 else at
        out.append((text.count("\n", 0, at) + 1, body))
    return out


def python_of(text: str) -> str:
    """Return the code cells as one text, magics left out; each cell on the line it has in the file, or as soon after as fits.

    Raises:
        ValueError: it is no notebook.
    """
    lines: list[str] = []
    for line, body in cells_of(text):
        lines += [""] * max(0, line - 1 - len(lines))
        for source in body.split("\n"):
            lines.append("" if _MAGIC.match(source) else source)
    return "\n".join(lines) + "\n"
