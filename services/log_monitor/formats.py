"""What one line of a log says about progress: the known formats, each a pattern and what its groups mean.

A format is evidence about one line only; `progress` decides what the sequence of lines amounts to.
Patterns have no nested repetition: a line is bounded, and so is the time to read it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from schedmate.schemas.events import Phase


@dataclass(slots=True)
class Sighting:
    """What a line shows. A step counts either over the job (`step`) or within an epoch (`inner`)."""

    step: int | None = None
    total: int | None = None
    inner: int | None = None
    inner_total: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    loss: float | None = None
    rate: float | None = None
    elapsed_s: float | None = None
    stamp_s: float | None = None
    phase: Phase | None = None
    resumed_at: int | None = None
    checkpoint: str | None = None
    base: int | None = None  # number of the first epoch, where the format tells

    def counts(self) -> bool:
        """Tell whether the line shows a position."""
        return self.step is not None or self.inner is not None or self.epoch is not None


_NUM: Final = r"[+-]?(?:\d[\d,]{0,14}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][+-]?\d{1,3})?"

_TQDM: Final = re.compile(
    r"^(?P<desc>.{0,160}?)[:\s]*(?:(?P<pct>\d{1,3})%)?\|(?P<bar>[^|]{0,120})\|\s{0,8}(?P<n>\d[\d.]{0,11}[kMG]?)/(?P<total>\?|\d[\d.]{0,11}[kMG]?)\s{0,4}"
    r"\[(?P<elapsed>\d[\d:]{1,9})<(?P<left>[^,\]]{0,20}),\s{0,4}(?P<rate>[\d.?eE+]{1,12})\s?(?P<unit>[A-Za-z]{1,12}/[A-Za-z]{1,12})?(?P<rest>[^\]]{0,400})"
)
_KERAS: Final = re.compile(
    r"^(?:\[[\d,]{1,8}\]<\w{1,8}>:)?\s{0,8}(?P<n>\d{1,9})/(?P<total>\d{1,9})\s{1,4}\S{0,4}\[?[=>.━ ]{3,60}"
)
_EPOCH_OF: Final = re.compile(
    r"\bepochs?(?:\s?\(?train\)?)?\s{0,3}[:=#]?\s{0,3}\[?(?P<n>\d{1,7})\s{0,2}(?:/|of)\s{0,2}(?P<total>\d{1,7})",
    re.IGNORECASE,
)
_EPOCH: Final = re.compile(
    r"\bepoch[\"']?(?:\s?\((?:train|val)\))?\s{0,3}[:=#]?\s{0,3}\[?\s{0,4}(?P<n>\d{1,7}(?:\.\d{1,8})?)\b", re.IGNORECASE
)
_EPOCH_SUFFIX: Final = re.compile(r"\b(?P<n>\d{1,6})(?:st|nd|rd|th)? epoch\b", re.IGNORECASE)
_BRACKET: Final = re.compile(
    r"\[\s{0,6}(?P<n>\d{1,10})\s{0,2}/\s{0,2}(?P<total>\d{1,10})(?:\s{0,2}\(\s{0,3}\d{1,3}(?:\.\d{0,3})?%\s{0,2}\))?\s{0,2}\]"
)
_STEP_OF: Final = re.compile(
    r"\b(?:global[ _]?)?(?:step|steps|iter|iters|iteration|iterations|update|updates|batch|it|training step)[\"']?\s{0,3}[:=#]?\s{0,4}\[?\s{0,8}(?P<n>\d[\d,]{0,12})"
    r"\s{0,3}(?:/|of|out of)\s{0,3}(?P<total>\d[\d,]{0,12})",
    re.IGNORECASE,
)
_STEP: Final = re.compile(
    r"(?<![A-Za-z])(?P<name>(?:global[_ ]?|current_|num_)?(?:step|steps|iter|iters|iteration|iterations|updates?))[\"']?\s{0,3}[:=#]?\s{0,4}(?P<n>\d[\d,]{0,12})(?![\d.]|\s?(?:s|ms|sec)\b|%)",
    re.IGNORECASE,
)
_TOTAL: Final = re.compile(
    r"\b(?:total[ _](?:optimi[sz]ation[ _])?steps|max[_ ](?:steps|iters?|updates?|iterations)|train[_ ]iters|total iterations)[\"']?\s{0,3}[:=]\s{0,3}(?P<n>\d[\d,]{0,12})",
    re.IGNORECASE,
)
_TOTAL_EPOCHS: Final = re.compile(
    r"\b(?:num[_ ](?:train[_ ])?epochs|max[_ ]epochs?|total[_ ]epochs|training for|train for)[\"']?\s{0,3}[:=]?\s{0,3}(?P<n>\d[\d,]{0,6})(?=\s{0,2}(?:epochs?\b|$|[,;|)\]}]|\s))",
    re.IGNORECASE,
)
_LOSS: Final = re.compile(
    r"(?<![A-Za-z_/])(?P<name>(?:train(?:ing)?[_/ ]|avg[_. ]{1,2}|avr_|lm[_ ]|reduced_train_|total_|mean_)?loss)[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(?P<v>nan|[+-]?inf|"
    + _NUM
    + r")",
    re.IGNORECASE,
)
_RATE_UNIT: Final = re.compile(
    r"(?P<v>\d[\d.]{0,11})\s{0,2}(?P<unit>it/s|its/s|steps?/s(?:ec(?:ond)?)?|s/it|s/iter|sec/step|s/step|ms/step|ms/it)\b"
)
_MS_PER_ITER: Final = re.compile(
    r"(?:elapsed )?time per iteration \(ms\):\s{0,3}(?P<v>\d[\d.]{0,11})|\btime\s?[:=]?\s?(?P<ms>\d[\d.]{0,11})ms\b"
)
_S_PER_ITER: Final = re.compile(
    r"(?<![A-Za-z_])(?:time|batch_cost|avg_batch_cost)\s{0,2}:\s{0,3}(?P<v>\d{1,5}\.\d{1,9})\b(?!\s?%)"
)
_RESUME: Final = re.compile(
    r"\b(?:resum\w{1,6}|restor\w{1,6}|loaded checkpoint|continu\w{1,6} training|skip the first)\b.{0,160}?\b(?:step|steps|iteration|iter|global_step|batches)\b[ :=#_]{0,3}(?P<n>\d[\d,]{0,12})?",
    re.IGNORECASE,
)
_SAVED: Final = re.compile(
    r"\b(?:sav(?:ed|ing)|wrote|written|writing)\b.{0,60}?\b(?:checkpoint|ckpt|model|weights|state|snapshot)s?\b.{0,60}?\b(?:to|at|in|as)\b[ :]{1,3}[\"'`]?(?P<path>[^\s\"'`,;]{1,400})",
    re.IGNORECASE,
)
_SAVED_BARE: Final = re.compile(
    r"\b(?:sav(?:ed|ing)|wrote)\b.{0,40}?\b(?:checkpoint|ckpt|snapshot)\b[ :=]{1,3}[\"'`]?(?P<path>[^\s\"'`,;]{0,300}[/.][^\s\"'`,;]{1,300})",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(
    r"(?P<y>20\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[ T,](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,6}))?"
)

_EVAL_WORDS: Final = re.compile(
    r"\b(?:eval\w{0,7}|valid\w{0,6}|testing)\b|\((?:val|valid|test)\)|^\s{0,8}test\s?:", re.IGNORECASE
)
_PREP_WORDS: Final = re.compile(
    r"\b(?:tokeni[sz]\w{0,4}|preprocess\w{0,4}|map(?:ping)?\b|generating (?:train|valid\w{0,6}|test) split|filter(?:ing)?|packing|download\w{0,4}|processing data)",
    re.IGNORECASE,
)
_LOAD_WORDS: Final = re.compile(
    r"\b(?:loading checkpoint shards|loading (?:the )?(?:model|weights|pipeline)|fetching \d{1,5} files)", re.IGNORECASE
)
_TRAIN_WORDS: Final = re.compile(
    r"\b(?:running training|start(?:ing)? training|begin training|training:|train(?:ing)? epoch)\b", re.IGNORECASE
)
_DONE_WORDS: Final = re.compile(
    r"\b(?:training (?:is )?(?:complete[d]?|finished|done|ended)|finished training|done training|end of (?:training|running)|train_runtime)\b|^\s{0,4}done[.! ]{0,3}$",
    re.IGNORECASE,
)
_SAVE_WORDS: Final = re.compile(
    r"\bsav(?:ing|ed)\b.{0,40}?\b(?:checkpoint|ckpt|model|weights|state|snapshot)", re.IGNORECASE
)
_SKIP_WORDS: Final = re.compile(r"\b(?:nvidia-smi|traceback)\b", re.IGNORECASE)

_HINTS: Final = re.compile(r"\d|sav|train|load|epoch|done|eval|valid|finish|complete", re.IGNORECASE)


def sight(line: str) -> Sighting | None:
    """Return what a line shows about progress, or None when it shows nothing."""
    if _HINTS.search(line) is None:
        return None
    text = line if len(line) <= 1500 else line[:1500]  # noqa: PLR2004 - a progress line is short; the rest is not worth its time
    seen = Sighting()
    bar = _TQDM.search(text)
    if bar is not None:
        _read_bar(bar, seen)
    else:
        _read_words(text, seen)
    _read_common(text, seen)
    return seen if seen != Sighting() else None


def _read_bar(bar: re.Match[str], seen: Sighting) -> None:
    desc = bar["desc"].strip()
    seen.phase = _bar_phase(desc)
    n, total = _count(bar["n"]), _count(bar["total"])
    seen.elapsed_s = clock_seconds(bar["elapsed"])
    seen.rate = _bar_rate(bar["rate"], bar["unit"])
    if seen.phase is Phase.TRAIN:
        within = _EPOCH_OF.search(desc) or _EPOCH.search(desc)
        if within is not None:
            seen.epoch = float(within["n"])
            if "total" in within.groupdict():
                seen.total_epochs = float(within["total"])
            seen.inner, seen.inner_total = n, total
            seen.base = 0 if "total" not in within.groupdict() else 1
        elif re.fullmatch(r"epochs?", desc, re.IGNORECASE):
            seen.epoch, seen.total_epochs = (
                (float(n) if n is not None else None),
                (float(total) if total is not None else None),
            )
            seen.rate = None
        else:
            seen.step, seen.total = n, total


def _bar_phase(desc: str) -> Phase:
    for words, phase in ((_LOAD_WORDS, Phase.LOAD), (_PREP_WORDS, Phase.DATA_PREP), (_EVAL_WORDS, Phase.EVAL)):
        if words.search(desc):
            return phase
    return Phase.TRAIN


def _bar_rate(number: str, unit: str | None) -> float | None:
    value = finite(number)
    if value is None or value <= 0 or unit is None:
        return None
    return 1.0 / value if unit.startswith("s/") else value


def _read_words(text: str, seen: Sighting) -> None:
    evaluating = _EVAL_WORDS.search(text) is not None
    epoch_of = _EPOCH_OF.search(text)
    epoch = epoch_of or _EPOCH.search(text) or _EPOCH_SUFFIX.search(text)
    if epoch is not None and not _TOTAL_EPOCHS.search(text):
        seen.epoch = float(epoch["n"])
    if epoch_of is not None:
        seen.total_epochs = float(epoch_of["total"])
    if epoch is not None:
        seen.base = 0 if re.match(r"epoch:\s?\[", epoch.group(), re.IGNORECASE) and epoch_of is None else None
    if evaluating:
        seen.phase = Phase.EVAL
        return
    _read_steps(text, seen, epoch)
    if seen.step is None and seen.inner is None:
        _read_phase_words(text, seen)
    elif seen.step is not None or seen.inner is not None:
        seen.phase = Phase.TRAIN


def _read_steps(text: str, seen: Sighting, epoch: re.Match[str] | None) -> None:
    step_of = _STEP_OF.search(text)
    if step_of is not None:
        n, total = _count(step_of["n"]), _count(step_of["total"])
        if re.match(r"batch", step_of.group(), re.IGNORECASE) and epoch is not None:
            seen.inner, seen.inner_total = n, total
        else:
            seen.step, seen.total = n, total
        return
    keras = _KERAS.search(text)
    if keras is not None:
        seen.inner, seen.inner_total = _count(keras["n"]), _count(keras["total"])
        return
    if epoch is not None:
        bracket = _BRACKET.search(text, epoch.end())
        if bracket is not None:
            seen.inner, seen.inner_total = _count(bracket["n"]), _count(bracket["total"])
            return
    whole = _TOTAL.search(text)
    if whole is not None:
        seen.total = _count(whole["n"])
    step = _STEP.search(_TOTAL.sub(" ", text) if whole is not None else text)
    if step is not None and not _SKIP_WORDS.search(text):
        seen.step = _count(step["n"])


def _read_phase_words(text: str, seen: Sighting) -> None:
    if _DONE_WORDS.search(text):
        seen.phase = Phase.DONE
    elif _SAVE_WORDS.search(text):
        seen.phase = Phase.SAVE
    elif _LOAD_WORDS.search(text):
        seen.phase = Phase.LOAD
    elif _TRAIN_WORDS.search(text) or seen.epoch is not None:
        seen.phase = Phase.TRAIN


def _read_common(text: str, seen: Sighting) -> None:
    if seen.phase in {Phase.TRAIN, None}:
        losses = list(_LOSS.finditer(text))
        if losses and not _EVAL_WORDS.search(text):
            plain = [m for m in losses if m["name"].lower() == "loss"]
            chosen = (plain or losses)[-1]
            seen.loss = loss_value(chosen["v"])
    if seen.rate is None and (seen.step is not None or seen.inner is not None):
        seen.rate = _rate(text)
    if seen.total_epochs is None:
        total_epochs = _TOTAL_EPOCHS.search(text)
        if total_epochs is not None:
            seen.total_epochs = finite(total_epochs["n"])
    resume = _RESUME.search(text)
    if resume is not None:
        seen.resumed_at = _count(resume["n"]) if resume["n"] else -1
        seen.step = seen.inner = seen.epoch = None
    saved = _SAVED.search(text) or _SAVED_BARE.search(text)
    if saved is not None:
        seen.checkpoint = _path(saved["path"])
        if seen.step is not None and seen.total is None and seen.loss is None:
            seen.step = None  # "saved checkpoint of step 500": where it was, not news
            seen.phase = Phase.SAVE
    stamp = _STAMP.search(text)
    if stamp is not None and seen.counts():
        seen.stamp_s = _stamp_seconds(stamp)


def _rate(text: str) -> float | None:
    ms = _MS_PER_ITER.search(text)
    if ms is not None:
        value = finite(ms["v"] or ms["ms"])
        return 1000.0 / value if value else None
    unit = _RATE_UNIT.search(text)
    if unit is not None:
        value = finite(unit["v"])
        if not value:
            return None
        if unit["unit"].startswith("ms/"):
            return 1000.0 / value
        return 1.0 / value if unit["unit"].startswith(("s/", "sec/")) else value
    seconds = _S_PER_ITER.search(text)
    if seconds is not None:
        value = finite(seconds["v"])
        return 1.0 / value if value else None
    return None


def clock_seconds(text: str) -> float | None:
    """Return the seconds of `MM:SS` or `H:MM:SS`, or None."""
    parts = text.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 4:  # noqa: PLR2004 - days at most
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return float(seconds)


def finite(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def loss_value(text: str) -> float | None:
    """Return a loss; NaN and infinity are kept as NaN (they are news), nonsense is None."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else math.nan


def _count(text: str | None) -> int | None:
    if text is None or text == "?":
        return None
    scale = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(text[-1], 1)
    value = finite(text.rstrip("kMG"))
    return int(value * scale) if value is not None else None


def _path(text: str) -> str | None:
    path = text.rstrip(".)]}>")
    return path if len(path) > 1 and not path.isdigit() else None


def _stamp_seconds(stamp: re.Match[str]) -> float | None:
    try:
        year, month, day, hour, minute, second = (int(stamp[k]) for k in ("y", "mo", "d", "h", "mi", "s"))
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return whole + (float(f"0.{stamp['f']}") if stamp["f"] else 0.0)
