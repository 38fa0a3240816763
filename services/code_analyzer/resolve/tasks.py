"""What a job is for."""

from __future__ import annotations

import re
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import (
    CONFIGURED,
    Facts,
    Found,
    text_of,
)
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.models import Models

_GENERAL_TASKS: Final = ("image_classification", "masked_lm", "sentence_embedding", "speech_recognition")
"""Tasks of families that are used for much else: what the data says goes before them."""


class Tasks:
    """Answers for the field about purpose."""

    def __init__(self, facts: Facts, models: Models) -> None:
        self.facts = facts
        self.framework = facts.framework
        self.models = models

    def task(self, dataset: Found | None) -> Found | None:
        """What the job is for."""
        said = self._said()
        if said is not None:
            return self._refined(said, dataset)
        data = _table_match(knowledge("tasks")["datasets"], str(dataset.value)) if dataset is not None else None
        head = self._task_of_head()
        if head is not None:
            return self._refined(
                Found(data, dataset.place, Basis.INFERRED, 0.7)
                if head.value == "language_modeling" and data == "sft" and dataset is not None
                else head,
                dataset,
            )
        if self.models.is_rl():
            return Found("reinforcement_learning", self.facts.launch.place, Basis.INFERRED, 0.8)
        family = self.models.family()
        base = _yolo(family.value) if family is not None else None
        of_family = next((task for task, members in knowledge("tasks")["families"].items() if base in members), None)
        general = (
            of_family is None
            or (of_family == "self_supervised_learning" and not _learns_by_itself(self.models.name))
            or (of_family in _GENERAL_TASKS and data != "language_modeling")
        )
        if of_family in _GENERAL_TASKS and data is None and self._reads_tables():
            of_family = "tabular_classification"
        if general and data is not None and dataset is not None:
            return Found(data, dataset.place, Basis.INFERRED, 0.7)
        if of_family is not None and family is not None:
            return Found(of_family, family.place, Basis.INFERRED, 0.7)
        return None

    def _said(self) -> Found | None:
        """What the job itself says that it is for."""
        rules = (self._task_given, self._task_of_trainer, self._task_of_script, self._task_of_framework)
        return next((found for rule in rules if (found := rule()) is not None), None)

    def _reads_tables(self) -> bool:
        """Tell whether the program's data are the rows of a table, and no images or texts."""
        tables = self.facts.call(r"(^|\.)(pd|pandas|pl|polars|cudf)\.read_(parquet|csv|feather|hdf|sql)$")
        others = r"torchvision|PIL|cv2|timm|albumentations|transformers|tokenizers|datasets|torchaudio|imageio"
        return tables is not None and not any(re.fullmatch(others, i.split(".")[0]) for i in self.facts.imports)

    def _task_given(self) -> Found | None:
        table = self.framework.table if self.framework is not None else {}
        for record in self.facts.configs:
            kind = record.get("Architecture.model_type")
            if kind is not None and table.get("name") == "paddleocr":
                return Found(
                    {"det": "text_detection", "rec": "text_recognition", "cls": "text_classification"}.get(
                        str(kind.data), "ocr"
                    ),
                    kind.place,
                )
        for setting in self.facts.of("task_kind"):
            name = text_of(setting.data)
            task = _words_match(name) if name is not None and setting.rank <= CONFIGURED else None
            if task is not None:
                return Found(task, setting.value.place)
        if table.get("name") == "ultralytics":
            for word in self.facts.launch.words[:2]:
                task = _words_match(word.text)
                if task is not None:
                    return Found(task, word.place)
        return None

    def _task_of_trainer(self) -> Found | None:
        for pattern, task in (
            (r"DPOTrainer$|ORPOTrainer$|KTOTrainer$|CPOTrainer$", "dpo"),
            (r"(GRPO|PPO|RLOO)\w*Trainer$", "rlhf"),
            (r"RewardTrainer$", "reward_modeling"),
            (r"SFTTrainer$", "sft"),
        ):
            call = self.facts.call(pattern)
            if call is not None:
                return Found(task, call.place)
        return None

    def _task_of_script(self) -> Found | None:
        launch = self.facts.launch
        words = [
            launch.program or "",
            launch.module or "",
            *(
                w.text
                for w in launch.words[:1]
                if launch.command in ("tune", "swift", "litgpt", "trl", "llamafactory-cli")
            ),
        ]
        for word in words:
            name = word.rsplit("/", 1)[-1].removesuffix(".py")
            task = _words_match(name) if name else None
            if (
                task is not None
                and (not self.facts.code or task not in ("pretraining", "finetuning", "distillation"))
                and launch.place is not None
            ):
                if task == "finetuning" and self.framework is not None and self.framework.table.get("task"):
                    continue
                return Found(task, launch.place, Basis.EXPLICIT, 0.8)
        return None

    def _task_of_framework(self) -> Found | None:
        table = self.framework.table if self.framework is not None else {}
        task = table.get("task")
        if self.framework is not None and self.framework.name == "composer":
            task = "language_modeling" if any("causal_lm" in str(s.data) for s in self.facts.of("model_name")) else task
        return Found(task, self.framework.place) if task and self.framework is not None else None

    def _task_of_head(self) -> Found | None:
        for pattern, task in knowledge("tasks")["heads"]:
            call = self.facts.call(pattern)
            if call is not None:
                return Found(task, call.place, Basis.EXPLICIT, 0.85)
        return None

    def _refined(self, found: Found, dataset: Found | None) -> Found:
        """Say more precisely what a general word means, where the model or the data tells."""
        family = self.models.family()
        name = str(found.value)
        if (
            name == "object_detection"
            and family is not None
            and family.value in knowledge("tasks")["families"]["instance_segmentation"]
        ):
            return Found("instance_segmentation", family.place, Basis.EXPLICIT, 0.85)
        if name == "pretraining" and family is not None and family.value in ("bert", "roberta", "electra"):
            return Found("masked_lm", found.place, Basis.INFERRED, 0.8)
        if name in ("finetuning", "lora"):
            return Found("sft", found.place, found.basis, 0.7)
        del dataset
        return found


def _learns_by_itself(model: Found | None) -> bool:
    """Tell whether a model's name says that it is trained without labels: what only its family says may be tuned with them."""
    return model is not None and re.search(r"(?i)masked|pre_?train|auto_?encoder", str(model.value)) is not None


def _yolo(family: Any) -> Any:
    return "yolo" if isinstance(family, str) and family.startswith("yolo") else family


def _words_match(text: str) -> str | None:
    lowered = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower().replace("-", "_")
    for pattern, task in knowledge("tasks")["words"]:
        if re.search(pattern, lowered):
            return str(task)
    return None


def _table_match(table: dict[str, str], text: str) -> str | None:
    for pattern, task in table.items():
        if re.search(pattern, text, re.IGNORECASE):
            return task
    return None
