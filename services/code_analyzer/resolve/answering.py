"""From facts to fields: one rule after another is asked; one that fails costs its own field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from schedmate.services.code_analyzer.resolve import frameworks
from schedmate.services.code_analyzer.resolve.datasets import Datasets
from schedmate.services.code_analyzer.resolve.facts import (
    Facts,
    Found,
    as_number,
)
from schedmate.services.code_analyzer.resolve.keeping import Keeping
from schedmate.services.code_analyzer.resolve.models import Models
from schedmate.services.code_analyzer.resolve.running import Running
from schedmate.services.code_analyzer.resolve.sizes import sizes
from schedmate.services.code_analyzer.resolve.tasks import Tasks
from schedmate.services.code_analyzer.resolve.values import HOLE, Place

T = TypeVar("T")
NUMBER_MAX: Final = 10**14
"""No count of anything in a job is larger."""
EPOCHS_MAX: Final = 10**6


# --- fields ----------------------------------------------------------------------------------------------------------


def answers_of(facts: Facts) -> dict[str, Found]:
    """Return the fields that the rules can tell, with what they rest on."""
    ask = _Asking(facts)
    out: dict[str, Found] = ask.one("sizes", lambda: sizes(facts)) or {}
    models: Models | None = ask.one("model", lambda: Models(facts))
    running, keeping = Running(facts, out), Keeping(facts, out)
    serves = facts.framework is not None and facts.framework.table.get("serving") and facts.framework.name != "lm-eval"
    found: dict[str, Found | None] = {
        "framework": frameworks.as_found(facts.framework), "optimizer": ask.one("optimizer", running.optimizer),
        "precision": ask.one("precision", running.precision), "strategy": ask.one("strategy", running.strategy),
        "launcher": ask.one("launcher", running.launcher), "gpus_per_node": facts.gpus, "nodes": facts.nodes,
        "grad_checkpointing": ask.one("grad_checkpointing", running.grad_checkpointing), "saves_checkpoints": ask.one("saves_checkpoints", keeping.saves),
        "resume_supported": ask.one("resume_supported", keeping.resume), "logging": ask.one("logging", keeping.logging),
    }  # fmt: skip
    if models is not None:
        told = models
        dataset: Found | None = None if serves else ask.one("dataset", Datasets(facts).dataset)
        found |= {
            "model_name": told.name, "dataset": dataset, "model_family": ask.one("model_family", told.family),
            "model_params": ask.one("model_params", told.parameters), "task": ask.one("task", lambda: Tasks(facts, told).task(dataset)),
        }  # fmt: skip
    out.update({name: value for name, value in found.items() if value is not None and value.value is not None})
    epochs = out.get("epochs")
    if epochs is not None and isinstance(epochs.value, (int, float)) and epochs.value > EPOCHS_MAX:
        del out["epochs"]
    where = facts.launch.place
    return {name: _clean(name, value, where) for name, value in out.items() if _usable(value.value)}


class _Asking:
    """Asks one rule after another; one that fails on input that nobody foresaw costs its own field, and is told."""

    def __init__(self, facts: Facts) -> None:
        self._files = facts.files

    def one(self, name: str, rule: Callable[[], T]) -> T | None:
        """Return what a rule tells, None where it fails."""
        try:
            return rule()
        except Exception as error:  # noqa: BLE001 - see the class
            self._files.missing(f"{name} could not be told ({type(error).__name__})")
            return None


def _usable(value: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0 <= value <= NUMBER_MAX
    if isinstance(value, str):
        return bool(value) and HOLE not in value
    return value is not None


def _clean(name: str, value: Found, where: Place) -> Found:
    number = (
        as_number(value.value) if name not in ("model_name", "dataset", "model_family", "framework", "task") else None
    )
    if number is not None and not isinstance(value.value, bool):
        return Found(number, value.place or where, value.basis, value.confidence)
    return Found(value.value, value.place or where, value.basis, value.confidence)
