"""Programs in the styles that users write, each followed to the value that counts."""

from __future__ import annotations

import pytest

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded


def told(command, **files):
    tree = bounded(
        {
            name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml"): text.encode()
            for name, text in files.items()
        }
    )
    found = analyze(Subject(command=tuple(command.split())), tree)
    assert not found.partial_because, found.partial_because
    return {name: field.value for name, field in found.fields.items()}


LOOP = "import torch\nfrom cfg import load\nc = load()\nopt = torch.optim.SGD([], 0.1)\nfor epoch in range(1, c['epochs'] + 1):\n    print(epoch)\n"


@pytest.mark.parametrize(
    ("command", "program", "epochs"),
    [
        ("python t.py --epochs 9", "import argparse\np = argparse.ArgumentParser()\ng = p.add_argument_group('x')\ng.add_argument('--epochs', type=int)\na = p.parse_args()\nn = a.epochs\n", 9),
        ("python t.py fit --epochs 9", "import argparse\np = argparse.ArgumentParser()\ns = p.add_subparsers(dest='do')\nf = s.add_parser('fit')\nf.add_argument('--epochs', type=int, default=3)\na = p.parse_args()\nn = a.epochs\n", 9),
        ("python t.py fit -e 9", "import typer\napp = typer.Typer()\n@app.command()\ndef fit(epochs: int = typer.Option(3, '--epochs', '-e')):\n    global n\n    n = epochs\n@app.command()\ndef other(): ...\napp()\n", 9),
        ("python t.py fit --epochs 9", "import click\n@click.group()\ndef main(): ...\n@main.command()\n@click.option('--epochs', default=3)\ndef fit(epochs):\n    global n\n    n = epochs\nmain()\n", 9),
        ("python t.py --epochs=9", "import fire\ndef fit(epochs=3):\n    global n\n    n = epochs\nfire.Fire(fit)\n", 9),
        ("python t.py fit --epochs=9", "import fire\nclass Job:\n    def __init__(self, lr=1):\n        self.lr = lr\n    def fit(self, epochs=3):\n        global n\n        n = epochs\nfire.Fire(Job)\n", 9),
        ("python t.py --epochs=9 --nodebug", "from absl import app, flags\nFLAGS = flags.FLAGS\nflags.DEFINE_integer('epochs', 3, '')\nflags.DEFINE_bool('debug', True, '')\ndef main(_):\n    global n\n    n = 1 if FLAGS.debug else FLAGS.epochs\napp.run(main)\n", 9),
        ("python t.py --run.epochs 9", "import dataclasses, tyro\n@dataclasses.dataclass\nclass Run:\n    epochs: int = 3\n@dataclasses.dataclass\nclass Args:\n    run: Run = dataclasses.field(default_factory=Run)\na = tyro.cli(Args)\nn = a.run.epochs\n", 9),
        ("python t.py EPOCHS 9", "import argparse\nfrom yacs.config import CfgNode as CN\nc = CN()\nc.EPOCHS = 3\np = argparse.ArgumentParser()\np.add_argument('opts', nargs=argparse.REMAINDER)\na = p.parse_args()\nc.merge_from_list(a.opts)\nn = c.EPOCHS\n", 9),
        ("python t.py epochs=9", "from omegaconf import OmegaConf\nc = OmegaConf.merge({'epochs': 3}, OmegaConf.from_cli())\nn = c.epochs\n", 9),
        ("env EPOCHS=9 python t.py", "import os\nclass Settings:\n    epochs = int(os.getenv('EPOCHS', '3'))\nn = Settings.epochs\n", 9),
        ("python t.py", "SIZES = {'small': dict(epochs=3), 'large': {**dict(epochs=4), 'epochs': 9}}\nn = SIZES['la' + 'rge']['epochs']\n", 9),
        ("python t.py", "import functools\ndef run(a, b):\n    return a * b\nn = functools.partial(run, 3)(b=3)\n", 9),
        ("python t.py", "def pick(name):\n    match name:\n        case 'a':\n            return 3\n        case 'b' | 'c':\n            return 9\nn = pick('c')\n", 9),
        ("python t.py", "n = 3\ntry:\n    n = int('9')\nexcept ValueError:\n    n = 1\n", 9),
        ("python t.py", "class Base:\n    turns = 3\n    def count(self):\n        return self.turns\nclass Mine(Base):\n    turns = 8\n    def count(self):\n        return super().count() and self.turns + 1\nn = Mine().count()\n", 9),
    ],
)  # fmt: skip
def test_a_value_is_followed_to_the_loop_that_it_bounds(command, program, epochs):
    out = told(command, t_py="import torch\n" + program + "for epoch in range(n):\n    print(epoch)\n")
    assert out["epochs"] == epochs


def test_a_trainer_of_the_programs_own_is_followed_through_its_methods():
    program = """
import os, torch
from torch.utils.data import Dataset, DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch.nn.parallel import DistributedDataParallel as DDP
class Rows(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
class Trainer:
    def __init__(self, model, rows, every):
        self.model, self.rows, self.every = DDP(model), rows, every
        if os.path.exists('last.pt'):
            self.model.load_state_dict(torch.load('last.pt'))
    def _epoch(self, epoch):
        for x in self.rows:
            self.model(x).backward()
    def train(self, turns):
        for epoch in range(turns):
            self._epoch(epoch)
            torch.save(self.model.state_dict(), 'last.pt')
rows = DataLoader(Rows(2048), batch_size=32, sampler=DistributedSampler(Rows(2048)))
torch.distributed.init_process_group('nccl')
Trainer(torch.nn.Linear(1, 1), rows, 10).train(50)
"""
    out = told("torchrun --nnodes 2 --nproc_per_node 4 t.py", t_py=program)
    assert (out["epochs"], out["total_steps"], out["global_batch_size"], out["strategy"]) == (50, 400, 256, "ddp")
    assert (out["saves_checkpoints"], out["resume_supported"]) == (True, True)


def test_a_configuration_of_the_programs_own_only_looks_like_a_frameworks():
    files = {"t_py": "import torch, yaml\nc = yaml.safe_load(open('c.yaml'))\nfor epoch in range(c['SOLVER']['EPOCHS']):\n    print(epoch)\n",
             "c_yaml": "SOLVER: {EPOCHS: 4, IMS_PER_BATCH: 8, BASE_LR: 0.1, MAX_ITER: 9}\n"}  # fmt: skip
    out = told("python t.py", **files)
    assert (out["framework"], out["epochs"]) == ("pytorch", 4)


def test_what_depends_on_what_is_not_known_stays_open():
    out = told(
        "python t.py",
        t_py="import torch, time\nn = 3 if time.time() > 5 else 4\nfor epoch in range(n):\n    print(epoch)\n",
    )
    assert "epochs" not in out
