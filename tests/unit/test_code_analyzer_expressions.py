"""Python's own expressions, followed to the number of epochs that they give."""

from __future__ import annotations

import shlex

import pytest

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded

LOOP = "\nfor epoch in range(n):\n    print(epoch)\n"


def epochs_of(program, command="python t.py", **files):
    given = {"t.py": "import torch\n" + program + LOOP, **files}
    found = analyze(
        Subject(command=tuple(command.split())), bounded({name: text.encode() for name, text in given.items()})
    )
    assert not found.partial_because, found.partial_because
    field = found.fields.get("epochs")
    return None if field is None else field.value


@pytest.mark.parametrize(
    "program",
    [
        "n = int('{}'.format(9))",
        "n = int('{a}'.format(a=9))",
        "n = int('{0}{1}'.format('', '9'))",
        "n = int(' 9 '.strip())",
        "n = int('epochs=9'.split('=')[1])",
        "n = int('x9'.replace('x', ''))",
        "n = int(''.join(['', '9']))",
        "n = int('a/9'.rpartition('/')[2])",
        "n = {'A': 9}['a'.upper()]",
        "n = 9 if 'run9'.startswith(('job', 'run')) else 3",
        "n = 9 if 'run9'.endswith('9') and 'u' in 'run9' else 3",
        "n = len('123456789')",
        "n = len([i for i in range(18) if i % 2 == 0])",
        "n = len({i: i for i in range(9)})",
        "n = len({1, 2, 3}) * 3",
        "n = sum([4, 5])",
        "n = sum(x for x in (4, 5))",
        "n = max(3, 9)",
        "n = min([12, 9])",
        "n = abs(-9)",
        "n = round(9.2)",
        "n = int(9.9)",
        "n = divmod(28, 3)[0]",
        "n = pow(3, 2)",
        "n = 3 ** 2",
        "n = 19 // 2",
        "n = 28 % 19",
        "n = (1 << 3) | 1",
        "n = 13 & 9",
        "n = 8 ^ 1",
        "n = -(-9)",
        "n = ~-10",
        "n = not False and 9",
        "n = None or 9",
        "n = 3 if not True else 9",
        "n = 9 if 1 < 2 < 3 else 3",
        "n = 9 if 3 is not None and 2 != 3 and 3 >= 3 else 3",
        "n = 9 if 'a' not in ('b', 'c') else 3",
        "a, (b, c) = 1, (2, 9)\nn = c",
        "first, *rest = [1, 4, 5]\nn = sum(rest)",
        "n = [3, 9, 4][1]",
        "n = [3, 9, 4][-2]",
        "n = [1, 2, 9, 3][1:3][1]",
        "n = 'x9y'[1:2]\nn = int(n)",
        "n = 3\nn += 6",
        "n = 18\nn //= 2",
        "n = 3\nn *= 3",
        "if (m := 9) > 3:\n    n = m",
        "n = sorted([9, 3])[-1]",
        "n = list(reversed([3, 9]))[0]",
        "n = list(range(0, 10))[9]",
        "n = dict(a=3, b=9)['b']",
        "n = dict([('a', 9)])['a']",
        "n = dict(zip(['a', 'b'], [3, 9]))['b']",
        "n = [b for a, b in zip('ab', [3, 9])][1]",
        "n = [i for i, _ in enumerate('0123456789')][9]",
        "n = list(map(int, ['3', '9']))[1]",
        "n = [x for x in map(lambda v: v + 6, [3])][0]",
        "n = list(filter(lambda v: v > 3, [3, 9]))[0]",
        "n = (lambda v: v * 3)(3)",
        "n = {**{'a': 3}, 'a': 9}['a']",
        "n = [*[3], *[9]][1]",
        "d = {}\nd['a'] = 9\nn = d.get('a', 3)",
        "d = {'a': 3}\nd.update(a=9)\nn = d['a']",
        "d = {'a': 3}\nd.update({'a': 9})\nn = d['a']",
        "d = {}\nn = d.setdefault('a', 9)",
        "d = {'a': 9}\nn = d.pop('a')",
        "d = {'a': 9}\nn = d.copy()['a']",
        "d = {'a': 4, 'b': 5}\nn = sum(d.values())",
        "d = {'a': 9}\nn = [v for k, v in d.items() if k == 'a'][0]",
        "d = {9: 'a'}\nn = list(d.keys())[0]",
        "x = []\nx.append(9)\nn = x[0]",
        "x = [3]\nx.extend([9])\nn = x[1]",
        "x = [3, 9]\nn = x.pop()",
        "x = [3]\nx.insert(0, 9)\nn = x[0]",
        "n = [3, 3, 9].count(3) + 7",
        "n = (9).bit_length() + 5",
        "n = 0\nfor i in [4, 5]:\n    n += i",
        "def f(*values, **named):\n    return values[0] + named['b']\nn = f(4, b=5)",
        "def f(a, b=5, *, c=0):\n    return a + b + c\nn = f(4)",
        "def f(a):\n    if a > 3:\n        return 9\n    return 3\nn = f(4)",
        "def outer():\n    m = 9\n    def inner():\n        return m\n    return inner\nn = outer()()",
        "class A:\n    @property\n    def m(self):\n        return 9\nn = A().m",
        "class A:\n    @staticmethod\n    def m():\n        return 9\nn = A.m()",
        "class A:\n    @classmethod\n    def m(cls):\n        return cls.k\n    k = 9\nn = A.m()",
        "class A:\n    def __init__(self, m=9):\n        self.m = m\nn = getattr(A(), 'm')",
        "class A: ...\na = A()\nsetattr(a, 'm', 9)\nn = a.m",
        "class A:\n    m = 9\nn = getattr(A, 'q', A.m)",
        "from enum import Enum\nclass A(Enum):\n    m = 9\nn = A.m.value",
        "from collections import namedtuple\nP = namedtuple('P', 'a b')\nn = P(3, 9).b",
        "from typing import NamedTuple\nclass P(NamedTuple):\n    a: int = 3\n    b: int = 9\nn = P().b",
        "from dataclasses import dataclass, replace\n@dataclass\nclass P:\n    a: int = 3\nn = replace(P(), a=9).a",
        "from dataclasses import dataclass, field\n@dataclass\nclass P:\n    a: int = field(default=9)\nn = P().a",
        "from dataclasses import dataclass, asdict\n@dataclass\nclass P:\n    a: int = 9\nn = asdict(P())['a']",
        "from types import SimpleNamespace\nn = SimpleNamespace(a=9).a",
        "from argparse import Namespace\nn = vars(Namespace(a=9))['a']",
        "import math\nn = math.ceil(8.2)",
        "import math\nn = math.floor(9.8)",
        "import math\nn = int(math.sqrt(81))",
        "import math\nn = math.prod([3, 3])",
        "import json\nn = json.loads('{\"a\": 9}')['a']",
        "import ast\nn = ast.literal_eval('[3, 9]')[1]",
        "n = eval('3 * 3')",
        "exec('m = 9')\nn = m",
        "import os\nn = int(os.environ.get('NO_SUCH', '9'))",
        "import os\nos.environ['N'] = '9'\nn = int(os.environ['N'])",
        "import os\nos.environ.setdefault('N', '9')\nn = int(os.getenv('N'))",
        "import os\nn = len(os.path.join('ab', 'cdefgh'))",
        "import os\nn = int(os.path.splitext('9.txt')[0])",
        "import os\nn = int(os.path.basename('a/9'))",
        "from pathlib import Path\nn = int(Path('a/9.txt').stem)",
        "from pathlib import Path\nn = int((Path('a') / '9').name)",
        "import functools\n@functools.lru_cache\ndef f():\n    return 9\nn = f()",
        "with open('n.txt') as f:\n    n = int(f.read())",
        "from pathlib import Path\nn = int(Path('n.txt').read_text())",
        "import json\nn = json.load(open('c.json'))['epochs']",
        "import json\nfrom pathlib import Path\nn = json.loads(Path('c.json').read_text())['epochs']",
        "import yaml\nwith open('c.yaml') as f:\n    n = yaml.safe_load(f)['train']['epochs']",
        "import tomllib\nwith open('c.toml', 'rb') as f:\n    n = tomllib.load(f)['train']['epochs']",
        "import configparser\nc = configparser.ConfigParser()\nc.read('c.ini')\nn = c.getint('train', 'epochs')",
        "import configparser\nc = configparser.ConfigParser()\nc.read('c.ini')\nn = int(c['train']['epochs'])",
        "import configparser\nc = configparser.ConfigParser()\nc.read('c.ini')\nn = 9 if c['train'].getboolean('amp') else 3",
        "import configparser\nc = configparser.ConfigParser()\nc.read('c.ini')\nn = c['train'].getint('none', fallback=9)",
        "import importlib\nn = importlib.import_module('other').TURNS",
        "from other import TURNS as n",
        "import other as o\nn = o.TURNS",
        "from other import *\nn = TURNS",
        "from omegaconf import OmegaConf\nn = OmegaConf.load('c.yaml').train.epochs",
        "from omegaconf import OmegaConf\nn = OmegaConf.create({'a': {'b': 9}}).a.b",
        "from omegaconf import OmegaConf\nn = OmegaConf.to_container(OmegaConf.load('c.yaml'))['train']['epochs']",
        "from ml_collections import config_dict\nc = config_dict.ConfigDict()\nc.epochs = 9\nn = c.epochs",
        "from easydict import EasyDict\nn = EasyDict(dict(a=9)).a",
        "try:\n    import nothing_here\n    n = 9\nexcept ImportError:\n    n = 9\nfinally:\n    pass",
        "assert True\nn = 9",
        "global n\nn = 9",
        "n: int = 9",
        "n = m = 9",
        "n = int(f'{3 * 3}')",
        "n = int('%d' % 9)",
        "n = int('0x9', 16)",
        "n = bool(1) * 9",
        "n = float('9')\nn = int(n)",
        "n = 9 if isinstance('a', str) else 3",
        "n = 9 if all([True, 1]) and any([0, 1]) else 3",
        "import itertools\nn = len(list(itertools.chain([1, 2], range(7))))",
        "import itertools\nn = len(list(itertools.product(range(3), range(3))))",
        "import numpy as np\nn = int(np.ceil(8.5))",
        "import itertools\nn = sum(itertools.chain.from_iterable([[4], [5]]))",
        "n = len(list(filter(None, [0, 1, 2]))) + 7",
        "n = [i for i, c in enumerate('abc', start=7) if c == 'c'][0]",
        "n = 9 if not any(x > 5 for x in [1, 2]) else 3",
        "n = 9 if not all([True, False]) else 3",
        "from collections import namedtuple\nP = namedtuple('P', ['a', 'b'])\nn = P(a=3, b=9).b",
        "n = int('a-9'.partition('-')[2])",
        "n = 'aaaaaaaaa'.count('a')",
        "n = 'abcdefghij'.find('j')",
        "x = {'a': {'b': 9}}\nn = x['a']['b']",
        "x = {'a': 9}\nn = x.get('b', x.get('a'))",
        "x = [3]\nx += [9]\nn = x[-1]",
        "x = (3,) + (9,)\nn = x[1]",
        "x = [0] * 9\nn = len(x)",
        "x = 'a' 'bcdefghi'\nn = len(x)",
        "def f(k: int | None = None) -> int:\n    return k if k is not None else 9\nn = f()",
        "def f(a, /, b, *, c):\n    return a + b + c\nn = f(2, 3, c=4)",
        "def f(**kw):\n    return g(**kw)\ndef g(a, b):\n    return a * b\nn = f(a=3, b=3)",
        "def f(*a):\n    return g(*a)\ndef g(a, b):\n    return a * b\nn = f(3, 3)",
        "class A:\n    def __init__(self):\n        self.x = {'k': 9}\n    def __getitem__(self, k):\n        return self.x[k]\n    def get(self):\n        return self.x['k']\nn = A().get()",
        "class A:\n    def __len__(self):\n        return 9\nn = len(A())",
        "class A:\n    k = {'a': 9}\nn = A.k['a']",
        "import os\nd = os.path.dirname('x/y/z')\nn = len(d) + 6",
        "from pathlib import Path\nn = len(str(Path('ab') / 'cd' / 'ef')) + 1",
        "from pathlib import Path\nn = 9 if Path('c.yaml').exists() else 3",
        "from pathlib import Path\nn = len(Path('a/b.txt').with_suffix('.md').name) + 5",
        "import os\nn = 9 if os.path.exists('c.yaml') else 3",
        "import os\nn = int(os.environ.get('SLURM_NNODES', 9))",
        "n = (lambda *a, **k: k['b'])(1, b=9)",
        "try:\n    raise ValueError\nexcept ValueError:\n    n = 9\nelse:\n    n = 9",
        "n = 3\ndef set_it():\n    global n\n    n = 9\nset_it()",
        "def outer():\n    m = 3\n    def inner():\n        nonlocal m\n        m = 9\n    inner()\n    return m\nn = outer() or 9",
        "del_me = 3\ndel del_me\nn = 9",
        "async def f():\n    return 9\nimport asyncio\nn = 9",
        "match 'a':\n    case 'a':\n        n = 9\n    case _:\n        n = 3",
        "match 'q':\n    case 'a':\n        n = 3\n    case _:\n        n = 9",
        "x = 5\nn = 9 if 1 < x <= 5 and x != 4 else 3",
        "n = {True: 9, False: 3}[2 > 1]",
        "n = [3, 9][bool('a')]",
    ],
)
def test_an_expression_is_followed_to_the_loop_that_it_bounds(program):
    other = "TURNS = 9\n"
    files = {
        "n.txt": "9\n",
        "c.json": '{"epochs": 9}',
        "c.yaml": "train:\n  epochs: 9\n",
        "c.toml": "[train]\nepochs = 9\n",
        "c.ini": "[train]\nepochs = 9\namp = yes\n",
        "other.py": other,
    }
    assert epochs_of(program, **files) == 9


