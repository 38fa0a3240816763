"""What `$(…)` gives, for the few commands whose output follows from what is known."""

# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

from dataclasses import dataclass
from posixpath import basename, dirname
from typing import TYPE_CHECKING

from schedmate.services.code_analyzer.resolve import shell_syntax as syntax
from schedmate.services.code_analyzer.resolve.ran import DEPTH_MAX, Arg, printed
from schedmate.services.code_analyzer.resolve.values import HOLE, Place

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.shell import Shell


@dataclass(slots=True)
class Substitution:
    """Answers `$(…)` for the few commands whose output follows from what is known."""

    shell: Shell

    def answer(self, script: str) -> str | None:
        """Return what a command gives, None where that cannot be told."""
        nodes, why = syntax.parse(script)
        if why is not None or len(nodes) != 1:
            return None
        node = nodes[0]
        if isinstance(node, syntax.Chain) and node.joins == ["&&"] and _is_here(node):
            return dirname(self.shell.file) or "."
        if isinstance(node, syntax.Chain) and all(j in ("|", "||") for j in node.joins):
            return self._pipe(node)
        return self._simple(node, None) if isinstance(node, syntax.Simple) else None

    def _pipe(self, node: syntax.Chain) -> str | None:
        first, *rest = node.commands
        out = self._simple(first, None) if isinstance(first, syntax.Simple) else None
        for join_, command in zip(node.joins, rest, strict=True):
            if out is None and join_ == "|":
                return None
            if join_ == "||" and out is not None:
                return out
            out = self._simple(command, out) if isinstance(command, syntax.Simple) else None
        return out

    def _simple(self, node: syntax.Simple, given: str | None) -> str | None:
        if not node.words and len(node.redirects) == 1 and node.redirects[0].operator == "<":
            return self._content(self.shell._words().text(node.redirects[0].target.raw))  # noqa: SLF001 - one thing in two classes
        texts = [t for w in node.words for t in self.shell._words().expand(w.raw).texts]  # noqa: SLF001 - see above
        if not texts or any(HOLE in t for t in texts):
            return None
        here = next((r.body for r in node.redirects if r.body is not None), None)
        return self._named(texts[0], texts[1:], given if given is not None else here)

    def _named(self, name: str, words: list[str], given: str | None) -> str | None:
        if name == "printf":
            return printed(words)
        if name == "echo":
            return " ".join(w for w in words if w not in ("-n", "-e"))
        if name in ("dirname", "basename") and words:
            return (
                (dirname(words[0]) or ".")
                if name == "dirname"
                else basename(words[0]).removesuffix("".join(words[1:2]))
            )
        if name == "expr":
            number = self.shell._words().number(" ".join(words))  # noqa: SLF001 - see above
            return None if number is None else str(number)
        if name in ("realpath", "readlink") and words:
            return words[-1]
        if name == "pwd":
            return self.shell.folder or "."
        if name == "cat" and len(words) == 1:
            return self._content(words[0])
        return self._on_text(name, words, given)

    def _on_text(self, name: str, words: list[str], given: str | None) -> str | None:
        if name == "seq" and all(w.isdigit() for w in words) and words:
            start, stop = (1, int(words[0])) if len(words) == 1 else (int(words[0]), int(words[-1]))
            return "\n".join(str(n) for n in range(start, min(stop, start + 1000) + 1))
        if given is None:
            return self._call(name, words)
        if name == "wc":
            return str(len(given.split()) if "-w" in words else given.count("\n") + (not given.endswith("\n")))
        if name == "tr" and len(words) == 2:  # noqa: PLR2004 - `tr SET1 SET2`
            if words[0] == "-d":
                return given.translate({ord(c): None for c in words[1]})
            if words[0] == "-cd":
                return "".join(c for c in given if c in words[1])
            return given.replace(words[0], words[1]) if len(words[0]) == 1 else None
        if name == "bc":
            number = self.shell._words().number(given)  # noqa: SLF001 - see above
            return None if number is None else str(number)
        if name == "head":
            return given.split("\n", 1)[0]
        return None

    def _call(self, name: str, words: list[str]) -> str | None:
        """Answer for a function of the script that echoes its result."""
        body = self.shell.functions.get(name)
        if body is None or self.shell.depth >= DEPTH_MAX:
            return None
        outer, self.shell.captured = self.shell.captured, []
        place = Place(self.shell.file)
        self.shell._call(body, [Arg(name, place), *(Arg(w, place) for w in words)], {})  # noqa: SLF001 - see above
        captured, self.shell.captured = self.shell.captured, outer
        return "\n".join(captured)

    def _content(self, path: str) -> str | None:
        found = self.shell.files.find(path, self.shell.folder)
        return self.shell.files.text(found) if found is not None else None


def _is_here(node: syntax.Chain) -> bool:
    """Tell whether this is `cd "$(dirname …)" && pwd`, by which a script finds its own folder."""
    first, second = node.commands[0], node.commands[-1]
    if not isinstance(first, syntax.Simple) or not isinstance(second, syntax.Simple):
        return False
    words = " ".join(w.raw for w in first.words)
    return words.startswith("cd") and "dirname" in words and [w.raw for w in second.words][:1] == ["pwd"]
