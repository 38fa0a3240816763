"""What a Python file's syntax tree shows of a workload: imports, well-known calls, constants. Read, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.arguments import Argument, declared, literal
from schedmate.services.code_analyzer.flags import meaning_of, value_of
from schedmate.services.code_analyzer.found import Findings, Origin, Place

NODES_MAX: Final = 200_000

FRAMEWORKS: Final = (
    # the first that is imported names the framework: what sits on top of another comes before it
    ("llamafactory", "llamafactory"), ("axolotl", "axolotl"), ("megatron", "megatron-lm"), ("nemo", "nemo"), ("mmdet", "mmdetection"),
    ("mmseg", "mmsegmentation"), ("mmengine", "mmengine"), ("mmcv", "mmcv"), ("detectron2", "detectron2"), ("ultralytics", "ultralytics"),
    ("fairseq", "fairseq"), ("stable_baselines3", "stable-baselines3"), ("trl", "trl"), ("diffusers", "diffusers"),
    ("sentence_transformers", "sentence-transformers"), ("lightning", "lightning"), ("pytorch_lightning", "lightning"),
    ("fastai", "fastai"), ("timm", "timm"), ("deepspeed", "deepspeed"), ("accelerate", "accelerate"), ("transformers", "transformers"),
    ("paddle", "paddle"), ("mindspore", "mindspore"), ("jax", "jax"), ("flax", "jax"), ("tensorflow", "tensorflow"), ("keras", "keras"),
    ("xgboost", "xgboost"), ("torch", "pytorch"), ("mxnet", "mxnet"),
)  # fmt: skip
LOGGERS: Final = {
    "wandb": "wandb", "tensorboard": "tensorboard", "tensorboardX": "tensorboard", "torch.utils.tensorboard": "tensorboard",
    "mlflow": "mlflow", "comet_ml": "comet", "neptune": "neptune", "clearml": "clearml", "aim": "aim", "swanlab": "swanlab", "tqdm": "tqdm",
}  # fmt: skip
_OPTIMIZERS: Final = frozenset(
    {
        "sgd",
        "adam",
        "adamw",
        "adagrad",
        "rmsprop",
        "adadelta",
        "adamax",
        "nadam",
        "radam",
        "lamb",
        "lars",
        "lion",
        "adafactor",
        "rprop",
        "asgd",
        "lbfgs",
        "fusedadam",
        "fusedlamb",
        "adamw8bit",
        "adam8bit",
    }
)
_OPTIMIZER_HOMES: Final = frozenset(
    {"optim", "optimizers", "torch", "bnb", "apex", "optimization", "deepspeed", "transformers", "optax", "ops"}
)
_SAVES: Final = frozenset(
    {
        "save_checkpoint",
        "save_pretrained",
        "save_state",
        "ModelCheckpoint",
        "save_weights",
        "CheckpointManager",
        "CheckpointCallback",
    }
)
_LOADS: Final = frozenset({"load_state_dict", "load_checkpoint", "load_state", "load_weights", "restore"})
_STRATEGIES: Final = {
    "DistributedDataParallel": "ddp",
    "DDP": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "FSDP": "fsdp",
    "DataParallel": "dp",
    "MirroredStrategy": "mirrored",
}


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file: its constants, the arguments that it declares, and the names that it imports with their lines."""

    path: str
    tree: ast.Module
    constants: Mapping[str, object]
    arguments: tuple[Argument, ...]
    imports: Mapping[str, int]


class UnreadableSourceError(Exception):
    """The file is no Python that this version can read."""


