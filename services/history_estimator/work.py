"""How much work a job states: steps, and of a step on one GPU the FLOPs and what is synchronised. From its source and published constants only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Final

from schedmate.services.history_estimator.jobs import Value
from schedmate.services.history_estimator.published import Data, Model, data_of, known_data, model_of, plain

TRAINING: Final = 3.0
"""Forward and backward together, in forward passes: the backward pass costs two (Kaplan et al. 2020, section 2.1)."""
BYTES_A_PARAMETER: Final = 4.0
SMALL_SIDE: Final = 64.0
STEM: Final = 16.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a job does. `flops` and `synced_bytes` are those of one step on one GPU; `kind` is that of the job."""

    steps: float
    flops: float
    synced_bytes: float
    across_nodes: bool
    kind: str


def work_of(workload: Mapping[str, Value], gpus: int) -> Work | None:
    """Return the work of a job on so many GPUs in all, None where its source does not state all that it takes."""
    family, name = _word(workload.get("model_family")), _word(workload.get("model_name"))
    model = model_of(name, family, number_of(workload.get("model_params")))
    data = data_of(_word(workload.get("dataset")))
    batch = _samples_a_step(workload, gpus)
    if model is None or batch is None:
        return None
    steps = steps_of(workload) or _steps(workload, data, batch * max(gpus, 1))
    if steps is None:
        return None
    synced = 2.0 * BYTES_A_PARAMETER * model.params * (gpus - 1) / gpus if gpus > 1 else 0.0
    nodes = number_of(workload.get("nodes")) or 1.0
    flops = TRAINING * forward_flops(model, data) * batch
    if not (isfinite(steps) and isfinite(flops) and isfinite(synced)):
        return None  # sizes that make no sense: a pace could not be fitted to them, and others' pace rests on it too
    return Work(steps, flops, synced, nodes > 1, kind_of(workload) or "")


def kind_of(workload: Mapping[str, Value]) -> str | None:
    """Return what kind of job it is: its model's name (else family) with its data set's, as far as that is known; None without a model."""
    model = _word(workload.get("model_name")) or _word(workload.get("model_family"))
    return _kind(model, _word(workload.get("dataset"))) if model is not None else None


@lru_cache(maxsize=4096)
def _kind(model: str, dataset: str | None) -> str | None:
    named = plain(model)
    return f"{named}/{known_data(dataset) or ''}" if named else None


def steps_of(workload: Mapping[str, object]) -> float | None:
    """Return the number of steps that a workload states."""
    told = (number_of(workload.get(name)) for name in ("total_steps", "max_steps"))
    return next((number for number in told if number is not None), None)


def forward_flops(model: Model, data: Data | None) -> float:
    """Return the FLOPs of one sample forward. A picture is no larger than its data set has it; a text or sound is as long as the data set says."""
    if model.kind == "picture":
        side = data.side if data is not None and data.side is not None else model.reference
        scaled = model.forward * (min(side, model.reference) / model.reference) ** 2
        return scaled * STEM if model.small_stem and side <= SMALL_SIDE else scaled
    if model.kind == "token":
        return model.forward * (data.tokens if data is not None and data.tokens is not None else model.reference)
    if model.kind == "second":
        return model.forward * (data.seconds if data is not None and data.seconds is not None else model.reference)
    return model.forward


def _samples_a_step(workload: Mapping[str, Value], gpus: int) -> float | None:
    """Return the samples that one GPU works through in a step, accumulation included."""
    whole = number_of(workload.get("global_batch_size"))
    if whole is not None:
        return whole / max(gpus, 1)
    one = number_of(workload.get("batch_size_per_device"))
    return one * (number_of(workload.get("grad_accum")) or 1.0) if one is not None else None


def _steps(workload: Mapping[str, Value], data: Data | None, batch: float) -> float | None:
    epochs = number_of(workload.get("epochs"))
    return epochs * max(data.samples / batch, 1.0) if epochs is not None and data is not None else None


def number_of(value: object) -> float | None:
    """Return a value that a source told as a positive finite number, None where it is none, or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) and number > 0 else None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
