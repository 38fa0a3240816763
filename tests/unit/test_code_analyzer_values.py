"""What expressions, methods and built-ins of Python give; and launch files that are no scripts."""

from __future__ import annotations

import pytest

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.program import Program
from schedmate.services.code_analyzer.resolve.values import UNKNOWN, plain
from schedmate.services.code_analyzer.source import Tree, bounded

FILES = {
    "c.json": b'{"a": {"b": 3}}',
    "c.toml": b"[a]\nb = 3\n",
    "c.yaml": b"a: {b: 3, c: [1, 2]}\n",
    "c.ini": b"[a]\nb = 3\non = yes\n",
}


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("x = 'a-b'.split('-')[1].upper()", "B"), ("x = '{}-{n}'.format(1, n=2)", "1-2"), ("x = '%s/%d' % ('a', 2)", "a/2"), ("x = ','.join(['a', 'b'])", "a,b"),
        ("x = f'{1 + 1}-{\"b\"}'", "2-b"), ("x = 'abc'[1:]", "bc"), ("x = 'ab' in 'cab'", True), ("x = not []", True), ("x = 3 if 1 < 2 <= 2 else 4", 3),
        ("x = 7 // 2 + 7 % 4 - -1", 7), ("x = 2 ** 5", 32), ("x = 1 << 4 | 1", 17), ("x = [1, 2, 3][-1]", 3), ("x = (1, 2) + (3,)", [1, 2, 3]), ("x = [*[1], 2]", [1, 2]),
        ("x = {'a': 1} | {'b': 2}", {"a": 1, "b": 2}), ("x = {k: v for k, v in [('a', 1)]}", {"a": 1}), ("x = [n * 2 for n in (1, 2, 3) if n != 2]", [2, 6]),
        ("d = {'a': 1}\nd['b'] = 2\nd.update(c=3)\nx = d.pop('a') + len(d)", 3), ("d = {}\nd.setdefault('k', 4)\nx = d.get('k') + d.get('z', 1)", 5),
        ("x = sorted(['b', 'a'])[0]", "a"), ("x = max(1, 5, 3) + min([4, 2]) + sum([1, 1])", 9), ("x = dict(a=1, **{'b': 2})", {"a": 1, "b": 2}), ("x = dict([('a', 1)])", {"a": 1}),
        ("x = len('abc') + len([1]) + len({'a': 1})", 5), ("x = isinstance('a', str) and not isinstance(1, (str, list))", True), ("x = int('7') + round(2.4) + abs(-1)", 10),
        ("x = float('1e2')", 100.0), ("x = str(3) + str(True)", "3True"), ("x = bool('')", False), ("import math\nx = math.ceil(7 / 2) + math.floor(2.9)", 6), ("x = list('ab')", ["a", "b"]),
        ("class A:\n    n = 1\nx = getattr(A, 'n') + getattr(A(), 'z', 5)", 6), ("class A: pass\na = A()\nsetattr(a, 'k', 4)\nx = a.k", 4), ("x = vars()['__name__']", "__main__"),
        ("globals()['q'] = 8\nx = q", 8), ("exec('q = 9')\nx = q", 9), ("x = eval('1 + 2')", 3), ("import ast\nx = ast.literal_eval('[1, 2]')", [1, 2]),
        ("from pathlib import Path\nx = str(Path('a') / 'b' / 'c.txt')", "a/b/c.txt"), ("from pathlib import Path\nx = Path('a/b.txt').stem + Path('a/b.txt').suffix", "b.txt"),
        ("from pathlib import Path\nimport json\nx = json.loads(Path('c.json').read_text())['a']['b']", 3), ("import json\nwith open('c.json') as f:\n    x = json.load(f)['a']['b']", 3),
        ("import tomllib\nx = tomllib.load(open('c.toml', 'rb'))['a']['b']", 3), ("import yaml\nx = yaml.safe_load(open('c.yaml').read())['a']['c']", [1, 2]),
        ("import configparser\nc = configparser.ConfigParser()\nc.read('c.ini')\nx = c.getint('a', 'b') + c['a'].getint('b')", 6), ("import configparser\nc = configparser.ConfigParser()\nc.read('c.ini')\nx = c['a'].getboolean('on')", True),
        ("from omegaconf import OmegaConf\nx = OmegaConf.load('c.yaml').a.b", 3), ("from omegaconf import OmegaConf\nx = OmegaConf.create({'a': 1, 'b': '${a}'}).a", 1),
        ("import os\nos.environ['K'] = '4'\nx = os.environ['K'] + os.getenv('NONE', '5')", "45"), ("import os\nx = os.path.join('a', os.path.basename('b/c'))", "a/c"),
        ("import copy\na = {'k': 1}\nb = copy.deepcopy(a)\nb['k'] = 2\nx = a['k']", 1), ("from types import SimpleNamespace\nx = SimpleNamespace(a=SimpleNamespace(b=3)).a.b", 3),
        ("from ml_collections import ConfigDict\nc = ConfigDict({'a': {'b': 3}})\nc.a.b = 4\nx = c.a.b", 4), ("from easydict import EasyDict as edict\nc = edict()\nc.k = 3\nx = c.k", 3),
        ("import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = 3\n    b: int = 0\n    def __post_init__(self):\n        self.b = self.a + 1\nx = dataclasses.replace(D(), a=4).b + dataclasses.asdict(D(a=1))['a']", 6),
        ("x = (y := 3) + y", 6), ("a, (b, c) = 1, (2, 3)\nx = a + b + c", 6), ("a = b = 2\na += 3\nx = a * b", 10), ("x = [1]\nx.append(2)\nx.extend([3])\nx.insert(0, 0)\nx.pop()", [0, 1, 2]),
        ("x = ['a', 'b'].index('b')", 1), ("f = lambda n=3: n + 1\nx = f() + f(1)", 6), ("def f(*a, k=1, **kw):\n    return len(a) + k + kw['z']\nx = f(1, 2, k=3, z=4)", 9),
        ("def f(n):\n    return 1 if n == 0 else f(n - 1)\nx = f(2)", 1), ("import importlib\nx = importlib.import_module('m').N", 6), ("from m import *\nx = N", 6), ("import m as q\nx = q.N", 6),
        ("x = None is None and 1 is not None", True), ("class A:\n    @property\n    def n(self):\n        return 5\n    @staticmethod\n    def s(k):\n        return k\nx = A().n + A.s(1)", 6),
        ("for k in ('a', 'b'):\n    x = k", "b"), ("x = 0\nwhile x < 3:\n    x += 1\nx = 'left'", "left"), ("del_me = 1\ndel del_me\nx = 2", 2), ("assert True\nx = 1", 1),
    ],
)  # fmt: skip
def test_an_expression_has_the_value_that_python_gives(program, value):
    machine = Program(Files(Tree(FILES | {"m.py": b"N = 6\n", "t.py": program.encode()})), program="t.py")
    scope = machine.run("t.py")
    assert plain(scope.names["x"]) == value