def parse(path: str, text: str) -> Module:
    """Return a file's syntax tree and what it binds.

    Raises:
        UnreadableSourceError: a syntax error, or nested beyond reason.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UnreadableSourceError(f"{path}: syntax error in line {error.lineno}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableSourceError(f"{path}: {type(error).__name__}") from error
    constants: dict[str, object] = {}
    for statement in tree.body:
        for name, value, _ in _bindings(statement):
            constants[name] = literal(value, constants)
    return Module(path, tree, constants, declared(tree, constants), _imports(tree))


def look(module: Module, findings: Findings, *, entry: bool) -> None:
    """Add what a file shows. Its imports, constants and calls count; `entry` is the file that is launched."""
    _look_at_imports(module, findings)
    if entry:
        _look_at_constants(module, findings)
    for node in _nodes(module.tree):
        if isinstance(node, ast.Call):
            _look_at_call(node, module, findings)


def local_imports(module: Module) -> tuple[str, ...]:
    """Return the files that a file may import from its own tree, as paths relative to it."""
    return tuple(f"{name.replace('.', '/')}{end}" for name in module.imports for end in (".py", "/__init__.py"))


# --- parts -----------------------------------------------------------------------------------------------------------


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr, int]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value, statement.lineno
    elif (
        isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None
    ):
        yield statement.target.id, statement.value, statement.lineno


def _imports(tree: ast.Module) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.setdefault(node.module, node.lineno)
            for alias in node.names:
                found.setdefault(f"{node.module}.{alias.name}", node.lineno)
    return found


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    for count, node in enumerate(ast.walk(tree)):
        if count >= NODES_MAX:
            return
        yield node


def _look_at_imports(module: Module, findings: Findings) -> None:
    roots = {name.partition(".")[0]: line for name, line in reversed(list(module.imports.items()))}
    for rank, (package, framework) in enumerate(FRAMEWORKS):
        if package in roots:
            findings.add(
                "framework", framework, Origin.SIGN, Place(module.path, roots[package]), 0.85 - rank * 0.001
            )  # fmt: skip
            break
    for package, logger in LOGGERS.items():
        if package in module.imports:
            findings.add("logging", (logger,), Origin.SIGN, Place(module.path, module.imports[package]), 0.8)


def _look_at_constants(module: Module, findings: Findings) -> None:
    for statement in ast.walk(module.tree):
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        for name, value, line in _bindings(statement):
            _add_named(
                name, literal(value, module.constants), Origin.CONSTANT, Place(module.path, line), 0.75, findings
            )


def _add_named(name: str, value: object, origin: Origin, place: Place, ceiling: float, findings: Findings) -> None:
    """Add a literal that stands under a well-known name; loose names mean something on a command line only."""
    meaning = meaning_of(name)
    if meaning is None or meaning.loose or value is None:
        return
    findings.add(
        meaning.field, value_of(name, meaning, value), origin, place, min(meaning.confidence, ceiling)
    )  # fmt: skip


def _look_at_call(node: ast.Call, module: Module, findings: Findings) -> None:
    path = _dotted(node.func)
    if not path:
        return
    name, home = path[-1], path[-2] if len(path) > 1 else ""
    place = Place(module.path, node.lineno)
    if name != "add_argument":
        for keyword in node.keywords:
            if keyword.arg is not None:
                value = literal(keyword.value, module.constants)
                _add_named(keyword.arg, value, Origin.CALL, Place(module.path, keyword.value.lineno), 0.8, findings)
    first = literal(node.args[0], module.constants) if node.args else None
    _look_for_names(module, name, home, first, place, findings)
    if name in _STRATEGIES:
        findings.add("strategy", _STRATEGIES[name], Origin.CALL, place, 0.8)
    elif name in {"gradient_checkpointing_enable", "enable_gradient_checkpointing"}:
        findings.add("grad_checkpointing", value=True, origin=Origin.CALL, place=place, confidence=0.85)
    elif name == "GradScaler":
        findings.add("precision", "fp16", Origin.SIGN, place, 0.6, basis=Basis.INFERRED)
    _look_for_checkpoints(name, home, place, findings)


def _look_for_names(module: Module, name: str, home: str, first: object, place: Place, findings: Findings) -> None:
    """Optimizers, models and data sets that a call names."""
    if name.lower() in _OPTIMIZERS and (home in _OPTIMIZER_HOMES or _imported_from(module, name, _OPTIMIZER_HOMES)):
        findings.add("optimizer", name.lower(), Origin.CALL, place, 0.85)
    elif name == "from_pretrained" and isinstance(first, str):
        findings.add("model_name", first, Origin.CALL, place, 0.8 if "model" in home.lower() else 0.6)
    elif name == "load_dataset" and isinstance(first, str):
        findings.add("dataset", first, Origin.CALL, place, 0.85)
    elif home == "datasets" and name[:1].isupper():
        findings.add("dataset", name.lower(), Origin.CALL, place, 0.7)
    elif home == "models" and name[:1].islower() and any(c.isdigit() for c in name):
        findings.add("model_name", name, Origin.CALL, place, 0.8)


def _look_for_checkpoints(name: str, home: str, place: Place, findings: Findings) -> None:
    if name in _SAVES or (
        name == "save" and home in {"torch", "paddle", "tf", "saver", "model", "accelerator", "trainer"}
    ):
        findings.add(
            "saves_checkpoints", value=True, origin=Origin.SIGN, place=place, confidence=0.8, basis=Basis.EXPLICIT
        )
    elif name in _LOADS:
        findings.add(
            "resume_supported", value=True, origin=Origin.SIGN, place=place, confidence=0.55, basis=Basis.INFERRED
        )


def _dotted(node: ast.expr) -> tuple[str, ...]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return tuple(reversed(parts))


def _imported_from(module: Module, name: str, homes: frozenset[str]) -> bool:
    return any(known.endswith(f".{name}") and homes & set(known.split(".")) for known in module.imports)
