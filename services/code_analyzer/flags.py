"""Well-known names of flags, arguments and constants, and the field that each gives. Data, not judgement about one program."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from schedmate.schemas.events import WorkloadValue

Kind = Literal["count", "text", "switch", "precision", "presence", "logging"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name means. `loose` names mean it only as a flag of the command line, not anywhere in code."""

    field: str
    kind: Kind
    confidence: float = 0.9
    loose: bool = False


def _named(field: str, kind: Kind, names: str, confidence: float = 0.9, *, loose: bool = False) -> dict[str, Meaning]:
    return {name: Meaning(field, kind, confidence, loose) for name in names.split()}


MEANINGS: Final[dict[str, Meaning]] = {
    **_named("epochs", "count", "epochs num_epochs num_train_epochs max_epochs n_epochs train_epochs nepochs total_epochs max_train_epochs number_of_epochs"),
    **_named("epochs", "count", "epoch max_epoch", 0.7, loose=True),
    **_named("max_steps", "count", "max_steps num_steps train_steps max_train_steps total_steps max_iters train_iters num_iters max_iterations num_iterations max_update max_updates training_steps num_train_steps total_timesteps n_timesteps num_training_steps"),
    **_named("max_steps", "count", "steps iterations iters niter n_steps updates", 0.75, loose=True),
    **_named("batch_size_per_device", "count", "per_device_train_batch_size micro_batch_size train_micro_batch_size_per_gpu batch_size_per_gpu per_gpu_batch_size per_gpu_train_batch_size device_batch_size local_batch_size", 0.95),
    **_named("batch_size_per_device", "count", "batch_size train_batch_size batchsize", 0.7),
    **_named("batch_size_per_device", "count", "bs batch b", 0.6, loose=True),
    **_named("global_batch_size", "count", "global_batch_size total_batch_size effective_batch_size"),
    **_named("grad_accum", "count", "gradient_accumulation_steps grad_accum grad_accum_steps accumulate_grad_batches accum_steps accumulation_steps accum_iter gradient_accumulation update_freq"),
    **_named("model_name", "text", "model_name_or_path model_name pretrained_model_name_or_path base_model model_id"),
    **_named("model_name", "text", "model arch architecture backbone net network", 0.75, loose=True),
    **_named("dataset", "text", "dataset_name dataset_path dataset_id"),
    **_named("dataset", "text", "dataset data data_path data_dir train_file train_data data_root dataset_dir datapath", 0.7, loose=True),
    **_named("optimizer", "text", "optimizer optim optimizer_name optimizer_type", 0.85, loose=True),
    **_named("optimizer", "text", "opt", 0.6, loose=True),
    **_named("precision", "precision", "mixed_precision amp_dtype torch_dtype"),
    **_named("precision", "precision", "dtype precision", 0.8, loose=True),
    **_named("precision", "switch", "fp16 bf16 amp use_amp half", 0.85),
    **_named("grad_checkpointing", "switch", "gradient_checkpointing grad_checkpointing activation_checkpointing checkpoint_activations use_gradient_checkpointing"),
    **_named("saves_checkpoints", "presence", "save_every save_steps save_interval save_freq save_frequency checkpoint_every ckpt_every checkpoint_interval checkpoint_dir ckpt_dir save_dir checkpoint_freq save_checkpoint checkpoint_path", 0.75),
    **_named("resume_supported", "presence", "resume resume_from resume_from_checkpoint auto_resume load_checkpoint restore resume_path resume_ckpt continue_training"),
    **_named("logging", "logging", "report_to log_with", 0.85),
    **_named("gpus_per_node", "count", "num_gpus ngpus gpus_per_node n_gpus ngpu nproc_per_node", 0.85, loose=True),
    **_named("nodes", "count", "num_nodes nnodes", 0.85, loose=True),
}  # fmt: skip

_PRECISIONS: Final = {
    "bf16": "bf16", "bfloat16": "bf16", "bf16-mixed": "bf16", "bf16_mixed": "bf16", "torch.bfloat16": "bf16",
    "fp16": "fp16", "float16": "fp16", "16": "fp16", "16-mixed": "fp16", "half": "fp16", "torch.float16": "fp16",
    "fp32": "fp32", "float32": "fp32", "32": "fp32", "32-true": "fp32", "no": "fp32", "torch.float32": "fp32", "float": "fp32",
    "amp": "amp", "fp8": "fp8",
}  # fmt: skip
_FALSE: Final = frozenset({"false", "no", "0", "off", "none", "null", ""})
_COUNT: Final = re.compile(r"[0-9][0-9_]{0,17}(?:\.0{0,6})?(?:[eE]\+?[0-9]{1,2})?$")


def normal(name: str) -> str:
    """Return a name without dashes and dots in front: `--trainer.max-epochs` is `max_epochs`."""
    return name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()


def meaning_of(name: str) -> Meaning | None:
    """Return what a name means, or None."""
    return MEANINGS.get(normal(name))


def value_of(name: str, meaning: Meaning, raw: object) -> WorkloadValue:
    """Return a raw value as the field has it, or None when it is no value of that kind.

    `raw` is text (from a command line), a literal (from code), or True for a flag that stands alone.
    """
    match meaning.kind:
        case "count":
            value: WorkloadValue = _count(raw)
        case "text":
            value = raw.strip() if isinstance(raw, str) and raw.strip().lower() not in _FALSE else None
        case "precision":
            value = _PRECISIONS.get(str(raw).strip().lower())
        case "switch":
            value = _switch(name, meaning, on=is_true(raw))
        case "presence":
            value = True if meaning.field == "resume_supported" else is_true(raw) or None
        case "logging":
            value = _loggers(raw)
    return value


def _switch(name: str, meaning: Meaning, *, on: bool) -> WorkloadValue:
    if meaning.field != "precision":
        return on
    word = normal(name).removeprefix("use_")
    return _PRECISIONS.get(word, word) if on else None


def is_true(raw: object) -> bool:
    """Tell whether a switch is on."""
    if isinstance(raw, str):
        return raw.strip().lower() not in _FALSE
    return bool(raw)


def _count(raw: object) -> int | float | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        text = raw.strip()
        if _COUNT.match(text) is None:
            return None
        raw = float(text.replace("_", ""))
    if not isinstance(raw, int | float) or not math.isfinite(raw) or raw <= 0 or raw > 1e15:  # noqa: PLR2004 - no count of anything
        return None
    return int(raw) if float(raw).is_integer() else None


def _loggers(raw: object) -> tuple[str, ...] | None:
    if isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list | tuple):
        return None
    names = [str(r).strip().lower() for r in raw]
    return tuple(sorted({n for n in names if n and n not in _FALSE and n != "all"})) or None
