"""What a job leaves behind and takes up again: checkpoints, resuming, logging."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import re
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.answers import Answers
from schedmate.services.code_analyzer.resolve.facts import (
    CONFIGURED,
    DECLARED,
    GIVEN,
    Found,
    Setting,
    truthy,
)
from schedmate.services.code_analyzer.resolve.values import Call, Record, V

_CHECKPOINT_SAVES: Final = re.compile(
    r"(^|\.)(torch|paddle|fabric|accelerator|engine|manager|trainer)?\.?(save|save_checkpoint|save_state|save_model|save_pretrained|save_weights|save_adapter|save_ckpt|dump_checkpoint|async_save)$|ModelCheckpoint\w*$|CheckpointManager$|BackupAndRestore$|CheckpointCallback$|Checkpoint\.from_directory$|CheckpointConfig$|torch\.distributed\.checkpoint|dcp\.save|slim\.learning\.train$|Saver$|MonitoredTrainingSession$|ModelIO\.save$|SaveModelCallback$|push_to_hub$|exp_manager$|Saver\.save$|CheckpointSaver$"
)
_NOT_SAVES: Final = re.compile(
    r"^(np|numpy|plt|pd|Image|PIL|fig|matplotlib|json|pickle|cv2|torchaudio|torchvision|imageio|joblib|tokenizer|df)\.|figure|\.savefig$|_tokenizer|Tokenizer|Processor|Image\.save|utils\.save_image|save_config|processor|vocab"
)
_RESUMES: Final = re.compile(
    r"LightningCLI$|load_checkpoint$|load_state$|restore_checkpoint$|\.restore$|get_last_checkpoint$|BackupAndRestore$|latest_step$|latest_checkpoint$|load_latest\w*$|get_checkpoint$|resume\w*$|auto_resume\w*$|load_ckpt$|restore_latest\w*$|dcp\.load$|MonitoredTrainingSession$|slim\.learning\.train$|load_weights$|\.load_snapshot$|_load_snapshot$|find_latest\w*$|latest_ckpt$"
)


class Keeping(Answers):
    """Answers for the fields about what a job keeps and tells."""

    def saves(self) -> Found | None:  # noqa: C901, PLR0912 - cases of one kind, one after another
        """Whether checkpoints are written."""
        if self.serving:
            return None
        for setting in self.facts.of("saves"):
            leaf = setting.path.rsplit(".", 1)[-1].lower()
            if (
                leaf.endswith(("strategy", "enable_checkpointing", "enable_checkpoint"))
                and setting.rank <= CONFIGURED
                and not isinstance(setting.data, Record)
            ):
                if any(s.path.endswith("create_checkpoint_callback") and truthy(s.data) for s in self.facts.settings):
                    continue
                return Found(truthy(setting.data), setting.value.place)
        call = self._saving_call()
        if call is not None:
            return Found(True, call.place)
        strategy = next((c.kwargs["save_strategy"] for c in self.facts.events if "save_strategy" in c.kwargs), None)
        if strategy is not None and strategy.data == "no":
            return Found(False, strategy.place)
        if not self.facts.code or self._by_framework():
            found = next(
                (
                    s
                    for s in self.facts.of("saves")
                    if truthy(s.data)
                    and not isinstance(s.data, Call)
                    and not s.path.lower().endswith(("output_dir", "ckpt", "checkpoint"))
                    and s.rank <= CONFIGURED
                ),
                None,
            )
            if found is not None:
                return Found(True, found.value.place)
        default = self.default("saves_checkpoints")
        if default is not None:
            return default
        if self.facts.code:
            written = next(
                (
                    s
                    for s in self.facts.of("saves")
                    if truthy(s.data) and s.rank <= CONFIGURED and isinstance(s.data, str)
                ),
                None,
            )
            factory = next((c for c in self.facts.events if re.search(r"\.(fit|run)$", c.name)), None)
            if written is not None and factory is not None:
                return Found(True, written.value.place, Basis.INFERRED, 0.6)
            commented = self._commented(r"torch\.save|save_checkpoint|checkpoint")
            if commented is not None and (self._opaque_loop() or written is not None):
                return Found(True, commented, Basis.INFERRED, 0.6)
            if written is not None and self.facts.of("resume"):
                return Found(True, written.value.place, Basis.INFERRED, 0.6)
            return Found(False, self.facts.launch.place, Basis.INFERRED, 0.6)
        return None

    def _opaque_loop(self) -> bool:
        """Tell whether the training loop itself is not to be seen."""
        known = r"backward$|\.step$|apply_gradients$|\.minimize$|\.train_batch$" + (
            r"|\.fit$|\.train$|\.learn$" if self._by_framework() or self._of_keras() else ""
        )
        return not any(re.search(known, c.name) for c in self.facts.events)

    def _of_keras(self) -> bool:
        return self.framework is not None and self.framework.name in ("tensorflow", "keras")

    def _commented(self, pattern: str) -> Any:
        return next(
            (place for text, place in self.facts.mentions if text.startswith("#") and re.search(pattern, text)), None
        )

    def _by_framework(self) -> bool:
        return self.framework is not None and not self.framework.table.get("base")

    def _saving_call(self) -> Call | None:
        for call in self.facts.events:
            if _CHECKPOINT_SAVES.search(call.name) and not _NOT_SAVES.search(call.name):
                off = call.kwargs.get("enable_checkpointing")
                if off is not None and off.data is False:
                    continue
                return call
        return None

    def resume(self) -> Found | None:
        """Whether an interrupted job can go on from its checkpoint."""
        if self.serving:
            return None
        given = next(
            (
                s
                for s in self.facts.of("resume", known=False)
                if s.rank in (GIVEN, DECLARED, CONFIGURED)
                or (s.certain and s.inside and s.data is not None and s.path != "checkpoint")
            ),
            None,
        )
        if given is not None and not (self.facts.code and given.rank == CONFIGURED and not self._uses_resume()):
            return Found(True, given.value.place)
        call = next((c for c in self.facts.events if _RESUMES.search(c.name)), None)
        if call is not None:
            return Found(True, call.place)
        loads = next((c for c in self.facts.events if re.search(r"(torch|paddle)\.load$", c.name)), None)
        if loads is not None and self.facts.call(r"load_state_dict$|set_state_dict$") is not None:
            return Found(True, loads.place)
        kept = next(
            (
                c
                for c in self.facts.events
                for k, v in c.kwargs.items()
                if re.fullmatch(r"resume\w*|ckpt_path", k)
                and (
                    v.data is not None or (v.place is not None and v.place.line != c.place.line)
                )  # None of a flag's own
            ),
            None,
        )
        if kept is not None:
            return Found(True, kept.place)
        commented = self._commented(r"resum") if self.facts.code and self._opaque_loop() else None
        word = next((s for s in self.facts.settings if str(s.data) == "resume" or s.path.endswith(".resume")), None)
        if commented is not None or (word is not None and self.facts.code):
            return Found(True, commented or (word.value.place if word is not None else None), Basis.INFERRED, 0.6)
        default = self.default("resume_supported")
        if default is not None:
            return default
        script = self.default("resume_supported_script")
        if script is not None and not self.facts.code:
            return Found(True, script.place, Basis.LIBRARY_DEFAULT, 0.7)
        if self.facts.code:
            return Found(False, self.facts.launch.place, Basis.INFERRED, 0.6)
        return None

    def _uses_resume(self) -> bool:
        return (
            self.facts.call(r"(torch|paddle)\.load$|load_state_dict$|load_checkpoint$|restore") is not None
            or self._by_framework()
            or self._opaque_loop()
        )

    def logging(self) -> Found | None:
        """Where progress is written."""
        if self.serving:
            return None
        names: dict[str, Any] = {}
        self._log_flags(names)
        self._log_calls(names)
        self._log_console(names)
        if not names:
            return self.default("logging")
        place = next(iter(names.values()))
        return Found(tuple(names), place)

    def _log_flags(self, names: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - cases of one kind, one after another
        facts = self.facts
        quiet = False
        for setting in facts.of("report_to"):
            texts = [t.strip() for t in _log_words(setting) if t]
            if setting.rank > CONFIGURED and not re.search(
                r"Trainer|Arguments|Config|Accelerator|Fabric|train", setting.inside
            ):
                continue
            if texts and all(t.lower() in ("none", "false") for t in texts):
                quiet = True
                break
            for text in texts:
                name = _logger_name(text)
                if name is not None:
                    names.setdefault(name, setting.value.place)
            if names:
                break
        for meaning in ("wandb", "tensorboard", "visualdl", "mlflow"):
            yes = facts.true(meaning)
            named = [
                s
                for s in facts.of(meaning)
                if truthy(s.data)
                and s.rank <= CONFIGURED
                and not (s.rank == CONFIGURED and facts.code and isinstance(s.data, str) and meaning == "wandb")
            ]
            if named and not quiet and (yes is not None or meaning == "tensorboard") and not self._unused(meaning):
                names.setdefault(meaning, named[0].value.place)
        for variable, name in (("WANDB_PROJECT", "wandb"),):
            arg = facts.launch.environment.get(variable)
            if (
                arg is not None
                and not names
                and self.framework is not None
                and self.framework.name in ("composer", "transformers", "axolotl")
            ):
                names.setdefault(name, arg.place)
        for record in facts.configs:
            inner = record.entries.get("loggers")
            if inner is not None and isinstance(inner.data, Record):
                for key in inner.data.entries:
                    name = _logger_name(str(key))
                    if name is not None:
                        names.setdefault(name, inner.place)

    def _unused(self, meaning: str) -> bool:
        """A flag of the program's own counts only when the program uses what it names."""
        if not self.facts.code or self._by_framework():
            return False
        words = {
            "wandb": r"wandb",
            "tensorboard": r"tensorboard|SummaryWriter",
            "visualdl": r"visualdl|LogWriter",
            "mlflow": r"mlflow",
        }[meaning]
        return self.facts.call(words) is None and not any(re.search(words, i) for i in self.facts.imports)

    def _log_calls(self, names: dict[str, Any]) -> None:
        table = (
            (r"(^|\.)wandb\.init$|WandbLogger$|WandbCallback$|WandbMetricsLogger$|WandBLogger$", "wandb"), (r"SummaryWriter$|TensorBoardLogger$|callbacks\.TensorBoard$|TensorBoard$|create_file_writer$|create_default_writer$|TensorboardLogger$", "tensorboard"),
            (r"CSVLogger$", "csv"), (r"mlflow\.(start_run|log_metric\w*|autolog|set_experiment)$|MLFlowLogger$", "mlflow"), (r"CometLogger$|comet_ml\.Experiment$", "comet"), (r"neptune\.init\w*$|NeptuneLogger$", "neptune"), (r"LogWriter$", "visualdl"), (r"aim\.Run$|AimLogger$", "aim"), (r"clearml\.Task|Task\.init$", "clearml"), (r"swanlab\.init$", "swanlab"),
        )  # fmt: skip
        for pattern, name in table:
            call = next((c for c in self.facts.calls(pattern) if c.certain), None) or (
                self.facts.call(pattern) if name not in names else None
            )
            if call is not None and (call.certain or not names):
                names.setdefault(name, call.place)

    def _log_console(self, names: dict[str, Any]) -> None:
        facts = self.facts
        if not facts.code:
            console = facts.true("console")
            if (
                console is not None
                and self.framework is not None
                and self.framework.table.get("family") not in ("transformers", "diffusers", "lightning")
            ):
                default = self.framework.default("logging")
                if not names and default:
                    for name in default:
                        names.setdefault(name, console.value.place)
                elif not {"wandb"} & set(names) or self.framework.name in (
                    "timm",
                    "megatron-lm",
                    "fairseq",
                    "detectron2",
                    "paddleocr",
                    "litgpt",
                ):
                    names.setdefault("print", console.value.place)
            elif names and self.framework is not None and "print" in (self.framework.default("logging") or ()):
                names.setdefault("print", self.framework.place)
            elif names and self.framework is not None and self.framework.name == "diffusers" and "tensorboard" in names:
                names.setdefault("tqdm", self.framework.place)
            return
        if (
            self._by_framework()
            and self.framework is not None
            and self.framework.table.get("family") in ("transformers", "lightning")
            and names
        ):
            return
        self._own_console(names)

    def _own_console(self, names: dict[str, Any]) -> None:  # noqa: C901 - cases of one kind, one after another
        facts = self.facts
        shows = re.compile(r"\b(loss|step|epoch|iter|acc|sps|update)", re.IGNORECASE)
        for pattern, name in (
            (
                r"builtins\.print$|click\.echo$|accelerator\.print$|\.print$|typer\.echo$|rich\.print$|tf\.print$",
                "print",
            ),
            (
                r"(^|\.)(logging|logger|log|_logger|LOGGER)\.(info|debug|warning)$|getLogger\.info$|loguru\.logger\.info$|get_logger\.info$",
                "logging",
            ),
            (r"(^|\.)(tqdm|trange|auto\.tqdm|tqdm\.tqdm|tqdm_notebook)$", "tqdm"),
        ):
            calls = [c for c in facts.calls(pattern) if name == "tqdm" or _shows_progress(c, shows)]
            if calls:
                names.setdefault(name, calls[0].place)
        fit = next((c for c in facts.events if c.name.endswith(".fit") and "epochs" in c.kwargs), None)
        if fit is not None and (facts.framework is not None and facts.framework.name in ("tensorflow", "keras")):
            verbose = fit.kwargs.get("verbose")
            if verbose is None or verbose.data not in (0, "0"):
                names.setdefault("keras_bar", fit.place)
        if facts.call(r"ray\.train\.report$|train\.report$") is not None and not names:
            call = facts.call(r"train\.report$")
            names.setdefault("ray", call.place if call is not None else None)
        if not names or (set(names) == {"print"} and self._opaque_loop()):
            for pattern, name in (
                (r"(?i)tensorboard", "tensorboard"),
                (r"\blogging\b", "logging"),
                (r"\bprint(s|ed)?\b", "print"),
            ):
                place = self._commented(pattern)
                if place is not None and self._opaque_loop():
                    names.setdefault(name, place)
        elif self._opaque_loop() and self._commented(r"\bprint\(") is not None:
            names.setdefault("print", self._commented(r"\bprint\("))
        if not names and facts.call(r"slim\.learning\.train$") is not None:
            names.setdefault("print", facts.launch.place)


def _logger_name(text: str) -> str | None:
    lowered = text.lower()
    for word, name in (
        ("wandb", "wandb"),
        ("tensorboard", "tensorboard"),
        ("csv", "csv"),
        ("mlflow", "mlflow"),
        ("comet", "comet"),
        ("neptune", "neptune"),
        ("visualdl", "visualdl"),
        ("aim", "aim"),
        ("disklogger", "disk"),
        ("stdout", "print"),
        ("console", "print"),
        ("clearml", "clearml"),
        ("swanlab", "swanlab"),
        ("trackio", "trackio"),
    ):
        if word in lowered:
            return name
    return None


def _log_words(setting: Setting) -> list[str]:
    data = setting.data
    if isinstance(data, (list, tuple)):
        return [str(v.data) for v in data if isinstance(v, V) and isinstance(v.data, (str, bool))]
    if isinstance(data, str):
        return data.split(",")
    if isinstance(data, Call):
        return [data.name]
    return []


def _shows_progress(call: Call, shows: re.Pattern[str]) -> bool:
    texts = [str(a.data) for a in call.args if isinstance(a.data, str)]
    return bool(shows.search(" ".join(texts))) or len(call.args) > 1 or any("\x01" in t for t in texts)
