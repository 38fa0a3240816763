"""The shape of a line: its text with the numbers taken out, and for each number the words and units around it.

A shape is a function of the line's text alone, and two lines that differ in digits only have the same one. So it is worked out once and
found again by the line with its digits masked; what remains to do for a line of a known shape is to read the numbers that matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from schedmate.services.log_monitor.metrics.lexicon import lexicon, words_of

TEXT_MAX: Final = 1200
SLOTS_MAX: Final = 48

_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_TOKEN: Final = re.compile(
    r"(?P<stamp>(?<!\d)\d{4}[-/.]\d\d[-/.]\d\d[ T,_]\s?\d\d:\d\d:\d\d(?:[.,:]\d{1,6})?"
    r"|(?<![\d.])\d{1,2}[./]\d{1,2}[./](?:\d{4}|\d\d)[ ,T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
    r"|(?<!\d)\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
    r"|(?<![A-Za-z])[IWEF]\d{4} \d\d:\d\d:\d\d(?:\.\d{1,6})?"
    rf"|(?:{_MONTHS})\s{{1,2}}\d{{1,2}} \d\d:\d\d:\d\d(?: \d{{4}})?)"
    r"|(?P<clock>\d{1,3} (?:days?|hours?|minutes?)(?:,? (?:and )?\d{1,3}(?:\.\d{1,3})? (?:hours?|minutes?|seconds?)){1,3}|(?:\d{1,3} days?,? )?(?<![\d.:])\d{1,4}:\d\d(?::\d\d)?(?:\.\d{1,6})?(?![\d:])|\d{1,3}h ?\d{1,2}m(?: ?\d{1,2}s)?|(?<!\d)\d{1,3}m ?\d{1,2}s)"
    # a decimal comma: never in a list (`0,1,2`), nor where it may set off thousands (`1,234`)
    r"|(?P<num>(?<![A-Za-z_\d.,\[(=])[-+]?(?:0,\d{1,12}|\d{1,9},(?:\d{1,2}|\d{4,9}))(?![\d,.])(?:[eE][-+]?\d{1,3})?(?=[\s;|%)\]/\u00a0]|$)"
    r"|(?<![A-Za-z_\d.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d{1,3})?(?!\.\d)"
    r"|(?<![A-Za-z_\d])[-+]?(?:nan|NaN|inf)(?![A-Za-z_]))"
)
_GLYPHS: Final = re.compile(
    "[\u2500-\u25ff\u2800-\u28ff#=>*|\\[\\]._\\s-]{0,10}[\u2500-\u25ff\u2800-\u28ff#=>*]{2}[\u2500-\u25ff\u2800-\u28ff#=>*|\\[\\]._\\s-]*$"
)
_CUT: Final = re.compile(r"[,;|{}\[\]\t()<>\u00b7]|\s{2,}|\s-+\s|: |\. |=+(?=.)")
_PAIR: Final = re.compile(r"^\s{0,10}(?:/|of|out of|von|sur|de|из)\s{0,10}$")
_NAME: Final = r"[A-Za-zäöüéè]{1,14}|[\u0400-\u04ff]{1,14}|[\u4e00-\u9fff]{1,3}"
_AMOUNT: Final = rf"%|(?:{_NAME}|)\s?(?:/|\bper\b)\s?(?:{_NAME})|{_NAME}"
_UNIT: Final = re.compile(rf"^(?:({_AMOUNT})(?![\w./])|\s{{1,2}}({_AMOUNT})(?![\w./]|[\"')]{{0,2}}\s{{0,3}}[:=]))")
_PARENTHESIS: Final = re.compile(r"[(\[]\s?([a-zA-Zµ/]{1,12})\s?[)\]]\s{0,3}[:=]?\s{0,3}$")
_ASIDE: Final = re.compile(r"\(([A-Za-z]{1,12})\)")
_PERCENT: Final = re.compile(r"^\s?%")
_TRIM: Final = " \t:=\"'`([<#~|\u2026.\x1b*"


@dataclass(frozen=True, slots=True)
class Slot:
    """A number in a shape: where it stands, what kind of token it is, and the words around it."""

    start: int
    end: int
    kind: str
    label: tuple[str, ...]
    unit: str
    pair: bool  # the second of `n/total`
    percent: bool
    open_end: bool  # `n/?`: a counter whose total is not known


@dataclass(frozen=True, slots=True)
class Shape:
    """A line's structure. `template` is equal for lines that differ in numbers (of any width) only."""

    template: str
    slots: tuple[Slot, ...]
    texts: tuple[str, ...]
    bare: bool  # nothing but numbers

    @property
    def free(self) -> str:
        """The words of the line that are not numbers."""
        return " ".join(self.texts)