@pytest.mark.parametrize(
    "program",
    [
        "import random\nn = random.randint(3, 9)",
        "import time\nn = int(time.time()) % 9",
        "n = int(input())",
        "n = int(open('missing.txt').read())",
        "import os\nn = int(os.environ['NO_SUCH'])",
        "from missing import n",
        "import requests\nn = requests.get('http://example.org').json()['n']",
        "n = [3, 9][unknown]",
        "n = int('nine')",
        "n = 9 / 0",
        "n = {}['a']",
        "n = [3][5]",
        "n = 'a' * 9",
        "n = 10 ** 10 ** 10",
        "import json\nn = json.loads('{')['a']",
        "n = eval('(')",
        "def f():\n    return f()\nn = f()",
        "n = '{'.format(9)",
        "n = ''.nothing()",
        "n = divmod(9, 0)[0]",
        "n = divmod(9)[0]",
        "n = list(map(int, data))[0]",
        "n = list(filter(lambda v: v > unknown, [9]))[0]",
        "n = [a for a, b in zip(data, [9])][0]",
        "n = list(reversed(data))[0]",
        "n = 9 if all([unknown]) else 3",
        "n = 9 if any([unknown]) else 3",
        "import itertools\nn = len(list(itertools.product(data, [1])))",
        "from collections import namedtuple\nn = namedtuple('P')(9).a",
        "n = list(range(0, 9, 0))[0]",
        "n = '%d' % 'x'",
        "n = 'a'.join(3)",
        "n = [9].nothing()",
        "n = {'a': 9}.nothing()",
        "n = {[]: 9}[0]",
        "n = ~'a'",
        "n = getattr(unknown, 'a')",
        "from configparser import ConfigParser\nc = ConfigParser()\nc.read('missing.ini')\nn = c.getint('a', 'b')",
        "import yaml\nn = yaml.safe_load(open('missing.yaml'))['a']",
        "import yaml\nn = yaml.safe_load('a: [')['a']",
        "import importlib\nn = importlib.import_module(name).n",
        "import math\nn = math.sqrt(-1)",
        "import math\nn = math.ceil('a')",
    ],
)
def test_what_the_source_does_not_say_stays_unknown(program):
    assert epochs_of(program) is None


