"""A job's workload as a text to embed: fields that the source told, never its comments or names.

Its first line is what the job is, in words; its second all that is known, in terms (infra/embeddings/port.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schedmate.services.history_estimator.jobs import Value
from schedmate.services.history_estimator.work import number_of

MEANING: Final = ("task", "model_name", "model_family", "dataset")
WORDS: Final = (
    "framework",
    "task",
    "model_family",
    "model_name",
    "dataset",
    "optimizer",
    "precision",
    "strategy",
    "launcher",
)
PLACES_MAX: Final = 400
SIZES: Final = (
    "epochs",
    "max_steps",
    "total_steps",
    "model_params",
    "batch_size_per_device",
    "global_batch_size",
    "grad_accum",
)


def described(workload: Mapping[str, Value]) -> str:
    r"""Return the text of a workload, empty where nothing is known of it.

    A number stands as a word for its size, to a factor of 1.3 or so: jobs of about the same size are alike in it.

    >>> described({"framework": "pytorch", "epochs": 90})
    '\nframework pytorch epochs size17'
    >>> described({"task": "image_classification", "model_name": "resnet50"})
    'image classification resnet50\ntask image_classification model_name resnet50'
    """
    meaning = [
        _plain(value).replace("_", " ") for name in MEANING if (value := workload.get(name)) not in (None, "", ())
    ]
    words = [f"{name} {_plain(value)}" for name in WORDS if (value := workload.get(name)) not in (None, "", ())]
    sizes = [f"{name} size{_size(value)}" for name in SIZES if (value := number_of(workload.get(name))) is not None]
    terms = " ".join([*words, *sizes])
    return f"{' '.join(meaning)}\n{terms}" if terms else ""


def _plain(value: Value) -> str:
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    return " ".join(text.lower().split())[:200]


def _size(number: float) -> int:
    """Return the place of a size on a scale whose steps are a factor of 1.3."""
    place = 0
    while number > 1.0 and place < PLACES_MAX:
        number /= 1.3
        place += 1
    return place
