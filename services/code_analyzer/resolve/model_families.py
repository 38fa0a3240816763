"""Families of models and their sizes, by their names."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from schedmate.services.code_analyzer.resolve.facts import (
    letters,
)
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge

_SIZE: Final = re.compile(r"(?<![a-zA-Z0-9.])(\d{1,4}(?:[._]\d{1,2})?)\s?([bBmM])(?![a-zA-Z0-9])")
MAKERS: Final = re.compile(
    r"from_pretrained$|from_config$|create_model$|SentenceTransformer$|torch\.hub\.load$|(^|\.)YOLO$|load_model$|get_model$|\.LLM$|snapshot_download$|CrossEncoder$|pipeline$|InferenceClient$|get_network_fn$"
)
SMALLEST_SIZE_M: Final = 10
"""Millions of parameters: `1m` in a name is no model's size."""


@cache
def _families() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), name) for pattern, name in knowledge("models")["families"]]


def family_of(name: str) -> str | None:
    """Return the family that a model's name speaks of."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)
    for text in (
        name.lower().rsplit("/", 1)[-1].replace("_", "-"),
        spaced.lower().replace("_", "-"),
        name.lower().replace("_", "-"),
    ):
        for pattern, family in _families():
            found = pattern.search(text)
            if found is not None:
                version = re.search(r"v\d+|\d+", found[0]) if family == "yolo" else None
                return f"yolo{version[0]}" if version is not None else family
    return None


def parameters_of(name: str) -> float | None:
    """Return how many parameters a model of this name has: by a size in the name, else because it is well known."""
    table: dict[str, float] = knowledge("models")["params"]
    last = re.sub(r"\.(pt|pth|ckpt|safetensors|yaml)$", "", name.rstrip("/").rsplit("/", 1)[-1])
    bare = letters(last)
    if bare in table:
        return float(table[bare])
    sized = [
        m
        for m in _SIZE.finditer(re.sub(r"[-_]", " ", last))
        if m[2] in "bB" or float(m[1].replace("_", ".")) >= SMALLEST_SIZE_M
    ]
    if sized:
        number = float(sized[0][1].replace("_", "."))
        return number * (1e9 if sized[0][2] in "bB" else 1e6)
    for known in sorted(table, key=len, reverse=True):
        if len(known) > 6 and bare.startswith(known) and not re.match(r"\d", bare[len(known) :]) or _vit(bare) == known:  # noqa: PLR2004, RUF021 - short names are words of others
            return float(table[known])
    return None


def _vit(bare: str) -> str | None:
    found = re.match(r"(vit|deit|swin|beit|maevit|convnext)(tiny|small|base|large|huge|xlarge)", bare)
    return found[0] if found is not None else None
