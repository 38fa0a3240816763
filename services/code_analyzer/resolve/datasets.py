"""Which data a job trains on."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import (
    CONFIGURED,
    Facts,
    Found,
    Setting,
    as_number,
    letters,
    text_of,
)
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.model_families import family_of
from schedmate.services.code_analyzer.resolve.values import V

NAME_MAX: Final = 80
_TRAIN_PART: Final = re.compile(
    r"^(train(ing)?|images?|data|raw|processed|jpg|all|full|shards|text|train\.(json|jsonl|csv|txt|parquet|bin|h5)|text_localization|manifests?)$",
    re.IGNORECASE,
)


class Datasets:
    """Answers for the field about data."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.framework = facts.framework

    # --- data and purpose --------------------------------------------------------------------------------------------

    def dataset(self) -> Found | None:
        """The data set, by the name it is loaded under, else by where it lies."""
        found = self._loaded_data()
        candidates = [found] if found is not None else []
        candidates += self._given_data()
        part = next((s for s in self.facts.settings if s.path == "task_name" and text_of(s.data)), None)
        if part is not None and f"glue/{part.data}" in knowledge("datasets")["sizes"]:
            candidates.append(Found(part.data, part.value.place))
        named = [c for c in candidates if _known_dataset(str(c.value)) is not None or "/" not in str(c.value)]
        if found is not None and not str(found.value).startswith(("/", ".", "~")):
            return found
        best = candidates[0] if candidates else None
        if (
            best is not None
            and str(best.value).startswith(("/", ".", "~"))
            and _known_dataset(str(best.value)) is None
            and named
        ):
            best = named[0]
        return (
            Found(_dataset_name(str(best.value)), best.place, best.basis, best.confidence) if best is not None else None
        )

    def _loaded_data(self) -> Found | None:
        calls = sorted(self.facts.events, key=lambda c: (not c.certain, bool(re.search(r"val|test|eval", c.text))))
        for call in calls:
            last = call.name.rsplit(".", 1)[-1]
            if last in ("load_dataset", "load_from_disk", "load", "image_dataset_from_directory", "ImageFolder", "read_csv", "builder") and (last != "load" or "tfds" in call.name or "tensorflow_datasets" in call.name):  # fmt: skip
                value = call.argument(0, "path", "name", "directory", "root")
                name = text_of(value.data) if value is not None else None
                if (
                    name is not None
                    and name in ("json", "csv", "parquet", "text", "imagefolder", "webdataset")
                    and last == "load_dataset"
                ):
                    value = call.kwargs.get("data_files", call.kwargs.get("data_dir"))
                    name = text_of(value.data) if value is not None else None
                if name is not None and value is not None:
                    return Found(name, value.place or call.place, value.basis, 0.95)
            elif (
                re.search(
                    r"(torchvision|torchaudio|torchtext|keras|paddle\.vision|chainer)\.datasets\.\w+$|(Pyg|Dgl)?\w*PropPredDataset$|Planetoid$",
                    call.name,
                )
                and last[:1].isupper()
            ):
                value = call.argument(0, "name") if re.search(r"PropPred|Planetoid", last) else None
                name = text_of(value.data) if value is not None else None
                return Found(name or last, value.place if value is not None and value.place else call.place)
            elif re.search(r"keras\.datasets\.\w+\.load_data$", call.name):
                return Found(call.name.split(".")[-2], call.place)
        return None

    def _given_data(self) -> list[Found]:  # noqa: C901 - cases of one kind, one after another
        found: list[Found] = []
        for setting in self.facts.of("dataset"):
            for given in _texts(setting):
                name = given
                if re.search(r"eval|valid|test|output|tokenizer|ckpt|checkpoint", setting.path.lower()) or name.lower() in ("train", "???", "true", "false", "auto", "text", "null") or len(name) > 300:  # fmt: skip  # noqa: PLR2004 - no name is longer
                    continue
                if re.search(r"\.(yaml|yml)$", name):
                    name = self._inside(name) or name
                if re.search(r"Data[Ss]et$", name) and "/" not in name:
                    name = re.sub(r"_?Data[Ss]et$", "", name)
                    if _known_dataset(name) is None:
                        continue
                if setting.path.endswith(("_target_", "class_path", "_component_")):
                    own = re.sub(r"(DM|DataModule|_dataset|Dataset|Data)$", "", name.rsplit(".", 1)[-1])
                    if any(_known_dataset(str(f.value)) for f in found) or not own:
                        continue
                    name = own
                found.append(
                    Found(name, setting.value.place, setting.value.basis, 0.9 if setting.rank <= CONFIGURED else 0.6)
                )
        strings = [
            (a.data, c.place)
            for c in self.facts.events
            if c.certain and not c.name.startswith("builtins.")
            for a in c.args
            if isinstance(a.data, str)
        ]
        for text, place in strings[:400]:
            if (
                len(text) < NAME_MAX
                and "\x01" not in text
                and _known_dataset(text) is not None
                and family_of(text) is None
                and not re.search(r"ckpt|checkpoint|output|run", text)
            ):
                found.append(Found(text, place, Basis.EXPLICIT, 0.6))
        return found

    def _inside(self, path: str) -> str | None:
        """The folder that a data file of the source (`data.yaml`) points to."""
        for record in self.facts.configs:
            where = record.entries.get("path")
            if where is not None and isinstance(where.data, str) and record.entries.get("names") is not None:
                return where.data
        return path.rsplit("/", 1)[-1].rsplit(".", 1)[0]


def _texts(setting: Setting) -> list[str]:
    data = setting.data
    if isinstance(data, str):
        found = re.fullmatch(r"\(\s*['\"]([^'\"]+)['\"],?\s*\)", data)
        return [found[1] if found is not None else data]
    if isinstance(data, (list, tuple)) and data:
        texts = [v.data for v in data if isinstance(v, V) and isinstance(v.data, str) and as_number(v.data) is None]
        return [",".join(texts)] if texts else []
    return []


@cache
def _names() -> list[tuple[str, str]]:
    return sorted(((k, v) for k, v in knowledge("datasets")["names"].items()), key=lambda kv: -len(kv[0]))


def _known_dataset(text: str) -> str | None:
    lowered = text.lower()
    for word, name in _names():
        if re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])", lowered):
            return name
    return None


def _dataset_name(text: str) -> str:
    """Return a data set's name: as it is given, and for a path the name in it that is known, else the path without `train`."""
    if not text.startswith(("/", ".", "~", "data/", "datasets/")) and not text.lower().startswith(("data-bin/",)):
        return re.sub(r"(?<=.)\.(csv|txt|json|jsonl|parquet)$", "", text) if "/" not in text else text
    parts = [p for p in text.rstrip("/").split("/") if p not in ("", ".", "..", "~")]
    while len(parts) > 1 and _TRAIN_PART.match(parts[-1]):
        parts.pop()
    known = _known_dataset("/".join(parts))
    exact = [p for p in parts if letters(p) in {letters(w) for w, _ in _names()}]
    if exact:
        return known if known is not None else exact[-1]
    stem = re.sub(r"\.(csv|txt|json|jsonl|parquet|bin|h5|tfrecord|npz|lmdb|arrow)$", "", parts[-1]) if parts else text
    if known is not None and letters(known) in letters(stem) and len(stem) > len(known) + 12:
        return known
    if known is not None and letters(known) not in letters(stem):
        return known
    return stem if text.startswith(("data/", "data-bin/", "datasets/", "./")) or known is not None else text.rstrip("/")
