"""Files that code-analyzer follows a second, beside bare `ast.parse` of the same files: `python benchmarks/analyzer.py`."""

from __future__ import annotations

import ast
from time import process_time

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded

MODULES = 80
ROUNDS = 5
BODY = "\n".join(
    f"class Layer{n}(nn.Module):\n    def __init__(self, width={n}, depth=2):\n        super().__init__()\n"
    f"        self.width = width * {n} + depth\n        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])\n\n"
    f"    def forward(self, x):\n        for layer in self.layers:\n            x = torch.relu(layer(x)) + self.width\n        return x\n"
    for n in range(12)
)


def repository() -> dict[str, bytes]:
    """Return a program of many modules, each of which imports the next."""
    files = {"train.py": b"import pkg.m0\nfor epoch in range(3):\n    print(epoch)\n", "pkg/__init__.py": b""}
    for number in range(MODULES - 2):
        head = f"import torch\nfrom torch import nn\nfrom pkg import m{number + 1}\nEPOCHS = {number}\n"
        files[f"pkg/m{number}.py"] = (head + BODY).encode()
    return files


def main() -> None:
    """Print both rates and their ratio."""
    files = repository()
    tree = bounded(files)
    parsed, followed = [], []
    for _ in range(ROUNDS):
        started = process_time()
        for content in files.values():
            ast.parse(content)
        parsed.append(process_time() - started)
        started = process_time()
        analyze(Subject(command=("python", "train.py")), tree)
        followed.append(process_time() - started)
    bare, ours = len(files) / min(parsed), len(files) / min(followed)
    print(f"ast.parse {bare:8.0f} files/s\nanalyze   {ours:8.0f} files/s\nratio     {ours / bare:8.2f}")


if __name__ == "__main__":
    main()
