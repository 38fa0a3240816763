"""The measured applications of Pollux (OSDI'21) as a user's program meets them, and their run times from its measurements.

`profiles/APPLICATION/` holds what the authors measured on 4-GPU nodes: step times by placement and local batch size, and the validation
metric against iterations for several batch sizes. A job that runs a fixed number of epochs takes epochs x samples / batch iterations;
one that stops at a target takes the iterations after which the measured curve of its batch size first stood at the target. Both are
multiplied by the measured step time of its replicas, gradient accumulation included where the batch does not fit.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class Application:
    """What a program of this application names. `weight` is its share of new programs; `rises` tells which way its metric goes."""

    name: str
    samples: int
    epochs_max: int
    batches: tuple[int, ...]
    weight: float
    metric: str
    imports: str
    model: str
    data: str
    rises: bool = True


APPLICATIONS = {
    a.name: a
    for a in (
        Application(
            "cifar10", 50_000, 100, (128, 256, 512, 1024, 2048, 4096), 0.30, "accuracy",
            "import torchvision", "torchvision.models.resnet18(num_classes=10)",
            "torchvision.datasets.CIFAR10(ROOT, train=True, download=False)",
        ),
        Application(
            "ncf", 4_971_008, 10, (256, 512, 1024, 2048, 4096, 8192, 16384, 32768), 0.30, "hit_rate",
            "from recommender import MovieLens, NeuMF", "NeuMF(users=6040, items=3706, factors=64)",
            'MovieLens(ROOT, "ml-1m", negatives=4)',
        ),
        Application(
            "deepspeech2", 7_140, 80, (20, 40, 80, 160, 320, 640), 0.14, "word_error_rate",
            "from speech import DeepSpeech2, ManifestDataset", "DeepSpeech2(hidden=1024, layers=5, labels=29)",
            'ManifestDataset(ROOT, "an4_train.csv")', rises=False,
        ),
        Application(
            "bert", 88_644, 2, (12, 24, 48, 96, 192, 384), 0.12, "f1",
            "from datasets import load_dataset\nfrom transformers import AutoModelForQuestionAnswering",
            'AutoModelForQuestionAnswering.from_pretrained("bert-base-uncased")', 'load_dataset("squad", split="train")',
        ),
        Application(
            "yolov3", 16_552, 50, (8, 16, 32, 64, 128, 256, 512), 0.09, "val_loss",
            "import torchvision\nfrom detector import YOLOv3", 'YOLOv3(classes=20, anchors="voc")',
            'torchvision.datasets.VOCDetection(ROOT, year="2012", image_set="trainval")', rises=False,
        ),
        Application(
            "imagenet", 1_281_167, 90, (200, 400, 800, 1600, 3200, 6400, 12800), 0.05, "accuracy",
            "import torchvision", "torchvision.models.resnet50()", 'torchvision.datasets.ImageNet(ROOT, split="train")',
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What a submission asks of its application: a number of epochs, or a target at which it stops (then at most `epochs`)."""

    application: str
    replicas: int
    batch: int
    epochs: int
    fraction: float = 1.0
    target: float | None = None
    learning_rate: float = 0.1


class Profiles:
    """The measurements under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run_s(self, plan: Plan) -> float:
        """Return the run time of a plan, s."""
        return self.iterations(plan) * self.step_s(plan)

    def iterations(self, plan: Plan) -> float:
        """Return the iterations of a plan."""
        application = APPLICATIONS[plan.application]
        planned = plan.epochs * ceil(application.samples * plan.fraction / plan.batch)
        if plan.target is None:
            return planned
        for iteration, metric in _curve(self._folder / plan.application / f"validation-{plan.batch}.csv"):
            if (metric >= plan.target) == application.rises or metric == plan.target:
                return min(planned, iteration)
        return planned

    def targets(self, application: str, batch: int) -> tuple[float, float]:
        """Return the metric early in training and at its best, between which targets lie."""
        rows = _curve(self._folder / application / f"validation-{batch}.csv")
        values = [metric for _, metric in rows]
        best = max(values) if APPLICATIONS[application].rises else min(values)
        return values[len(values) // 10], best

    def step_s(self, plan: Plan) -> float:
        """Return the time of a step, s: the measured placement with the nearest replicas, interpolated over local batch sizes."""
        measured = _steps(self._folder / plan.application, plan.replicas)
        largest = measured[-1][0]
        local = max(plan.batch / plan.replicas, 1.0)
        parts = ceil(local / largest)
        step, sync = _between(measured, local / parts)
        return step + (parts - 1) * max(step - sync, 0.0)


@cache
def _curve(path: Path) -> list[tuple[float, float]]:
    with path.open(encoding="utf-8") as file:
        return [(float(r["iteration"]), float(r["metric"])) for r in csv.DictReader(file)]


@cache
def _steps(folder: Path, replicas: int) -> list[tuple[float, float, float]]:
    full, rest = divmod(replicas, GPUS_PER_NODE)
    shape = "".join(sorted([str(GPUS_PER_NODE)] * full + ([str(rest)] if rest else [])))
    with (folder / "placements.csv").open(encoding="utf-8") as file:
        found = [r for r in csv.DictReader(file) if r["placement"] == shape]
    if not found:
        with (folder / "scalability.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        nodes = full + bool(rest)
        near = min(
            {(int(r["num_nodes"]), int(r["num_replicas"])) for r in rows},
            key=lambda s: (abs(s[1] - replicas), abs(s[0] - nodes), s),
        )
        found = [r for r in rows if (int(r["num_nodes"]), int(r["num_replicas"])) == near]
    return sorted((float(r["local_bsz"]), float(r["step_time"]), float(r["sync_time"])) for r in found)


def _between(measured: list[tuple[float, float, float]], local: float) -> tuple[float, float]:
    at = bisect_left(measured, (local,))
    if at == 0:
        return measured[0][1], measured[0][2]
    if at == len(measured):
        return measured[-1][1], measured[-1][2]
    (x0, s0, y0), (x1, s1, y1) = measured[at - 1], measured[at]
    share = (local - x0) / (x1 - x0)
    return s0 + share * (s1 - s0), y0 + share * (y1 - y0)
