"""What a job's command line says of its length: the same words as in logs, on flags and their values."""

from __future__ import annotations

import re
from typing import Final

from schedmate.services.log_monitor.metrics.far import Hints
from schedmate.services.log_monitor.metrics.lexicon import lexicon, words_of

_FLAG: Final = re.compile(
    r"(?P<name>[-\w.\u4e00-\u9fff]{1,80})\s{0,2}(?:[=:]\s{0,2}|\s)(?P<value>\d[\d_,]{0,14}(?:\.\d{0,6})?(?:[eE]\d)?)(?![\w.])"
)


def hints_of(command: str, *, gpus: int = 1, nodes: int = 1) -> Hints:  # noqa: C901 - a decision list
    """Return the lengths that a command names."""
    lex = lexicon()
    steps: float | None = None
    epochs: float | None = None
    batch: float | None = None
    samples: float | None = None
    weak: float | None = None
    inner: float | None = None
    for match in _FLAG.finditer(command[:8192]):
        words = words_of(match["name"])
        try:
            value = float(match["value"].replace("_", "").replace(",", ""))
        except ValueError:
            continue
        if match["name"] in {"-n", "-N"} and value >= 1000:  # noqa: PLR2004 - no count of processes
            weak = value
        if not words or value <= 0:
            continue
        if words[-2:] == ["batch", "size"] or match["name"] in {"-b", "--bs"}:
            batch = batch or value
            continue
        if lex.has("samples", words[-1:]) and {"num", "train", "total"} & set(words):
            samples = value
            continue
        if "per" in words and words[-1] == "epoch" and lex.has("step", words):
            inner = value
            continue
        aside = {"training"} if "early" in words else {"training", "stop"}  # `--stop-iters` is a length
        if lex.has("other", [w for w in words if w not in aside]) or {"per"} & set(words):
            continue
        if any(lex.counts("epoch", w) or w == "轮数" for w in words[-2:]):
            epochs = value
        elif words[-1] in {"episodes", "episode"}:
            weak = weak or value
        elif lex.counts("step", words[-1]) or (len(words) > 1 and lex.is_("step", words[-2])):
            steps = value
    return Hints(
        int(steps) if steps else None, epochs, int(batch) if batch else None, int(samples) if samples else None,
        max(1, gpus) * max(1, nodes), int(weak) if weak else None, int(inner) if inner else None,
    )  # fmt: skip
