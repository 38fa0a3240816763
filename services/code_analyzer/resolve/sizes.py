"""Batch sizes, accumulation, epochs and steps: what is given, and what follows from it."""

# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import math
import re
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import CALLED, CONFIGURED, Facts, Found, Setting, as_number
from schedmate.services.code_analyzer.resolve.lengths import well_known
from schedmate.services.code_analyzer.resolve.values import GLOBAL, PER_DEVICE, Call, V

_EVALUATION: Final = re.compile(r"val|test|eval|infer|predict", re.IGNORECASE)
_EPOCH: Final = re.compile(r"^_?(epoch|ep|e|epoch_idx|epoch_num|cur_epoch|current_epoch|i_epoch|epochs?|n_epoch)$")
_STEP: Final = re.compile(
    r"^_?(global_)?(step|steps|it|iter|iters|iteration|i_iter|itr|update|updates|num_updates|n_iter|step_num|global_step|global_steps|timestep|batch_idx_total|iter_num|t)$"
)
_LOADER: Final = re.compile(r"(?:^|\.)\w*(DataLoader|dataset_from_directory)$")


def sizes(facts: Facts) -> dict[str, Found]:
    """Return the fields about sizes that can be told."""
    return _Sizes(facts).run()


class _Sizes:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.out: dict[str, Found] = {}
        self.framework = facts.framework
        table = self.framework.table if self.framework is not None else {}
        self.serving = bool(table.get("serving"))
        self.shards = self._parallel()

    def run(self) -> dict[str, Found]:
        if not self.serving:
            self._accumulation()
        self._batches()
        if not self.serving:
            self._lengths()
            self._total()
        return self.out

    def _parallel(self) -> int:
        """Return over how many devices one copy of the model is spread."""
        product = 1
        for meaning in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
            setting = self.facts.number(meaning)
            if setting is not None and float(setting.data).is_integer():
                product *= int(setting.data)
        return product

    def _data_parallel(self) -> int | None:
        world = self.facts.world
        if world is None:
            return None
        return world // self.shards if world % self.shards == 0 and world >= self.shards else None

    def _default(self, key: str) -> Any:
        return self.framework.default(key) if self.framework is not None else None

    def _from(self, setting: Setting, basis: Basis | None = None) -> Found:
        return Found(
            setting.data, setting.value.place, basis or setting.value.basis, 0.95 if setting.rank <= CONFIGURED else 0.8
        )

    # --- accumulation ------------------------------------------------------------------------------------------------

    def _accumulation(self) -> None:
        setting = next(
            (s for s in self.facts.of("grad_accum") if s.value.role == PER_DEVICE), None
        ) or self.facts.number("grad_accum")
        if setting is not None and as_number(setting.data) is not None:
            number = as_number(setting.data)
            self.out["grad_accum"] = Found(number, setting.value.place, setting.value.basis, 0.95)

    def _fill_accumulation(self) -> None:
        if "grad_accum" in self.out:
            return
        per, whole, parallel = (
            self.out.get("batch_size_per_device"),
            self.out.get("global_batch_size"),
            self._data_parallel(),
        )
        if (
            per is not None
            and whole is not None
            and parallel
            and per.value
            and whole.value % (per.value * parallel) == 0
            and self._both_given
        ):
            self.out["grad_accum"] = Found(whole.value // (per.value * parallel), per.place, Basis.COMPUTED, 0.9)
            return
        default = self._default("grad_accum")
        if default is not None and self.framework is not None:
            self.out["grad_accum"] = Found(default, self.framework.place, Basis.LIBRARY_DEFAULT, 0.8)
        elif self.facts.code:
            self.out["grad_accum"] = Found(1, self.facts.launch.place, Basis.INFERRED, 0.7)

    # --- batch sizes -------------------------------------------------------------------------------------------------

    def _batches(self) -> None:
        facts = self.facts
        per, whole, plain = facts.number("batch_per_device"), facts.number("batch_global"), self._plain()
        self._both_given = False
        if plain is not None:
            role = plain.value.role
            if role == PER_DEVICE and per is None:
                per = plain
            elif role == GLOBAL and whole is None:
                whole = plain
                per = per or self._same_source(plain)
            elif per is None and whole is None:
                per, whole = (None, plain) if self._is_global(plain) else (plain, None)
            elif per is None and whole is not None and whole.data != plain.data and plain.rank <= whole.rank:
                per = plain
            elif whole is None and per is not None and plain.data > per.data and self._deepspeed(plain):
                whole = plain
        if per is None and whole is None:
            self._default_batch()
            self._fill_accumulation()
            return
        self._both_given = per is not None and whole is not None
        if per is not None:
            self.out["batch_size_per_device"] = self._from(per)
        if whole is not None:
            self.out["global_batch_size"] = self._from(whole)
        self._fill_accumulation()
        self._derive()

    def _same_source(self, plain: Setting) -> Setting | None:
        """Return the per-device number that a global one was made of."""
        found = [
            s
            for s in self.facts.of("batch_any", "batch_per_device")
            if s.value.role != GLOBAL and as_number(s.data) and s.path != plain.path
        ]
        return found[0] if found else None

    def _plain(self) -> Setting | None:
        """Return the batch size whose name does not tell whether it is per device: as it is used, then as it is given."""
        facts = self.facts
        candidates = [s for s in facts.of("batch_any") if as_number(s.data) is not None]
        with_role = [s for s in candidates if s.value.role in (PER_DEVICE, GLOBAL) and s.certain]
        if with_role:
            best = next((s for s in with_role if s.value.role == PER_DEVICE), with_role[0])
            return Setting(
                best.path,
                V(as_number(best.data), best.value.place, best.value.basis, best.value.role),
                best.rank,
                best.order,
            )
        used = self._used()
        if used is not None:
            return used
        if not candidates:
            return None
        setting = candidates[0]
        return Setting(
            setting.path,
            V(as_number(setting.data), setting.value.place, setting.value.basis, setting.value.role),
            setting.rank,
            setting.order,
        )

    def _used(self) -> Setting | None:
        """Return the batch size that the training loader or `fit` is given."""
        for call in self.facts.events:
            loads = _LOADER.search(call.name)
            if not loads and not call.name.endswith((".fit", "data.Dataset.batch", "?.batch")):
                continue
            words = f"{call.text} {_names(call)}"
            if _EVALUATION.search(words):
                continue
            size = call.kwargs.get("batch_size")
            if size is None and loads and call.name.endswith("DataLoader") and len(call.args) > 1:
                size = call.args[1]
            number = as_number(size.data) if size is not None else None
            if size is not None and number is not None:
                return Setting("batch_size", V(number, size.place or call.place, size.basis, size.role), CALLED, 0)
        return None

    def _is_global(self, setting: Setting) -> bool:
        table = self.framework.table if self.framework is not None else {}
        if self._deepspeed(setting):
            return True
        if self.facts.world == 1 or setting.value.role == PER_DEVICE:
            return False
        if self.facts.call(r"(^|\.)nn\.DataParallel$|torch\.nn\.DataParallel$") is not None:
            return True
        if table.get("batch") == "global" and self.facts.call(r"horovod|(^|\.)hvd\.") is None:
            return (
                self.facts.code is False
                or self.framework is None
                or self.framework.name not in ("tensorflow", "keras", "jax")
                or self._jointly()
            )
        return False

    def _jointly(self) -> bool:
        """Tell whether one process drives several devices, so that its batch is shared among them."""
        return (
            self.facts.call(r"MirroredStrategy|TPUStrategy|DataParallel|jax\.(pmap|jit)|pmap$|shard|Mesh") is not None
        )

    @staticmethod
    def _deepspeed(setting: Setting) -> bool:
        return setting.path == "train_batch_size" and setting.rank == CONFIGURED

    def _default_batch(self) -> None:
        if self.facts.of("batch_tokens"):
            return
        for key, field in (("batch", "batch_size_per_device"), ("global_batch", "global_batch_size")):
            value = self._default(key)
            if value is not None and self.framework is not None:
                self.out[field] = Found(value, self.framework.place, Basis.LIBRARY_DEFAULT, 0.8)
        self._fill_accumulation()
        nominal = self._default("nominal_batch")
        if nominal is not None and "global_batch_size" in self.out:
            self.out["grad_accum"] = Found(
                max(1, round(nominal / self.out["global_batch_size"].value)),
                self.framework.place if self.framework else None,
                Basis.COMPUTED,
                0.7,
            )
        self._derive()

    def _derive(self) -> None:
        per, whole = self.out.get("batch_size_per_device"), self.out.get("global_batch_size")
        parallel, accumulation = self._data_parallel(), self.out.get("grad_accum")
        steps = accumulation.value if accumulation is not None else 1
        if parallel is None or not isinstance(steps, (int, float)) or steps <= 0:
            return
        asked_only = (
            self.facts.gpus is not None and self.facts.gpus.place is not None and self.facts.gpus.place.file == "job"
        )
        if asked_only and not self.facts.launch.launchers and parallel > 1 and not self.facts.code:
            return  # the job asks for several devices, and nothing says that its program uses them all
        if whole is None and per is not None and (not self.serving or parallel == 1):
            self.out["global_batch_size"] = Found(
                per.value * parallel * steps, per.place, Basis.COMPUTED if parallel * steps != 1 else per.basis, 0.9
            )
        elif per is None and whole is not None:
            nominal = self._default("nominal_batch")
            parts = parallel * (1 if nominal else steps)
            if whole.value % parts == 0 or nominal:
                self.out["batch_size_per_device"] = Found(
                    whole.value // parts, whole.place, Basis.COMPUTED if parts != 1 else whole.basis, 0.85
                )

    # --- epochs and steps --------------------------------------------------------------------------------------------

    def _lengths(self) -> None:
        self._durations()
        steps = self._steps()
        epochs = self._epochs()
        if steps is not None and as_number(steps.value):
            self.out.setdefault("max_steps", steps)
        limit = self.out.get("max_steps")
        if epochs is not None and not (limit is not None and self._steps_win(epochs, limit)):
            self.out.setdefault("epochs", epochs)

    def _durations(self) -> None:
        setting = self.facts.first("max_duration")
        found = re.fullmatch(r"(\d[\d_]*)(ba|ep)", str(setting.data)) if setting is not None else None
        if found is not None and setting is not None:
            key = "max_steps" if found[2] == "ba" else "epochs"
            self.out[key] = Found(int(found[1].replace("_", "")), setting.value.place)

    def _steps_win(self, epochs: Found, limit: Found) -> bool:
        """Tell whether the step limit makes the epochs void: in Hugging Face's trainers, and where the epochs are a default."""
        del limit
        name = self.framework.name if self.framework is not None else ""
        family = str(self.framework.table.get("family", "")) if self.framework is not None else ""
        return (
            name == "transformers"
            or family == "transformers"
            or name in ("diffusers", "paddlenlp")
            or epochs.basis is Basis.LIBRARY_DEFAULT
        )

    def _epochs(self) -> Found | None:
        table = self.framework.table if self.framework is not None else {}
        if table.get("task") == "reinforcement_learning":
            return None
        loop = self._loop(_EPOCH)
        if loop is not None:
            return loop
        tuned = self.facts.call(r"\.(fine_tune|fit_one_cycle|fit_flat_cos)$")
        turns = tuned.argument(0, "epochs", "n_epoch") if tuned is not None else None
        if turns is not None and as_number(turns.data):
            return Found(as_number(turns.data), turns.place)
        fit = next(
            (
                c
                for c in self.facts.events
                if c.name.endswith(".fit") and "epochs" in c.kwargs and as_number(c.kwargs["epochs"].data)
            ),
            None,
        )
        if fit is not None:
            value = fit.kwargs["epochs"]
            return Found(as_number(value.data), value.place or fit.place, value.basis)
        for setting in self.facts.of("epochs", known=False):
            if setting.value.known and setting.data is None:
                return None
            number = as_number(setting.data)
            if number is not None and number > 0:
                return self._from(
                    Setting(setting.path, V(number, setting.value.place, setting.value.basis), setting.rank, 0)
                )
            if number is not None:
                return None
        default = self._default("epochs")
        if default is not None and self.framework is not None:
            return Found(default, self.framework.place, Basis.LIBRARY_DEFAULT, 0.8)
        return None

    def _steps(self) -> Found | None:
        loop = self._loop(_STEP)
        if (
            loop is not None
            and "max_steps" not in self.out
            and not (self._loop(_EPOCH) is not None and not self.facts.of("max_steps"))
        ):
            named = self.facts.number("max_steps", "steps_weak")
            return None if self._products(loop) and named is None else loop
        strong = self.facts.number("max_steps")
        if strong is not None:
            return self._from(strong)
        weak = self.facts.number("steps_weak", least=10)
        if weak is not None and self._loop(_EPOCH) is None and not self.facts.of("epochs") and self.framework is not None and self.framework.table.get("task") != "reinforcement_learning":  # fmt: skip
            return self._from(weak)
        return None

    def _products(self, loop: Found) -> bool:
        """Tell whether a loop's bound was computed from epochs, so that it is a total and no limit."""
        epochs = self.facts.number("epochs")
        return (
            epochs is not None
            and loop.basis is Basis.COMPUTED
            and loop.value % epochs.data == 0
            and loop.value != epochs.data
        )

    def _loop(self, pattern: re.Pattern[str]) -> Found | None:
        loops = [lo for lo in self.facts.loops if pattern.match(lo.name) and as_number(lo.count.data)]
        if not loops:
            return None
        certain = [lo for lo in loops if lo.certain] or loops
        outer = min(certain, key=lambda lo: lo.depth)
        return Found(as_number(outer.count.data), outer.count.place or outer.place, outer.count.basis, 0.9)

    def _total(self) -> None:
        limit = self.out.get("max_steps")
        epochs = self.out.get("epochs")
        if limit is not None:
            if not (self.facts.of("batch_tokens") and epochs is not None):
                self.out["total_steps"] = Found(limit.value, limit.place, limit.basis, limit.confidence)
            return
        samples, whole = self.facts.number("train_samples"), self.out.get("global_batch_size")
        if samples is not None and whole is not None and whole.value:
            self.out["total_steps"] = Found(math.ceil(samples.data / whole.value), samples.value.place, Basis.COMPUTED)
            return
        counted = self._counted()
        if counted is not None:
            self.out["total_steps"] = counted

    def _counted(self) -> Found | None:
        """Return the steps that follow from epochs and a data set whose length is known."""
        epochs = self.out.get("epochs")
        named = [
            s for s in self.facts.of("max_steps") if s.value.basis is Basis.COMPUTED and as_number(s.data) and s.certain
        ]
        loop = self._loop(_STEP)
        alone = self._loop(_EPOCH) is None  # inside a loop over epochs, a loop over steps counts those of one
        if loop is not None and alone and loop.basis is Basis.COMPUTED and self._products(loop):
            return Found(loop.value, loop.place, Basis.COMPUTED)
        total = next((s for s in self.facts.settings if re.fullmatch(r"(.*\.)?(total|total_steps|num_training_steps|max_train_steps|t_total|t_max)", s.path.lower()) and s.certain and as_number(s.data) and s.value.basis is Basis.COMPUTED), None)  # fmt: skip
        if total is not None and epochs is not None:
            return Found(as_number(total.data), total.value.place, Basis.COMPUTED)
        if epochs is None or named:
            return Found(as_number(named[0].data), named[0].value.place, Basis.COMPUTED) if named else None
        fit = next(
            (
                c
                for c in self.facts.events
                if c.name.endswith(".fit") and as_number(c.kwargs.get("steps_per_epoch", V(None)).data)
            ),
            None,
        )
        if fit is not None:
            return Found(as_number(fit.kwargs["steps_per_epoch"].data) * epochs.value, fit.place, Basis.COMPUTED, 0.85)
        inner = [
            lo
            for lo in self.facts.loops
            if lo.depth == 1 and lo.certain and as_number(lo.count.data) and not _EPOCH.match(lo.name)
        ]
        accumulation = self.out.get("grad_accum")
        steps = accumulation.value if accumulation is not None else 1
        if inner and steps:
            return Found(
                int(epochs.value * max(1, as_number(inner[0].count.data) or 0) // steps),
                epochs.place,
                Basis.COMPUTED,
                0.8,
            )
        if (
            self.facts.call(r"torch_geometric|ogb\.") is not None
            and self.facts.call(r"DataLoader|Loader$|Sampler$") is None
            and self.facts.code
        ):
            return Found(epochs.value, epochs.place, Basis.COMPUTED, 0.7)
        return self._by_trainer(epochs.value, steps)

    def _by_trainer(self, epochs: float, steps: float) -> Found | None:
        """Return the steps of a trainer that makes its own loader of a data set."""
        trainer = self.facts.call(r"(^|\.)\w*Trainer$")
        given = trainer.argument(-1, "train_dataset") if trainer is not None else None
        per, world = self.out.get("batch_size_per_device"), self._data_parallel()
        if given is None or not isinstance(given.data, Call) or per is None or world is None:
            return None
        samples = given.data.attributes.get("__len__") or well_known(given.data)
        count = as_number(samples.data) if samples is not None else None
        if count is None:
            return None
        batches = math.ceil(count / (per.value * world))
        return Found(math.ceil(max(1, batches // steps) * epochs), given.place, Basis.COMPUTED, 0.8)


def _names(call: Call) -> str:
    first = call.argument(0, "dataset", "directory", "x")
    data = first.data if first is not None else None
    if isinstance(data, Call):
        key = data.attributes.get("__key__")
        return f"{data.text} {key.data if key is not None else ''}"
    return data if isinstance(data, str) and "train" not in data else ""
