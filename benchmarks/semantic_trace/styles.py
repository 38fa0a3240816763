"""The styles in which users write: each family turns a plan into files, a command and an entry file.

A family is a way of holding configuration (flags, YAML, Hydra, a notebook ...). Within one, names, comments and the order of things vary with
the program's seed; what a submission asks (epochs, batch, data, target, learning rate, replicas) stands where that family keeps it.
Families are split by source program into those for development and those for test; no test family was looked at while advisors were tuned.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.semantic_trace.applications import APPLICATIONS, Application, Plan

GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is submitted: files by path, the command, the file that the entry is in."""

    files: dict[str, str]
    command: tuple[str, ...]
    entry: str


class _Names:
    """The names of one program, by its seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(f"names {seed}")  # noqa: S311 - names, no secrets
        pick = draw.choice
        self.epochs = pick(("epochs", "num_epochs", "max_epochs", "n_epochs"))
        self.batch = pick(("batch_size", "bs", "global_batch", "train_batch_size"))
        self.rate = pick(("lr", "learning_rate", "base_lr"))
        self.part = pick(("subset", "data_fraction", "portion", "train_share"))
        self.target = pick(("target", "stop_at", "goal", "threshold"))
        self.script = pick(("train.py", "main.py", "run.py", "fit.py", "experiment.py"))
        self.model = pick(("model", "net", "network"))
        self.loader = pick(("loader", "train_loader", "batches", "dl"))
        self.loop = pick(("epoch", "ep", "e"))
        self.comment = pick((
            "training script", "quick experiment", "adapted from the reference implementation", "do not touch", "TODO clean this up",
            "see the wiki for results", "baseline of the paper", "copied from last year's project",
        ))  # fmt: skip
        self.saves = draw.random() < 0.7
        self.amp = draw.random() < 0.4
        self.root = pick(("/data", "/datasets", "/mnt/nfs/data", "data"))


def _launcher(plan: Plan, script: str) -> list[str]:
    nodes = -(-plan.replicas // GPUS_PER_NODE)
    return ["torchrun", f"--nnodes={nodes}", f"--nproc_per_node={min(plan.replicas, GPUS_PER_NODE)}", script] if plan.replicas > 1 else ["python", script]  # fmt: skip


def _core(facts: Application, names: _Names, values: dict[str, str], indent: str = "") -> str:
    """Return the training loop; `values` says how each quantity is written in this program."""
    n = names
    sense = ">=" if facts.rises else "<="
    shown = values["epochs"].replace('"', "'")  # inside the quotes of a format string
    text = f"""
ROOT = "{n.root}"
dist.init_process_group("nccl") if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None
world = int(os.environ.get("WORLD_SIZE", 1))
{n.model} = {facts.model}.cuda()
if world > 1:
    {n.model} = torch.nn.parallel.DistributedDataParallel({n.model})
dataset = {facts.data}
if {values["fraction"]} < 1:
    dataset = Subset(dataset, range(int(len(dataset) * {values["fraction"]})))