MANIFESTS = {
    "job.yaml": "apiVersion: batch/v1\nkind: Job\nspec:\n  parallelism: 2\n  template:\n    spec:\n      containers:\n        - image: x\n          env:\n            - {name: E, value: '9'}\n          command: [sh, -c, 'torchrun --nproc_per_node=4 t.py --epochs $E']\n          resources: {limits: {nvidia.com/gpu: 4}}\n",
    "volcano.yaml": "kind: VolcanoJob\nspec:\n  tasks:\n    - replicas: 3\n      name: worker\n      template: {spec: {containers: [{command: [python, t.py], args: ['--epochs', '9'], resources: {requests: {nvidia.com/gpu: 2}}}]}}\n",
    "compose.yaml": "services:\n  t:\n    command: ['python', 't.py', '--epochs', '9']\n    environment: [A=1]\n    deploy: {resources: {reservations: {devices: [{device_ids: ['0', '1']}]}}}\n",
    "sky.yaml": "resources: {accelerators: {A100: 8}}\nnum_nodes: 2\nenvs: {E: 9}\nrun: |\n  torchrun --nproc_per_node 8 t.py --epochs $E\n",
    "task.yaml": "commands:\n  - pip install x\n  - python t.py --epochs 9\nresources: {gpu: 1}\n",
    "sweep.yaml": "program: t.py\ncommand: ['${env}', python, '${program}', '${args_no_hyphens}']\nparameters: {epochs: {values: [9]}, lr: {values: [1, 2]}}\n",
    "Makefile": "E := 9\nifdef X\nendif\nall: data train\ndata:\n\t@echo data\ntrain: data\n\t$(PY) python t.py --epochs ${E} \\\n\t  --lr 1\n",
}  # fmt: skip
TRAIN = b"import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=3)\na, _ = p.parse_known_args()\nfor epoch in range(a.epochs):\n    print(epoch)\n"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_launch_file_that_is_no_script_is_followed(name):
    found = analyze(Subject(entry=name), bounded({name: MANIFESTS[name].encode(), "t.py": TRAIN}))
    if name != "sweep.yaml":
        assert found.fields["epochs"].value == 9
    assert found.fields["framework"].value == "pytorch"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "x: 1\n"),
        ("a.yaml", "[1, 2]\n"),
        ("a.yaml", "kind: Job\nspec: {}\n"),
        ("a.json", "{"),
        ("a.sh", ""),
        ("gone.sh", None),
    ],
)
def test_an_entry_that_starts_nothing_says_so(name, text):
    found = analyze(Subject(entry=name), bounded({} if text is None else {name: text.encode()}))
    assert "no command that starts a program we know was found" in found.partial_because


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("x = 'a'.partition('b')[0] + 'ab'.removesuffix('b')", "aa"), ("x = 'x'.join('ab')", "axb"), ("x = '{0:>4}'.format(3)", None), ("x = '{'.format(3)", None),
        ("x = 'aXb'.replace('X', '-').count('-')", 1), ("x = [1, 1].count(1)", 2), ("x = [3].copy()", [3]), ("x = (5).bit_length()", 3),
        ("from pathlib import Path\nx = str(Path('a/b.txt').with_suffix('.md'))", "a/b.md"), ("from pathlib import Path\nx = str(Path('a/b.txt').with_name('c'))", "a/c"),
        ("from pathlib import Path\nx = str(Path('a').joinpath('b').resolve())", "a/b"), ("from pathlib import Path\nx = Path('c.json').exists()", True),
        ("from pathlib import Path\nx = str(Path('a/b').parent)", "a"), ("from pathlib import Path\nwith Path('c.yaml').open() as f:\n    import yaml\n    x = yaml.safe_load(f)['a']['b']", 3),
        ("d = {'a': 1, 'b': 2}\nx = [k for k in d.keys()] + [v for v in d.values()]", ["a", "b", 1, 2]), ("x = {k: v for k, v in {'a': 1}.items()}", {"a": 1}),
        ("d = {'a': 1}\nx = {**d.copy(), 'b': 2}", {"a": 1, "b": 2}), ("d = {}\nx = d.pop('k', 4)", 4), ("x = {'a': 1}.get('a', 0)", 1), ("x = {}.get('k')", None),
        ("from omegaconf import OmegaConf\nc = OmegaConf.merge({'a': {'b': 1}}, {'a': {'c': 2}})\nx = c.a.b + c.a.c", 3), ("from omegaconf import OmegaConf\nx = OmegaConf.to_container(OmegaConf.from_dotlist(['a.b=3']))['a']['b']", 3),
        ("from mmengine import Config\nc = Config.fromfile('c.yaml')\nc.merge_from_dict({'a.b': 5})\nx = c.a.b", 5), ("from yacs.config import CfgNode\nc = CfgNode()\nc.a = CfgNode()\nc.a.b = 1\nc.merge_from_file('c.yaml')\nc.freeze()\nx = c.a.b", 3),
        ("import argparse\nx = vars(argparse.Namespace(a=3))['a']", 3), ("import os\nx = os.environ.setdefault('K', '7')", "7"), ("import os\nx = os.environ.get('SLURM_X', 'none')", "none"),
        ("from functools import partial\nx = partial(dict, a=1)", None), ("x = [n for n in open('gone')]", None), ("import torch\nx = torch.rand(3)[0]", None), ("x = 'a' * 10**9", None), ("x = 10 ** 10 ** 10", None),
        ("x = 1 / 0", None), ("x = 'a' + 1", None), ("x = [][3]", None), ("x = int('n')", None), ("x = undefined_name", None), ("x = (lambda: (yield))()", None), ("x = max([])", None), ("x = {}['k']", None),
    ],
)  # fmt: skip
def test_a_method_gives_what_python_gives_or_nothing(program, value):
    machine = Program(Files(Tree(FILES | {"t.py": program.encode()})), program="t.py")
    scope = machine.run("t.py")
    got = plain(scope.names["x"]) if "x" in scope.names else UNKNOWN
    assert (None if got is UNKNOWN else got) == value