def shape_of(text: str) -> Shape:
    """Return the shape of a line (at most `TEXT_MAX` characters)."""
    tokens = []
    for match in _TOKEN.finditer(text):
        tokens.append(match)
        if len(tokens) >= SLOTS_MAX:
            break
    texts: list[str] = []
    position = 0
    for match in tokens:
        texts.append(text[position : match.start()])
        position = match.end()
    texts.append(text[position:])
    parents = _parents(text, tokens) if _NESTED.search(text) is not None else {}
    slots = tuple(
        _slot(
            match, texts[i], texts[i + 1], parents.get(i, ()), after_number=i > 0 and tokens[i - 1].lastgroup == "num"
        )
        for i, match in enumerate(tokens)
    )
    template = "\x00".join(_squeeze(piece) for piece in texts)
    bare = len(slots) > 1 and not any(c.isalpha() for piece in texts for c in piece)
    return Shape(template, slots, tuple(texts), bare)


_NESTED: Final = re.compile(r"""["']\s?:\s?\{""")
_BRACES: Final = re.compile(r"""["'](?P<key>[^"'{}\\]{1,64})["']\s?:\s?\{|(?P<open>\{)|(?P<close>\})""")


def _parents(text: str, tokens: list[re.Match[str]]) -> dict[int, tuple[str, ...]]:
    """Return for the numbers of a nested object the words of the key that their object has: `"iter": {"cur": 3` is `iter cur`."""
    found: dict[int, tuple[str, ...]] = {}
    stack: list[tuple[str, ...]] = []
    braces = list(_BRACES.finditer(text))
    at = 0
    for i, token in enumerate(tokens):
        while at < len(braces) and braces[at].start() < token.start():
            brace = braces[at]
            if brace["close"]:
                del stack[-1:]
            else:
                stack.append(tuple(words_of(brace["key"] or ""))[-2:])
            at += 1
        if stack and stack[-1]:
            found[i] = stack[-1]
    return found


def _slot(match: re.Match[str], before: str, after: str, parents: tuple[str, ...], *, after_number: bool) -> Slot:
    kind = match.lastgroup or "num"
    percent = _PERCENT.match(after) is not None
    pair = kind == "num" and after_number and (_PAIR.match(before) is not None or _glued(before))
    label, unit = _label(before)
    if parents and label and not set(parents) & set(label):
        label = [*parents, *label][-6:]
    if not pair and kind in {"num", "clock"}:
        found = _UNIT.match(after)
        if found is not None and not unit:
            unit = (found.group(1) or found.group(2)).strip()
    elif pair:
        found = _UNIT.match(after)
        unit = (found.group(1) or found.group(2)).strip() if found is not None else ""
    if (
        unit
        and unit.lower() == unit.upper()
        and unit != "%"
        and "/" not in unit
        and not ("\u4e00" <= unit[0] <= "\u9fff")
    ):
        unit = ""
    return Slot(match.start(), match.end(), kind, tuple(label), unit, pair, percent, after.startswith("/?"))


def _glued(before: str) -> bool:
    return before.strip() == "/"


def _label(before: str) -> tuple[list[str], str]:
    unit = ""
    inside = _PARENTHESIS.search(before)
    if inside is not None and ("(" in inside.group() or inside.group(1).lower() in lexicon().units):
        unit, before = inside.group(1), before[: inside.start()]
    before = _ASIDE.sub(r" \1", _GLYPHS.sub("", before[-120:])).rstrip(_TRIM)
    cut = None
    for cut in _CUT.finditer(before):  # noqa: B007 - the last one counts
        pass
    name = before[cut.end() :] if cut is not None else before
    return words_of(name)[-6:], unit


def _squeeze(piece: str) -> str:
    piece = _GLYPHS_ANY.sub("\u2588", piece)
    return _DIGITS.sub("0", _SPACES.sub(" ", piece))


_GLYPHS_ANY: Final = re.compile("[\u2500-\u25ff\u2800-\u28ff#=>*.-]{2,}|[\u2500-\u25ff\u2800-\u28ff]")
_SPACES: Final = re.compile(r"\s+")
_DIGITS: Final = re.compile(r"\d+")

_UNIT_SPLIT: Final = re.compile(r"\s*/\s*|\s+per\s+|\bper\s+")


def unit_meaning(unit: str) -> tuple[str, float] | None:  # noqa: PLR0911 - a decision list
    """Say what a unit measures: ("spi", seconds in one step's unit), ("rate", per second), ("samples", …), ("time", seconds), or None."""
    words = lexicon()
    low = unit.lower()
    if low in words.units:
        return "time", words.units[low]
    parts = _UNIT_SPLIT.split(low, maxsplit=1)
    if len(parts) != 2:  # noqa: PLR2004 - one thing per another
        return None
    above, below = parts[0].strip(), parts[1].strip()
    if below in words.units:
        if not above:
            return "each", 1.0 / words.units[below]
        if words.is_("step", above):
            return "rate", 1.0 / words.units[below]
        if words.is_("epoch", above):
            return "epoch_rate", 1.0 / words.units[below]
        return "samples", 1.0 / words.units[below]
    if above in words.units and words.is_("step", below):
        return "spi", words.units[above]
    if above in words.units and words.is_("epoch", below):
        return "spe", words.units[above]
    return None