ARGPARSE = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=3)\nn = p.parse_args().epochs\n"


@pytest.mark.parametrize(
    "command",
    [
        "python -u t.py --epochs 9",
        "python3.11 -m t --epochs 9",
        "./t.py --epochs 9",
        "N=1 python t.py --epochs=9",
        "env A=1 B=2 python t.py --epochs 9",
        "nohup python t.py --epochs 9",
        "time python t.py --epochs 9",
        "timeout 10h python t.py --epochs 9",
        "nice -n 5 python t.py --epochs 9",
        "sudo -E python t.py --epochs 9",
        "numactl --cpunodebind=0 python t.py --epochs 9",
        "taskset -c 0-3 python t.py --epochs 9",
        "stdbuf -oL python t.py --epochs 9",
        "torchrun --nproc_per_node=4 t.py --epochs 9",
        "torchrun --standalone --nproc-per-node gpu -m t --epochs 9",
        "python -m torch.distributed.run --nproc_per_node 2 t.py --epochs 9",
        "python -m torch.distributed.launch --nproc_per_node=2 --use_env t.py --epochs 9",
        "accelerate launch --num_processes 4 t.py --epochs 9",
        "accelerate launch -m t --epochs 9",
        "deepspeed --num_gpus 4 t.py --epochs 9",
        "srun -N 2 --gpus-per-node=4 python t.py --epochs 9",
        "srun --mpi=pmix singularity exec --nv image.sif python t.py --epochs 9",
        "mpirun -np 8 -x PATH --allow-run-as-root python t.py --epochs 9",
        "mpiexec -n 8 python t.py --epochs 9",
        "horovodrun -np 4 -H localhost:4 python t.py --epochs 9",
        "composer -n 4 t.py --epochs 9",
        "uv run t.py --epochs 9",
        "uv run --with torch python t.py --epochs 9",
        "poetry run python t.py --epochs 9",
        "pipenv run python t.py --epochs 9",
        "conda run -n env python t.py --epochs 9",
        "conda run --no-capture-output -p /opt/env python t.py --epochs 9",
        "docker run --rm --gpus all -v /a:/b image:tag python t.py --epochs 9",
        "apptainer exec --nv image.sif python t.py --epochs 9",
        "coverage run t.py --epochs 9",
        "python -m cProfile -o out t.py --epochs 9",
        "nsys profile -o out python t.py --epochs 9",
        "ray job submit --working-dir . -- python t.py --epochs 9",
        "ipython t.py -- --epochs 9",
        "bash -c 'python t.py --epochs 9'",
        "sh run.sh 9",
        "bash -eu run.sh 9",
        "make train EPOCHS=9",
        "make -f Makefile train EPOCHS=9",
        "sbatch job.slurm 9",
        "sbatch --gres=gpu:4 job.slurm 9",
        "xvfb-run -a python t.py --epochs 9",
        "cd . && python t.py --epochs 9",
    ],
)
def test_a_launcher_hands_the_programs_words_on(command):
    files = {
        "run.sh": 'set -e\nEPOCHS=${1:-3}\npython t.py --epochs "$EPOCHS"\n',
        "job.slurm": '#!/bin/bash\n#SBATCH --nodes=1\nsrun python t.py --epochs "$1"\n',
        "Makefile": "EPOCHS ?= 3\ntrain:\n\tpython t.py --epochs $(EPOCHS)\n",
    }
    words = shlex.split(command)
    given = {"t.py": "import torch\n" + ARGPARSE + LOOP, **files}
    found = analyze(Subject(command=tuple(words)), bounded({name: text.encode() for name, text in given.items()}))
    field = found.fields.get("epochs")
    assert field is not None
    assert field.value == 9


