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


LOOP_N = "\nfor epoch in range(n):\n    print(epoch)\n"
CONFIGS = {
    "conf/config.yaml": "defaults:\n  - train: small\n  - _self_\nseed: 1\n",
    "conf/train/small.yaml": "epochs: 3\n",
    "conf/train/large.yaml": "epochs: 9\n",
    "c.yaml": "epochs: 9\n",
    "c.json": '{"epochs": 9}',
    "base.py": "epochs = 3\nlr = 0.1\n",
    "child.py": "_base_ = ['./base.py']\nepochs = 9\n",
    "mlc.py": "from ml_collections import ConfigDict\ndef get_config(size='x'):\n    c = ConfigDict()\n    c.epochs = 9 if size == 'large' else 3\n    return c\n",
}
DATA = "from dataclasses import dataclass, field\n@dataclass\nclass Args:\n    epochs: int = 3\n    lr: float = 0.1\n"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python t.py train=large", "import hydra\n@hydra.main(version_base=None, config_path='conf', config_name='config')\ndef main(c):\n    global n\n    n = c.train.epochs\nmain()"),
        ("python t.py -m train=large", "import hydra\n@hydra.main(config_path='conf', config_name='config')\ndef main(c):\n    global n\n    n = c.train.epochs\nmain()"),
        ("python t.py --config-path conf --config-name config train.epochs=9", "import hydra\n@hydra.main(config_path='elsewhere', config_name='x')\ndef main(c):\n    global n\n    n = c.train.epochs\nmain()"),
        ("python t.py", "from hydra import compose, initialize\nwith initialize(config_path='conf', version_base=None):\n    c = compose(config_name='config', overrides=['train=large'])\nn = c.train.epochs"),
        ("python t.py", "from omegaconf import OmegaConf\n" + DATA + "c = OmegaConf.merge(OmegaConf.structured(Args), OmegaConf.create({'epochs': 9}))\nn = c.epochs"),
        ("python t.py", "from omegaconf import OmegaConf\n" + DATA + "n = OmegaConf.structured(Args(epochs=9)).epochs"),
        ("python t.py epochs=9", "from omegaconf import OmegaConf\n" + DATA + "c = OmegaConf.merge(OmegaConf.structured(Args), OmegaConf.from_cli())\nn = c.epochs"),
        ("python t.py", "from omegaconf import OmegaConf\nn = OmegaConf.from_dotlist(['a.b=9']).a.b"),
        ("python t.py", "from mmengine.config import Config\nn = Config.fromfile('child.py').epochs"),
        ("python t.py", "from mmengine.config import Config\nc = Config.fromfile('base.py')\nc.merge_from_dict({'epochs': 9})\nn = c.epochs"),
        ("python t.py --config=mlc.py:large", "from absl import app\nfrom ml_collections import config_flags\nC = config_flags.DEFINE_config_file('config')\nfrom absl import flags\nn = flags.FLAGS.config.epochs"),
        ("python t.py --config=mlc.py --config.epochs=9", "from absl import app, flags\nfrom ml_collections import config_flags\nconfig_flags.DEFINE_config_file('config', 'mlc.py')\ndef main(_):\n    global n\n    n = flags.FLAGS.config.epochs\napp.run(main)"),
        ("python t.py --epochs 9", "import argparse\nq = argparse.ArgumentParser(add_help=False)\nq.add_argument('--epochs', type=int, default=3)\np = argparse.ArgumentParser(parents=[q])\nn = p.parse_args().epochs"),
        ("python t.py fit --epochs 9", "import argparse\nq = argparse.ArgumentParser(add_help=False)\nq.add_argument('--epochs', type=int, default=3)\np = argparse.ArgumentParser()\ns = p.add_subparsers()\nf = s.add_parser('fit', parents=[q])\nn = p.parse_args().epochs"),
        ("python t.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=3)\np.set_defaults(epochs=9)\nn = p.parse_args().epochs"),
        ("python t.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=3)\nn = p.parse_args(['--epochs', '9']).epochs"),
        ("python t.py --config c.yaml", "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--config')\np.add_argument('--epochs', type=int, default=3)\na = p.parse_args()\np.set_defaults(**yaml.safe_load(open(a.config)))\nn = p.parse_args().epochs"),
        ("python t.py --epochs 9", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int)\na, rest = p.parse_known_args()\nn = a.epochs"),
        ("python t.py c.json", "from transformers import HfArgumentParser\n" + DATA + "(a,) = HfArgumentParser(Args).parse_json_file('c.json')\nn = a.epochs"),
        ("python t.py c.json", "from transformers import HfArgumentParser\n" + DATA + "(a,) = HfArgumentParser((Args,)).parse_args_into_dataclasses()\nn = a.epochs"),
        ("python t.py --epochs 9", "from transformers import HfArgumentParser\n" + DATA + "(a,) = HfArgumentParser((Args,)).parse_args_into_dataclasses()\nn = a.epochs"),
        ("python t.py --config c.yaml", "from trl import TrlParser\n" + DATA + "(a,) = TrlParser((Args,)).parse_args_and_config()\nn = a.epochs"),
        ("python t.py", "from transformers import HfArgumentParser\n" + DATA + "(a,) = HfArgumentParser(Args).parse_dict({'epochs': 9})\nn = a.epochs"),
        ("python t.py --epochs 9", "import tyro\n" + DATA + "class_ = Args\n@dataclass\nclass More(Args):\n    decay: float = 0.0\nn = tyro.cli(More).epochs"),
        ("python t.py --epochs 9", "import tyro\ndef main(epochs: int = 3):\n    global n\n    n = epochs\ntyro.cli(main)"),
        ("python t.py --epochs 9", "import typer\ndef main(epochs: int = 3):\n    global n\n    n = epochs\ntyper.run(main)"),
        ("python t.py --epochs 9", "import typer\napp = typer.Typer()\n@app.command()\ndef main(epochs: int = 3):\n    global n\n    n = epochs\napp()"),
        ("python t.py --epochs 9", "import click\n@click.command()\n@click.option('--epochs', type=int, default=3)\ndef main(epochs):\n    global n\n    n = epochs\nif __name__ == '__main__':\n    main()"),
        ("python t.py do-fit --epochs 9", "import click\n@click.group()\ndef main(): ...\n@main.command('do-fit')\n@click.option('--epochs', default=3)\ndef fit(epochs):\n    global n\n    n = epochs\n@main.command('other')\ndef other(): ...\nmain()"),
        ("python t.py fit --epochs=9", "import fire\ndef fit(epochs=3):\n    global n\n    n = epochs\nfire.Fire({'fit': fit})"),
        ("python t.py --epochs=9", "import fire\ndef main(epochs=3):\n    global n\n    n = epochs\nfire.Fire()"),
        ("python t.py", "class Model:\n    def __call__(self, k):\n        return k * 3\nn = Model()(3)"),
        ("python t.py", "import base\nbase.epochs = 9\nn = base.epochs"),
        ("python t.py", "class C: ...\nC.epochs = 9\nn = C.epochs"),
        ("python t.py", "x = [3, 3]\nx[1] = 9\nn = x[1]"),
        ("python t.py", "globals()['n'] = 9"),
        ("python t.py", "for n in (3, 9):\n    if n == 9:\n        break"),
        ("python t.py", "import yaml\nn = yaml.safe_load('epochs: 9\\nlr: 1\\n')['epochs']"),
        ("python t.py", "c = {'epochs': 9}\nn = c['epochs'] if hasattr(c, 'get') or True else 3"),
        ("python t.py", "from types import SimpleNamespace\na = SimpleNamespace(epochs=9)\nn = a.epochs if hasattr(a, 'epochs') else 3"),
        ("python t.py", "import os\nn = 9 if int(os.environ.get('RANK', 0)) >= 0 else 9"),
        ("python t.py", "with open('c.yaml') as f:\n    import yaml\n    n = yaml.load(f, Loader=yaml.FullLoader)['epochs']"),
        ("python t.py", "import base\nfrom importlib import import_module\nn = import_module('child').epochs"),
        ("python t.py", "exec(open('child.py').read())\nn = epochs"),
        ("python t.py", "def deco(f):\n    return f\n@deco\ndef k():\n    return 9\nn = k()"),
        ("python t.py", "import copy\nc = {'epochs': 9}\nn = copy.deepcopy(c)['epochs']"),
    ],
)  # fmt: skip
def test_what_sets_the_epochs_is_followed_by_the_librarys_own_rules(command, program):
    given = {"t.py": "import torch\n" + program + LOOP_N, **CONFIGS}
    tree = bounded({name: text.encode() for name, text in given.items()})
    field = analyze(Subject(command=tuple(command.split())), tree).fields.get("epochs")
    assert field is not None
    assert field.value == 9


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ('#BSUB -gpu "num=4"\n#BSUB -nnodes 2\npython t.py', {"gpus_per_node": 4, "nodes": 2}),
        ("#PBS -l select=1:ngpus=4\npython t.py", {"gpus_per_node": 4}),
        ("#PBS -l nodes=1:gpus=4\npython t.py", {"gpus_per_node": 4}),
        ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nsrun python t.py", {"gpus_per_node": 4, "nodes": 2}),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:a100:4\nsrun python t.py", {"gpus_per_node": 4, "nodes": 2}),
        ("#SBATCH --gpus=8 --nodes=2\nsrun python t.py", {"gpus_per_node": 4, "nodes": 2}),
        ("#$ -l gpu=4\npython t.py", {"gpus_per_node": 4}),
    ],
)
def test_the_directives_of_batch_systems_are_read(script, fields):
    tree = bounded({"job.sh": f"#!/bin/bash\n{script}\n".encode(), "t.py": b"import torch\n"})
    found = analyze(Subject(command=("bash", "job.sh")), tree)
    assert {name: found.fields[name].value for name in fields if name in found.fields} == fields
