"""How many steps a job takes, where the job itself (or a data set whose size is well known) tells; else nothing is said."""

from __future__ import annotations

import pytest

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded

LOADER = "from torch.utils.data import DataLoader, Dataset, Subset, DistributedSampler\nimport torch\nopt = torch.optim.SGD([], 0.1)\n"
LOOP = "for epoch in range(4):\n    for batch in loader:\n        opt.step()\n"


def steps(source, command="python t.py"):
    found = analyze(Subject(command=tuple(command.split())), bounded({"t.py": (LOADER + source + LOOP).encode()}))
    field = found.fields.get("total_steps")
    return None if field is None else field.value


@pytest.mark.parametrize(
    ("source", "command", "total"),
    [
        ("loader = DataLoader([0] * 100, batch_size=10)\n", "python t.py", 40),
        ("loader = DataLoader([0] * 105, batch_size=10)\n", "python t.py", 44),
        ("loader = DataLoader([0] * 105, batch_size=10, drop_last=True)\n", "python t.py", 40),
        ("loader = DataLoader(Subset([0] * 500, [0] * 60), batch_size=10)\n", "python t.py", 24),
        ("d = [0] * 160\nloader = DataLoader(d, batch_size=10, sampler=DistributedSampler(d))\n", "torchrun --nproc_per_node 4 t.py", 16),
        ("class D(Dataset):\n    def __len__(self):\n        return 70\nloader = DataLoader(D(), batch_size=10)\n", "python t.py", 28),
        ("class D(Dataset):\n    def __len__(self):\n        return len(self.files)\nloader = DataLoader(D(), batch_size=10)\n", "python t.py", None),
        ("import torchvision\nd = torchvision.datasets.MNIST('.', train=True)\nloader = DataLoader(d, batch_size=100)\n", "python t.py", 2400),
        ("import torchvision\nd = torchvision.datasets.MNIST('.', train=False)\nloader = DataLoader(d, batch_size=100)\n", "python t.py", 400),
        ("import torchvision\nd = torchvision.datasets.ImageNet('.', split='train')\nloader = DataLoader(d, batch_size=1000)\n", "python t.py", 5128),
        ("import torchvision\nd = torchvision.datasets.VOCDetection('.', year='2012', image_set='trainval')\nloader = DataLoader(d, batch_size=10)\n", "python t.py", 4616),
        ("import torchvision\nd = torchvision.datasets.VOCDetection('.', year='2007')\nloader = DataLoader(d, batch_size=10)\n", "python t.py", 1004),
        ("import torchvision\nd = torchvision.datasets.VOCDetection('.', year='2010')\nloader = DataLoader(d, batch_size=10)\n", "python t.py", None),
        ("from datasets import load_dataset\nd = load_dataset('imdb', split='train[:10%]')\nloader = DataLoader(d, batch_size=100)\n", "python t.py", 100),
        ("from datasets import load_dataset\nd = load_dataset('imdb', split='train').take(300)\nloader = DataLoader(d, batch_size=100)\n", "python t.py", 12),
        ("from datasets import load_dataset\nd = load_dataset('imdb', split='train').filter(bool)\nloader = DataLoader(d, batch_size=100)\n", "python t.py", None),
        ("from datasets import load_dataset\nd = load_dataset('nobody/knows', split='train')\nloader = DataLoader(d, batch_size=100)\n", "python t.py", None),
        ("loader = DataLoader([0] * 100, batch_size=0)\n", "python t.py", None),
    ],
)  # fmt: skip
def test_steps_follow_from_lengths_that_are_known(source, command, total):
    assert steps(source, command) == total