sampler = DistributedSampler(dataset) if world > 1 else None
{n.loader} = DataLoader(dataset, batch_size={values["batch"]} // world, shuffle=sampler is None, sampler=sampler, num_workers=4)
optimizer = torch.optim.{"AdamW" if facts.name in ("bert", "ncf") else "SGD"}({n.model}.parameters(), lr={values["rate"]})
for {n.loop} in range({values["epochs"]}):
    for step, batch in enumerate({n.loader}):
        {"with torch.autocast('cuda', dtype=torch.float16):" if n.amp else "if True:"}
            loss = compute_loss({n.model}, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    {facts.metric} = evaluate({n.model})
    print(f"{n.loop} {{{n.loop} + 1}}/{{{shown}}} loss {{loss.item():.4f}} {facts.metric} {{{facts.metric}:.4f}}")
"""
    if n.saves:
        text += f'    torch.save({n.model}.state_dict(), "checkpoint.pt")\n'
    if "target" in values:
        text += f"    if {facts.metric} {sense} {values['target']}:\n        break\n"
    return "\n".join(indent + line if line else line for line in text.splitlines()) + "\n"


def _head(facts: Application, names: _Names, *extra: str) -> str:
    lines = [f"# {names.comment}", "import os", "import torch", "import torch.distributed as dist",
             "from torch.utils.data import DataLoader, DistributedSampler, Subset", facts.imports, "from steps import compute_loss, evaluate"]  # fmt: skip
    return "\n".join([*lines, *extra]) + "\n"


def _side(facts: Application) -> dict[str, str]:
    """Return the modules that a program of this application has beside it."""
    files = {"steps.py": "import torch\n\n\ndef compute_loss(model, batch):\n    out = model(*batch)\n    return out if out.dim() == 0 else out.mean()\n\n\n@torch.no_grad()\ndef evaluate(model):\n    model.eval()\n    return float(model.score())\n"}  # fmt: skip
    for module, name in (("recommender", "ncf"), ("speech", "deepspeech2"), ("detector", "yolov3")):
        if facts.name == name:
            files[f"{module}.py"] = _MODULES[module]
    return files


_MODULES = {
    "recommender": '''import torch
from torch import nn


class NeuMF(nn.Module):
    """Neural matrix factorisation over users and items."""

    def __init__(self, users, items, factors):
        super().__init__()
        self.user = nn.Embedding(users, factors)
        self.item = nn.Embedding(items, factors)
        self.mlp = nn.Sequential(nn.Linear(2 * factors, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, user, item):
        return self.mlp(torch.cat([self.user(user), self.item(item)], dim=1))


class MovieLens(torch.utils.data.Dataset):
    """ml-1m with sampled negatives: 994,169 ratings, five rows each with the positive."""

    def __init__(self, root, name, negatives):
        self.rows = 4_971_008

    def __len__(self):
        return self.rows
''',
    "speech": '''import torch
from torch import nn


class DeepSpeech2(nn.Module):
    def __init__(self, hidden, layers, labels):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, kernel_size=(41, 11), stride=(2, 2))
        self.rnn = nn.GRU(672, hidden, layers, bidirectional=True)
        self.out = nn.Linear(2 * hidden, labels)


class ManifestDataset(torch.utils.data.Dataset):
    """The utterances of a manifest, each cut in windows."""

    def __init__(self, root, manifest):
        self.count = 7140

    def __len__(self):
        return self.count
''',
    "detector": """from torch import nn


class YOLOv3(nn.Module):
    def __init__(self, classes, anchors):
        super().__init__()
        self.backbone = nn.Sequential(*[nn.Conv2d(3, 64, 3, padding=1) for _ in range(53)])
        self.heads = nn.ModuleList(nn.Conv2d(64, 3 * (5 + classes), 1) for _ in range(3))
""",
}


def _given(plan: Plan, names: _Names, prefix: str) -> dict[str, str]:
    values = {"epochs": prefix + names.epochs, "batch": prefix + names.batch, "rate": prefix + names.rate, "fraction": prefix + names.part}  # fmt: skip
    return values | ({"target": prefix + names.target} if plan.target is not None else {})


def _settings(plan: Plan, names: _Names) -> dict[str, Any]:
    values: dict[str, Any] = {names.epochs: plan.epochs, names.batch: plan.batch, names.rate: plan.learning_rate, names.part: plan.fraction}  # fmt: skip
    return values | ({names.target: plan.target} if plan.target is not None else {})


def _flags(plan: Plan, names: _Names, dash: str = "--") -> list[str]:
    return [word for key, value in _settings(plan, names).items() for word in (dash + key, str(value))]


def _argparse(plan: Plan, names: _Names) -> str:
    lines = ["import argparse", "parser = argparse.ArgumentParser()"]
    defaults = {names.epochs: 10, names.batch: 64, names.rate: 0.01, names.part: 1.0, names.target: 0.5}
    for key in _settings(plan, names):
        kind = "int" if key in (names.epochs, names.batch) else "float"
        lines.append(f'parser.add_argument("--{key}", type={kind}, default={defaults[key]})')
    return "\n".join([*lines, "args = parser.parse_args()"])


# --- for development -------------------------------------------------------------------------------------------------


def argparse_flags(plan: Plan, names: _Names) -> Bundle:
    """Flags on the command line, argparse."""
    facts = APPLICATIONS[plan.application]
    text = _head(facts, names, _argparse(plan, names)) + _core(facts, names, _given(plan, names, "args."))
    return Bundle({names.script: text, **_side(facts)}, (*_launcher(plan, names.script), *_flags(plan, names)), names.script)  # fmt: skip


def yaml_file(plan: Plan, names: _Names) -> Bundle:
    """A YAML file named on the command line."""
    facts = APPLICATIONS[plan.application]
    path = f"configs/{plan.application}.yaml"
    lines = "".join(f"  {k}: {v}\n" for k, v in _settings(plan, names).items())
    given = {k: f'cfg["train"]["{v}"]' for k, v in _given(plan, names, "").items()}
    text = _head(facts, names, "import sys", "import yaml", 'with open(sys.argv[sys.argv.index("--config") + 1]) as file:', "    cfg = yaml.safe_load(file)")  # fmt: skip
    files = {
        names.script: text + _core(facts, names, given),
        path: f"# {names.comment}\ntrain:\n{lines}",
        **_side(facts),
    }
    return Bundle(files, (*_launcher(plan, names.script), "--config", path), names.script)


def shell_variables(plan: Plan, names: _Names) -> Bundle:
    """A shell script whose variables become flags."""
    facts = APPLICATIONS[plan.application]
    text = _head(facts, names, _argparse(plan, names)) + _core(facts, names, _given(plan, names, "args."))
    given = _settings(plan, names)
    lines = "".join(f"{k.upper()}={v}\n" for k, v in given.items())
    flags = " \\\n    ".join(f'--{k} "${{{k.upper()}}}"' for k in given)
    script = f"#!/bin/bash\n# {names.comment}\nset -euo pipefail\n{lines}\n{' '.join(_launcher(plan, names.script))} \\\n    {flags}\n"
    return Bundle({"job.sh": script, names.script: text, **_side(facts)}, ("bash", "job.sh"), "job.sh")


def dataclass_arguments(plan: Plan, names: _Names) -> Bundle:
    """A dataclass that the command line fills (HfArgumentParser)."""
    facts = APPLICATIONS[plan.application]
    fields = "".join(
        f"    {k}: {'int' if isinstance(v, int) else 'float'} = {v}\n" for k, v in _settings(plan, names).items()
    )
    extra = f"from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n\n\n@dataclass\nclass Arguments:\n{fields}\n\n(options,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()"
    text = _head(facts, names, extra) + _core(facts, names, _given(plan, names, "options."))
    return Bundle({names.script: text, **_side(facts)}, tuple(_launcher(plan, names.script)), names.script)


def constants_module(plan: Plan, names: _Names) -> Bundle:
    """A Python module of constants."""
    facts = APPLICATIONS[plan.application]
    upper = {k.upper(): v for k, v in _settings(plan, names).items()}
    module = f'"""{names.comment}"""\n' + "".join(f"{k} = {v}\n" for k, v in upper.items())
    given = {k: f"settings.{v.upper()}" for k, v in _given(plan, names, "").items()}
    text = _head(facts, names, "import settings") + _core(facts, names, given)
    return Bundle({names.script: text, "settings.py": module, **_side(facts)}, tuple(_launcher(plan, names.script)), names.script)  # fmt: skip


def environment_variables(plan: Plan, names: _Names) -> Bundle:
    """Variables of the environment, with defaults in the code."""
    facts = APPLICATIONS[plan.application]
    lines = [f'{k} = {"int" if isinstance(v, int) else "float"}(os.environ.get("{k.upper()}", "1"))' for k, v in _settings(plan, names).items()]  # fmt: skip
    text = _head(facts, names, *lines) + _core(facts, names, _given(plan, names, ""))
    env = [f"{k.upper()}={v}" for k, v in _settings(plan, names).items()]
    return Bundle({names.script: text, **_side(facts)}, ("env", *env, *_launcher(plan, names.script)), names.script)


# --- for test ----------------------------------------------------------------------------------------------------------


def hydra_groups(plan: Plan, names: _Names) -> Bundle:
    """Hydra with a group for the training, overridden on the command line."""
    facts = APPLICATIONS[plan.application]
    given = _settings(plan, names)
    group = "".join(f"{k}: {v}\n" for k, v in given.items() if k != names.epochs) + f"{names.epochs}: 1\n"
    head = _head(facts, names, 'import hydra\n\n\n@hydra.main(version_base=None, config_path="conf", config_name="config")\ndef main(cfg):')  # fmt: skip
    text = (
        head
        + _core(facts, names, _given(plan, names, "cfg.train."), "    ")
        + '\n\nif __name__ == "__main__":\n    main()\n'
    )
    files = {names.script: text, "conf/config.yaml": "defaults:\n  - train: default\n  - _self_\nseed: 1\n", "conf/train/default.yaml": group, **_side(facts)}  # fmt: skip
    return Bundle(files, (*_launcher(plan, names.script), f"train.{names.epochs}={plan.epochs}"), names.script)


def click_json(plan: Plan, names: _Names) -> Bundle:
    """click, with a JSON file beside the flags."""
    facts = APPLICATIONS[plan.application]
    head = _head(facts, names, 'import json\nimport click\n\n\n@click.command()\n@click.option("--settings", type=click.Path(), required=True)\n@click.option("--rounds", type=int, default=None)\ndef main(settings, rounds):\n    with open(settings) as file:\n        conf = json.load(file)\n    rounds = rounds or conf["rounds"]')  # fmt: skip
    given = {k: f'conf["{v}"]' for k, v in _given(plan, names, "").items()} | {"epochs": "rounds"}
    text = head + _core(facts, names, given, "    ") + '\n\nif __name__ == "__main__":\n    main()\n'
    conf = json.dumps(_settings(plan, names) | {"rounds": 1}, indent=2)
    return Bundle({names.script: text, "settings.json": conf, **_side(facts)}, (*_launcher(plan, names.script), "--settings", "settings.json", "--rounds", str(plan.epochs)), names.script)  # fmt: skip


def makefile_target(plan: Plan, names: _Names) -> Bundle:
    """A Makefile whose variables the command overrides."""
    facts = APPLICATIONS[plan.application]
    text = _head(facts, names, _argparse(plan, names)) + _core(facts, names, _given(plan, names, "args."))
    given = _settings(plan, names)
    lines = "".join(f"{k.upper()} ?= {1 if k == names.epochs else v}\n" for k, v in given.items())
    flags = " ".join(f"--{k} $({k.upper()})" for k in given)
    make = f"# {names.comment}\n{lines}\nfit:\n\t{' '.join(_launcher(plan, names.script))} {flags}\n"
    return Bundle({"Makefile": make, names.script: text, **_side(facts)}, ("make", "fit", f"{names.epochs.upper()}={plan.epochs}"), names.script)  # fmt: skip


def absl_flags(plan: Plan, names: _Names) -> Bundle:
    """Absl flags."""
    facts = APPLICATIONS[plan.application]
    lines = ["from absl import app, flags", "FLAGS = flags.FLAGS"]
    for key, value in _settings(plan, names).items():
        kind = "integer" if isinstance(value, int) else "float"
        lines.append(f'flags.DEFINE_{kind}("{key}", 1, "")')
    head = _head(facts, names, *lines, "\n\ndef main(_):")
    text = (
        head
        + _core(facts, names, _given(plan, names, "FLAGS."), "    ")
        + '\n\nif __name__ == "__main__":\n    app.run(main)\n'
    )
    flags = [f"--{k}={v}" for k, v in _settings(plan, names).items()]
    return Bundle({names.script: text, **_side(facts)}, (*_launcher(plan, names.script), *flags), names.script)


def toml_presets(plan: Plan, names: _Names) -> Bundle:
    """A TOML file of presets, of which the command names one."""
    facts = APPLICATIONS[plan.application]
    small = "".join(f"{k} = 1\n" for k in _settings(plan, names))
    full = "".join(f"{k} = {v}\n" for k, v in _settings(plan, names).items())
    head = _head(facts, names, 'import sys\nimport tomllib\n\nwith open("presets.toml", "rb") as file:\n    preset = tomllib.load(file)[sys.argv[1]]')  # fmt: skip
    text = head + _core(facts, names, {k: f'preset["{v}"]' for k, v in _given(plan, names, "").items()})
    files = {names.script: text, "presets.toml": f"# {names.comment}\n[smoke]\n{small}\n[full]\n{full}", **_side(facts)}
    return Bundle(files, (*_launcher(plan, names.script), "full"), names.script)


def notebook(plan: Plan, names: _Names) -> Bundle:
    """A notebook that papermill runs with parameters."""
    facts = APPLICATIONS[plan.application]
    lines = [f"{k} = {v if k != names.epochs else 1}" for k, v in _settings(plan, names).items()]
    cells = [("# " + names.comment, "markdown", []), ("\n".join(lines), "code", ["parameters"]), (_head(facts, names) + _core(facts, names, _given(plan, names, "")), "code", [])]  # fmt: skip
    made = [
        {"cell_type": kind, "metadata": {"tags": tags}, "source": text.splitlines(keepends=True)}
        | ({"outputs": [], "execution_count": None} if kind == "code" else {})
        for text, kind, tags in cells
    ]
    book = json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
    return Bundle({"train.ipynb": book, **_side(facts)}, ("papermill", "train.ipynb", "out.ipynb", "-p", names.epochs, str(plan.epochs)), "train.ipynb")  # fmt: skip


_Family = Callable[[Plan, _Names], Bundle]
DEVELOPMENT: dict[str, _Family] = {f.__name__: f for f in (argparse_flags, yaml_file, shell_variables, dataclass_arguments, constants_module, environment_variables)}  # fmt: skip
TEST: dict[str, _Family] = {f.__name__: f for f in (hydra_groups, click_json, makefile_target, absl_flags, toml_presets, notebook)}  # fmt: skip
FAMILIES = DEVELOPMENT | TEST


def bundle(family: str, seed: int, plan: Plan) -> Bundle:
    """Return what a program of this family and seed submits for a plan."""
    return FAMILIES[family](plan, _Names(seed))
