"""How a job runs: optimizer, precision, strategy, launcher, checkpoints, resuming, logging."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import re
from typing import Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.answers import Answers
from schedmate.services.code_analyzer.resolve.facts import (
    ASSIGNED,
    CALLED,
    CONFIGURED,
    Found,
    letters,
    text_of,
    truthy,
)
from schedmate.services.code_analyzer.resolve.values import Call, External, Record

_OPTIMIZERS: Final = re.compile(
    r"(^|\.)(?P<name>Adam|AdamW|SGD|RMSprop|RMSProp|Adagrad|AdaGrad|Adadelta|Adamax|NAdam|RAdam|LBFGS|SparseAdam|Rprop|ASGD|Momentum|Lamb|LAMB|Lion|Adafactor|FusedAdam|FusedLAMB|FusedSGD|"
    r"DeepSpeedCPUAdam|AdamW8bit|Adam8bit|PagedAdamW8bit|PagedAdamW|Lion8bit|LARS|Muon|Sophia|SophiaG|Shampoo|Adan|Prodigy|DAdaptAdam|DistributedFusedAdam|LambW|Ftrl|Nadam|DecoupledAdamW|CPUAdam|Novograd|NovoGrad|"
    r"adam|adamw|sgd|rmsprop|lion|adafactor|lamb|lars|adagrad|radam|yogi|nadam|novograd|fromage|noisy_sgd|adabelief)$"
)
_OPTIMIZER_LIBRARIES: Final = re.compile(
    r"optim|bitsandbytes|bnb|transformers|apex|deepspeed|keras|optax|paddle|timm|lion|lamb|tf\.|torch|flax|mindspore|^(Adam|AdamW|SGD|Lamb|Lion|RMSprop)$"
)
_NAMED_OPTIMIZER: Final = {"adamwtorch": "adamw", "adamwhf": "adamw", "adamwtorchfused": "adamw", "adamwtorchxla": "adamw", "adamwapexfused": "adamw", "fusedadam": "adam", "adamw8bit": "adamw_8bit", "adam8bit": "adam_8bit", "pagedadamw8bit": "paged_adamw_8bit", "pagedadamw32bit": "paged_adamw_32bit", "deepspeedcpuadam": "adam", "scalebyadam": "adam", "fusedlamb": "lamb", "distributedfusedadam": "adam", "adamwanyprecision": "adamw", "cpuadam": "adam", "fusedsgd": "sgd", "onebitadam": "onebitadam", "momentum": "momentum", "fusedadamw": "adamw", "decoupledadamw": "decoupled_adamw"}  # fmt: skip


class Running(Answers):
    """Answers for the fields about how a job runs."""

    # --- optimizer ---------------------------------------------------------------------------------------------------

    def optimizer(self) -> Found | None:
        """The optimizer that is built, else the one that is named, else the framework's own."""
        if self.serving:
            return None
        eight = self.facts.true("eightbit_adam")
        if eight is not None:
            return Found("adamw_8bit", eight.value.place)
        named = self._named_optimizer()
        built = self._built_optimizer()
        if built is not None and not (named is not None and self._of_deepspeed()):
            return built
        return named or self.default("optimizer")

    def _of_deepspeed(self) -> bool:
        return self.facts.call(r"deepspeed\.initialize$") is not None

    def _built_optimizer(self) -> Found | None:
        calls = [
            c
            for c in self.facts.events
            if (m := _OPTIMIZERS.search(c.name)) is not None
            and _OPTIMIZER_LIBRARIES.search(c.name)
            and (m["name"][0].isupper() or "optax" in c.name or "optim" in c.name)
        ]
        certain = [c for c in calls if c.certain] or calls
        for call in certain:
            if re.search(r"disc|critic|alpha|teacher", call.text) and len(certain) > 1:
                continue
            return Found(_optimizer_name(call.name.rsplit(".", 1)[-1]), call.place)
        compiled = self.facts.call(r"\.compile$")
        given = compiled.kwargs.get("optimizer") if compiled is not None else None
        if given is not None and isinstance(given.data, str):
            return Found(_optimizer_name(given.data), given.place)
        configured = self.facts.call(r"configure_optimizers$")
        return (
            Found("adamw", configured.place, Basis.INFERRED, 0.7)
            if configured is not None and "weight_decay" in _argument_words(configured)
            else None
        )

    def _named_optimizer(self) -> Found | None:
        for setting in self.facts.of("optimizer"):
            data = setting.data
            if isinstance(data, External):
                data = data.name.rsplit(".", 1)[-1]
            name = text_of(data)
            if name is None or len(name) > 80 or name.lower() in ("default", "none"):  # noqa: PLR2004 - no name is longer
                continue
            if setting.rank > CONFIGURED and not _OPTIMIZERS.search(name.lower()):
                continue
            return Found(_optimizer_name(name.rsplit(".", 1)[-1]), setting.value.place, setting.value.basis, 0.9)
        return None

    # --- precision ---------------------------------------------------------------------------------------------------

    def precision(self) -> Found | None:
        """The precision of training: flags, autocast, policies, else full precision where the code shows no other."""
        rules = (self._precision_flag, self._precision_named, self._precision_called)
        for rule in rules:
            found = rule()
            if found is not None:
                return found
        default = self.default("precision")
        if default is not None:
            return default
        if self.facts.code and not self.serving and self.framework is not None:
            return Found("fp32", self.facts.launch.place, Basis.INFERRED, 0.7)
        return None

    def _precision_flag(self) -> Found | None:
        for meaning, name in (("fp8", "fp8"), ("bf16", "bf16"), ("fp16", "fp16")):
            for setting in self.facts.of(meaning):
                if setting.data == "auto" and meaning != "bf16":
                    break
                if truthy(setting.data) and not isinstance(setting.data, Record) and setting.rank <= CONFIGURED:
                    if setting.data == "auto" and self._other_precision():
                        break
                    return Found(name, setting.value.place)
                break
        amp = self.facts.first("amp")
        if amp is not None and truthy(amp.data):
            named = _precision_name(str(amp.data)) if isinstance(amp.data, str) else None
            kind = self.facts.first("precision")
            other = _precision_name(str(kind.data)) if kind is not None else None
            if named is not None or other is not None:
                place = amp.value.place if named is not None or kind is None else kind.value.place
                return Found(named or other, place)
            return self._autocast() or Found("amp", amp.value.place)
        if amp is not None and amp.rank <= CONFIGURED and not self.facts.of("precision"):
            return Found("fp32", amp.value.place)
        return None

    def _other_precision(self) -> bool:
        return any(_precision_name(str(s.data)) not in (None, "bf16") for s in self.facts.of("precision"))

    def _precision_named(self) -> Found | None:
        auto = self._autocast() if self.facts.code else None
        for setting in self.facts.of("precision"):
            name = _precision_name(str(setting.data))
            if name is None or re.search(
                r"mu_dtype|optim|save|softmax|ckpt|checkpoint|kv|cast_dtype", f"{setting.path} {setting.inside}".lower()
            ):
                continue
            if (
                setting.inside
                and re.search(r"tensor|zeros|ones|array|arange|full|Dense|Linear$|autocast", setting.inside)
                and setting.rank > CONFIGURED
            ):
                continue
            if setting.rank > 0 and auto is not None and name == "fp32" and auto.value != "fp32":
                continue
            if setting.rank in (CALLED, ASSIGNED) and not setting.certain:
                continue
            if setting.rank == CALLED and re.search(
                r"Dense|Conv|layers|Embedding|asarray|autocast|astype", setting.inside
            ):
                continue
            return Found(name, setting.value.place, setting.value.basis, 0.9)
        arguments = next((s for s in self.facts.settings if s.path == "model_args" and isinstance(s.data, str)), None)
        inner = re.search(r"dtype=(\w+)", str(arguments.data)) if arguments is not None else None
        if inner is not None and arguments is not None:
            return Found(_precision_name(inner[1]), arguments.value.place)
        return None

    def _precision_called(self) -> Found | None:
        found = self._autocast()
        if found is not None:
            return found
        policy = self.facts.call(r"set_global_policy$|mixed_precision\.Policy$|set_policy$|set_dtype_policy$")
        if policy is not None and policy.args:
            name = _precision_name(str(policy.args[0].data))
            return Found(name, policy.place) if name is not None else None
        wrapper = next((s for s in self.facts.settings if str(s.data) == "AmpOptimWrapper"), None)
        if wrapper is not None:
            return Found("amp", wrapper.value.place)
        scaler = self.facts.call(r"GradScaler$")
        if scaler is not None and _enabled(scaler):
            return Found("fp16", scaler.place, Basis.EXPLICIT, 0.8)
        apex = self.facts.call(r"amp\.initialize$")
        if apex is not None:
            return Found("amp", apex.place)
        cast = self.facts.call(r"(\.(half|bfloat16|to_fp16|to_bf16))$")
        if cast is not None:
            return Found("fp16" if cast.name.endswith(("half", "fp16")) else "bf16", cast.place, Basis.EXPLICIT, 0.7)
        return None

    def _autocast(self) -> Found | None:
        for call in self.facts.calls(r"(^|\.)autocast$|amp\.auto_cast$"):
            if not _enabled(call):
                continue
            dtype = (
                call.argument(1, "dtype", "level")
                if call.args and isinstance(call.args[0].data, str) and call.args[0].data in ("cuda", "cpu")
                else call.kwargs.get("dtype", call.args[0] if call.args else None)
            )
            name = _precision_name(str(dtype.data)) if dtype is not None else None
            if name is not None and dtype is not None:
                return Found(name, call.place)
            if dtype is None or isinstance(dtype.data, (bool, str)):
                return Found("amp", call.place)
        return None

    # --- strategy and launcher ---------------------------------------------------------------------------------------

    def strategy(self) -> Found | None:
        """How the work is spread: model parallelism, ZeRO, FSDP, replicas, or not at all."""
        facts = self.facts
        parallel = self._model_parallel()
        if parallel is not None:
            return parallel
        for rule in (self._zero, self._fsdp, self._strategy_named, self._strategy_called):
            found = rule()
            if found is not None:
                if found.value in ("ddp", "fsdp", "dp") and facts.world == 1:
                    break
                return found
        if facts.world == 1 or (
            facts.world is None and not facts.launch.launchers and facts.code and facts.gpus is None
        ):
            return Found("none", facts.launch.place, Basis.INFERRED, 0.7)
        default = self.default("strategy")
        if default is not None and (default.value != "none" or facts.world in (None, 1)):
            return default
        if facts.world is not None and facts.world > 1 and not self.serving and self.framework is not None and self.framework.table.get("family") not in ("jax", "tensorflow", "keras"):  # fmt: skip
            return Found("ddp", facts.launch.place, Basis.INFERRED, 0.6)
        return None

    def _model_parallel(self) -> Found | None:
        parts: list[str] = []
        place = None
        for meaning, short in (
            ("tensor_parallel", "tp"),
            ("pipeline_parallel", "pp"),
            ("context_parallel", "cp"),
            ("expert_parallel", "ep"),
        ):
            setting = self.facts.number(meaning)
            if setting is not None and setting.data > 1:
                parts.append(f"{short}{int(setting.data)}")
                place = place or setting.value.place
        if not parts:
            return None
        return Found("+".join(parts if self.serving else [*parts, "dp"]), place)

    def _zero(self) -> Found | None:
        from schedmate.services.code_analyzer.resolve.configs import load  # noqa: PLC0415 - only here

        stage = self.facts.number("zero_stage", least=0)
        if stage is not None and (stage.rank in (0, CONFIGURED)):
            return Found(f"zero{int(stage.data)}" if stage.data else "ddp", stage.value.place)
        for setting in self.facts.of("deepspeed"):
            text = text_of(setting.data)
            named = re.search(r"(?:zero|z|stage)[_-]?([0123])", text.lower()) if text is not None else None
            record = (
                load(text, self.facts.files, self.facts.launch.folder) if text is not None and "." in text else None
            )
            inner = record.get("zero_optimization.stage") if record is not None else None
            if inner is not None:
                return Found(f"zero{inner.data}", inner.place)
            if named is not None:
                return Found(f"zero{named[1]}", setting.value.place)
        call = self.facts.call(r"DeepSpeed(Strategy|Plugin)$")
        level = call.kwargs.get("stage", call.kwargs.get("zero_stage")) if call is not None else None
        if call is not None:
            return Found(f"zero{level.data}" if level is not None else "deepspeed", call.place)
        return None

    def _fsdp(self) -> Found | None:
        for setting in self.facts.of("fsdp"):
            if (
                truthy(setting.data)
                and not isinstance(setting.data, Record)
                and setting.rank <= CONFIGURED
                and str(setting.data).upper() != "NO_SHARD"
            ):
                return Found("fsdp", setting.value.place)
        sharded = next(
            (
                s
                for s in self.facts.settings
                if s.path.split(".")[0] in ("fsdp_config", "fsdp") and s.rank <= CONFIGURED and "." in s.path
            ),
            None,
        )
        if sharded is not None:
            return Found("fsdp", sharded.value.place)
        call = self.facts.call(
            r"FullyShardedDataParallel$|(^|\.)FSDP$|fully_shard$|FSDPStrategy$|FullyShardedDataParallelPlugin$"
        )
        return Found("fsdp", call.place) if call is not None else None

    def _strategy_named(self) -> Found | None:
        for setting in self.facts.of("strategy"):
            name = text_of(setting.data)
            if name is None or setting.rank > CONFIGURED and not re.search(r"Trainer|Fabric", setting.inside):  # noqa: RUF021 - read as a whole
                continue
            short = _strategy_name(name)
            if short is not None:
                return Found(short, setting.value.place)
        return None

    def _strategy_called(self) -> Found | None:
        table = (
            (r"(?<!Worker)MirroredStrategy$", "mirrored"), (r"MultiWorkerMirroredStrategy$", "multi_worker_mirrored"), (r"TPUStrategy$", "tpu"), (r"ParameterServerStrategy$", "parameter_server"),
            (r"horovod|(^|\.)hvd\.DistributedOptimizer", "horovod"), (r"DistributedDataParallel$|(^|\.)DDP$|DDPStrategy$|prepare_model$", "ddp"), (r"(^|\.)(nn\.)?DataParallel$", "dp"),
            (r"jax\.pmap$|(^|\.)pmap$", "pmap"), (r"NamedSharding$|jax\.sharding|pjit$|shard_map$", "data_parallel"), (r"DeploymentConfig$", "data_parallel"),
        )  # fmt: skip
        for pattern, name in table:
            call = next((c for c in self.facts.calls(pattern) if c.certain), None)
            if call is not None:
                return Found(name, call.place)
        words = [
            (a.data, c.place)
            for c in self.facts.events
            if c.certain
            for a in c.args
            if isinstance(a.data, str) and a.data in ("ddp", "fsdp", "nccl")
        ]
        for word, place in words:
            return Found("ddp" if word in ("ddp", "nccl") else word, place, Basis.INFERRED, 0.7)
        return None

    def launcher(self) -> Found | None:
        """What starts the job's processes."""
        launch = self.facts.launch
        spawned = self.facts.call(r"(^|\.)(multiprocessing|mp)\.spawn$")
        names = [(n, p) for n, p in launch.launchers if n != "bsub"]
        table = self.framework.table if self.framework is not None else {}
        if any(re.search(r"submitit", f"{s.path}{s.data}") for s in self.facts.settings if s.path.startswith("hydra")):
            setting = next(
                s for s in self.facts.settings if s.path.startswith("hydra") and "submitit" in f"{s.path}{s.data}"
            )
            return Found("hydra_submitit", setting.value.place)
        forced = launch.environment.get("FORCE_TORCHRUN") or launch.environment.get("NPROC_PER_NODE")
        if launch.command is not None and forced is not None and truthy(forced.text):
            return Found("torchrun", forced.place)
        if names:
            return Found(names[-1][0], names[-1][1])
        if spawned is not None:
            return Found("mp.spawn", spawned.place)
        if launch.command is not None and launch.command != "python":
            return Found(table.get("launcher", launch.command), launch.place)
        if launch.notebook is not None:
            return Found("jupyter", launch.place, Basis.INFERRED)
        if "launcher" in table and self.framework is not None:
            return Found(table["launcher"], launch.place)
        return Found("python", launch.python or launch.place)

    # --- checkpoints and logs ----------------------------------------------------------------------------------------

    def grad_checkpointing(self) -> Found | None:
        """Whether activations are recomputed."""
        if self.serving:
            return None
        partial = any(
            "partition_activations" in s.path or s.path.startswith("activation_checkpointing.")
            for s in self.facts.settings
        )
        for setting in self.facts.of("grad_checkpointing"):
            data = setting.data
            if isinstance(data, (Call, Record)) or (setting.rank > CONFIGURED and not setting.certain):
                continue
            if setting.path.endswith("recompute_granularity") and setting.rank > 0 and not truthy(data):
                continue
            return Found(truthy(data), setting.value.place, setting.value.basis)
        call = self.facts.call(
            r"gradient_checkpointing_enable$|enable_gradient_checkpointing$|checkpoint\.checkpoint$|checkpoint_sequential$|apply_activation_checkpointing$|checkpoint_wrapper$|jax\.(checkpoint|remat)$|nn\.(remat|checkpoint)$|enable_recompute$|set_grad_checkpointing$|use_gradient_checkpointing$"
        )
        if call is not None:
            return Found(True, call.place)
        if partial:
            return None
        default = self.default("grad_checkpointing")
        if default is not None:
            return default
        if self.facts.code:
            return Found(False, self.facts.launch.place, Basis.INFERRED, 0.7)
        return None


