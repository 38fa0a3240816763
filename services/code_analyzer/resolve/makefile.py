"""Follows a Makefile to the commands of a target: variables, prerequisites, recipes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import dirname
from typing import Final

from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.ran import Arg, Ran
from schedmate.services.code_analyzer.resolve.shell import Shell
from schedmate.services.code_analyzer.resolve.shell_words import Variable
from schedmate.services.code_analyzer.resolve.values import HOLE, Place

LINES_MAX: Final = 5000
DEPTH_MAX: Final = 12
INCLUDES_MAX: Final = 20
_CONDITIONS: Final = frozenset({"ifeq", "ifneq", "ifdef", "ifndef", "else", "endif"})
_SIDES: Final = re.compile(
    r"""\((?P<one>[^,]*),(?P<other>.*)\)|["'](?P<first>[^"']*)["']\s+["'](?P<second>[^"']*)["']"""
)
_ASSIGNMENT: Final = re.compile(r"(?:export\s+|override\s+)?([A-Za-z_][\w.-]*)\s*(\?=|:=|::=|\+=|=)\s*(.*)")
_RULE: Final = re.compile(r"([^:=\t#][^:=]*):(?!=)\s*([^=]*)$")
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()$]*)\)|\{([^{}$]*)\}|([A-Za-z@<^]))")


@dataclass(slots=True)
class _Rule:
    prerequisites: list[str] = field(default_factory=list)
    recipe: list[tuple[int, str]] = field(default_factory=list)


def commands(path: str, words: list[str], files: Files, environment: Mapping[str, Arg]) -> list[Ran]:
    """Return the commands that `make WORDS` would run with the Makefile at `path`."""
    text = files.text(path)
    if text is None:
        return []
    make = _Make(path, files, dict(environment))
    make.given = dict(w.split("=", 1) for w in words if "=" in w and not w.startswith("-"))
    make.read(text)
    targets = [w for w in words if "=" not in w and not w.startswith("-")]
    for target in targets or make.default_target():
        make.build(target, 0)
    return make.ran


@dataclass(slots=True)
class _Make:
    path: str
    files: Files
    environment: dict[str, Arg]
    given: dict[str, str] = field(default_factory=dict)
    variables: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    rules: dict[str, _Rule] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    built: set[str] = field(default_factory=set)
    ran: list[Ran] = field(default_factory=list)
    used: int = 0
    reading: str = ""
    included: int = 0

    def default_target(self) -> list[str]:
        """Return the target of a bare `make`, unless another one trains and it does not."""
        goal = self.variables.get(".DEFAULT_GOAL")
        if goal is not None:
            return [goal[0]]
        first = self.order[:1]
        if first in (["all"], ["help"], ["install"]) and not self.rules[first[0]].prerequisites:
            return [t for t in self.order if "train" in t][:1] or first
        return first

    def read(self, text: str) -> None:
        rule: _Rule | None = None
        taken: list[tuple[bool, bool]] = []
        for number, line in _lines(text):
            if line.startswith("\t"):
                if rule is not None and all(held for held, _ in taken):
                    rule.recipe.append((number, line.strip()))
                continue
            code = line.split("#", 1)[0].strip()
            word = code.split()[0] if code else ""
            if word in _CONDITIONS or (word.startswith(("ifeq(", "ifneq("))):
                self._condition(code, taken)
            elif not code or not all(held for held, _ in taken):
                continue
            elif word in ("include", "-include", "sinclude"):
                for name in self.expand(code[len(word) :]).split():
                    self._include(name)
            else:
                rule = self._statement(number, code, rule)

    def _include(self, name: str) -> None:
        found = self.files.find(name, dirname(self.path))
        text = self.files.text(found) if found is not None else None
        if found is None or text is None or self.included >= INCLUDES_MAX:
            return
        self.included += 1
        outer, self.reading = self.reading, found
        self.read(text)
        self.reading = outer

    def _condition(self, code: str, taken: list[tuple[bool, bool]]) -> None:
        """Follow `ifeq` and its like: for each, whether the present branch is taken, and whether a later one may be.

        Where nobody can know whether a condition holds, both branches are taken.
        """
        word, rest = _parted(code)
        if word == "endif":
            del taken[-1:]
            return
        may_be = True
        if word == "else":
            may_be = taken.pop()[1] if taken else True
            word, rest = _parted(rest)
        holds = self._holds(word, rest) if word else True
        taken.append((may_be and holds is not False, may_be and holds is not True))

    def _holds(self, word: str, rest: str) -> bool | None:
        if word in ("ifdef", "ifndef"):
            known = rest in self.variables or rest in self.given or rest in self.environment
            return known == (word == "ifdef")
        sides = _SIDES.fullmatch(rest)
        if sides is None:
            return None
        one, other = (
            self.expand(s.strip())
            for s in (sides["one"] or sides["first"] or "", sides["other"] or sides["second"] or "")
        )
        if HOLE in one + other or "$(" in one + other:
            return None
        return (one == other) == (word == "ifeq")

    def _statement(self, number: int, line: str, rule: _Rule | None) -> _Rule | None:
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is not None:
            self._assign(assignment[1], assignment[2], assignment[3], number)
            return rule
        found = _RULE.fullmatch(line)
        if found is None:
            return rule
        new = _Rule(self.expand(found[2]).split())
        for target in self.expand(found[1]).split():
            if not target.startswith("."):
                known = self.rules.setdefault(target, new)
                known.prerequisites += [p for p in new.prerequisites if p not in known.prerequisites]
                new = known
                self.order.append(target)
        return new

    def _assign(self, name: str, operator: str, value: str, number: int) -> None:
        if name in self.given or (operator == "?=" and (name in self.variables or name in self.environment)):
            return
        old = self.variables.get(name)
        if operator == "+=" and old is not None:
            value = f"{old[0]} {value}"
        self.variables[name] = (
            self.expand(value) if operator in (":=", "::=") else value,
            number,
            self.reading or self.path,
        )

    def expand(self, text: str, target: str = "", depth: int = 0) -> str:
        """Return a text with its references replaced; a function's result is a hole."""
        if depth > DEPTH_MAX:
            return HOLE

        def replaced(match: re.Match[str]) -> str:
            name = match[1] or match[2] or match[3]
            if name is None:
                return "$$"
            if name == "@":
                return target
            if name in self.given:
                return self.given[name]
            known = self.variables.get(name)
            if known is not None:
                self.used = known[1]
                return self.expand(known[0], target, depth + 1)
            outside = self.environment.get(name)
            return outside.text if outside is not None else HOLE if " " in name else ""

        for _ in range(3):
            text = _REFERENCE.sub(replaced, text)
            if "$(" not in text.replace("$$(", "") and "${" not in text.replace("$${", ""):
                break
        return text

    def build(self, target: str, depth: int) -> None:
        rule = self.rules.get(target)
        if rule is None or target in self.built or depth > DEPTH_MAX:
            return
        self.built.add(target)
        for prerequisite in rule.prerequisites:
            self.build(prerequisite, depth + 1)
        for number, line in rule.recipe:
            self._line(target, number, line)

    def _line(self, target: str, number: int, line: str) -> None:
        variables = {k: Variable(v.text, v.place, exported=True) for k, v in self.environment.items()}
        shell = Shell(self.files, variables)
        shell.line_offset = number - 1
        text = self.expand(line.lstrip("@-+ "), target).replace("$$", "$")
        shell.run_text(text, self.path)
        for ran in shell.ran:
            ran.words = [Arg(w.text, self._origin(w, line)) for w in ran.words]
            self.ran.append(ran)

    def _origin(self, word: Arg, line: str) -> Place:
        """Return the line of the variable that holds a word, where one referred to on the line does."""
        for match in _REFERENCE.finditer(line):
            name = match[1] or match[2] or ""
            known = self.variables.get(name)
            if known is not None and word.text and word.text.split("=")[-1] == self.expand(known[0]):
                return Place(known[2], known[1])
        return word.place


def _parted(code: str) -> tuple[str, str]:
    """Return the first word of a line, with or without a space before its parenthesis, and the rest."""
    word = re.match(r"[a-z]+", code)
    first = word[0] if word is not None else ""
    return first, code[len(first) :].strip()


def _lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, line in enumerate(text.splitlines()[:LINES_MAX], start=1):
        start = start if pending else number
        joined = pending + (line if not pending else line.strip())
        if joined.endswith("\\"):
            pending = joined[:-1].rstrip() + " "
        else:
            lines.append((start, joined))
            pending = ""
    return [*lines, (start, pending)] if pending else lines