def test_a_program_that_runs_alone_takes_the_default_of_the_launchers_variables():
    program = (
        "import os, torch, torchvision\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
        "world = int(os.environ.get('WORLD_SIZE', 1))\nrows = torchvision.datasets.CIFAR10('/d', train=True)\n"
        "loader = DataLoader(rows, batch_size=256 // world, sampler=DistributedSampler(rows) if world > 1 else None)\n"
        "for epoch in range(7):\n    for batch in loader:\n        pass\n"
    )
    for command, steps in (("python t.py", 7 * 196), ("torchrun --nproc_per_node=2 t.py", 7 * 196)):
        found = analyze(Subject(command=tuple(command.split())), bounded({"t.py": program.encode()}))
        assert found.fields["total_steps"].value == steps


@pytest.mark.parametrize(("epochs", "steps"), [(7, 1372), (49, 9604), (5, 980)])
def test_the_steps_of_one_epoch_are_no_total_even_where_the_epochs_divide_them(epochs, steps):
    program = (
        "import torch, torchvision\nfrom torch.utils.data import DataLoader\n"
        "loader = DataLoader(torchvision.datasets.CIFAR10('/d', train=True), batch_size=256)\n"
        f"for epoch in range({epochs}):\n    for step, batch in enumerate(loader):\n        pass\n"
    )
    found = analyze(Subject(command=("python", "t.py")), bounded({"t.py": program.encode()}))
    assert found.fields["total_steps"].value == steps