def _optimizer_name(name: str) -> str:
    bare = letters(name)
    return _NAMED_OPTIMIZER.get(bare, name if "_" in name and bare not in _NAMED_OPTIMIZER else name.lower())


def _precision_name(text: str) -> str | None:
    lowered = text.lower()
    if re.search(r"fp8|float8|transformer-engine", lowered):
        return "fp8"
    if re.search(r"bf16|bfloat16", lowered):
        return "bf16"
    if re.search(r"fp16|float16|\bhalf\b|^16(-mixed|-true)?$|^amp_fp16$|^o[12]$", lowered):
        return "fp16"
    if re.search(r"tf32", lowered):
        return "tf32"
    if re.search(r"fp32|float32|^32(-true)?$|full|^no$|^none$|^single$", lowered):
        return "fp32"
    if re.search(r"^amp$|^mixed$|fp64|^64", lowered):
        return "fp64" if "64" in lowered else "amp"
    return None


def _strategy_name(name: str) -> str | None:
    lowered = name.lower()
    stage = re.search(r"(?:deepspeed|zero)[_-]?(?:stage)?[_-]?([123])", lowered)
    if stage is not None:
        return f"zero{stage[1]}"
    table = (
        ("fsdp", "fsdp"),
        ("ddp", "ddp"),
        ("no_c10d", "ddp"),
        ("c10d", "ddp"),
        ("multi_gpu", "ddp"),
        ("deepspeed", "deepspeed"),
        ("multi_worker_mirrored", "multi_worker_mirrored"),
        ("mirrored", "mirrored"),
        ("horovod", "horovod"),
        ("fully_sharded", "fsdp"),
        ("distributed", "ddp"),
    )
    if lowered == "dp":
        return "dp"
    return next((short for word, short in table if word in lowered), None)


def _enabled(call: Call) -> bool:
    value = call.kwargs.get("enabled", call.kwargs.get("enable"))
    return value is None or value.data is not False


def _argument_words(call: Call) -> str:
    return " ".join([*call.kwargs, *(str(a.place.line if a.place else "") for a in call.args)]) + " weight_decay" * any(
        isinstance(a.data, (tuple, list)) for a in call.args
    )
