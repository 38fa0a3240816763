"""Makefiles with includes and conditions, notebooks with files of parameters, devices that the program names."""

from __future__ import annotations

import json

import pytest

from schedmate.services.code_analyzer.analysis import Subject, analyze
from schedmate.services.code_analyzer.source import bounded

TRAIN = "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int, default=1)\na = p.parse_args()\nfor epoch in range(a.epochs):\n    pass\n"
RULE = "train:\n\tpython train.py --epochs $(N)\n"


def look(files, command):
    found = analyze(Subject(command=tuple(command.split())), bounded({k: v.encode() for k, v in files.items()}))
    return {name: (field.value, field.file) for name, field in found.fields.items()}


@pytest.mark.parametrize(
    ("makefile", "given", "epochs"),
    [
        ("include hyper.mk\n" + RULE, "", 7),
        ("-include none.mk hyper.mk\n" + RULE, "", 7),
        ("N = 2\nifeq ($(SIZE),big)\nN = 9\nendif\n" + RULE, "", 2),
        ("N = 2\nifeq ($(SIZE),big)\nN = 9\nendif\n" + RULE, "SIZE=big", 9),
        ('N = 2\nifneq "$(SIZE)" "big"\nN = 4\nelse\nN = 9\nendif\n' + RULE, "SIZE=big", 9),
        ("ifdef SIZE\nN = 9\nelse\nN = 4\nendif\n" + RULE, "", 4),
        ("ifeq ($(SIZE),a)\nN = 1\nelse ifeq ($(SIZE),b)\nN = 5\nelse\nN = 3\nendif\n" + RULE, "SIZE=b", 5),
        ("ifeq ($(SIZE),a)\nN = 1\nelse ifeq ($(SIZE),b)\nN = 5\nelse\nN = 3\nendif\n" + RULE, "SIZE=a", 1),
        ("ifndef N\nifeq (1,1)\nN = 6\nendif\nendif\n" + RULE, "", 6),
        ("include a.mk\n" + RULE, "", 8),
    ],
)
def test_a_makefiles_includes_and_conditions_are_followed(makefile, given, epochs):
    files = {
        "Makefile": makefile,
        "hyper.mk": "N = 7\n",
        "a.mk": "include b.mk\n",
        "b.mk": "N = 8\n",
        "train.py": TRAIN,
    }
    assert look(files, f"make train {given}".strip())["epochs"][0] == epochs


def test_a_makefile_that_includes_itself_ends():
    assert look({"Makefile": "include Makefile\nN = 3\n" + RULE, "train.py": TRAIN}, "make")["epochs"][0] == 3


def test_a_value_of_an_included_file_rests_on_that_file():
    found = look({"Makefile": "include hyper.mk\n" + RULE, "hyper.mk": "# x\nN = 7\n", "train.py": TRAIN}, "make")
    assert found["epochs"] == (7, "hyper.mk")


@pytest.mark.parametrize(
    ("words", "epochs"),
    [("-f p.yaml", 5), ("-f p.yaml -p n 8", 8), ("-y '{n: 6}'", 6), ("-p n 8 -f p.yaml", 8), ("", 3)],
)
def test_a_notebooks_parameters_come_from_a_file_and_the_command_line_after_it(words, epochs):
    cells = [
        {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["n = 3"]},
        {"cell_type": "code", "metadata": {}, "source": ["import torch\n", "for epoch in range(n):\n", "    pass\n"]},
    ]
    files = {
        "t.ipynb": json.dumps({"cells": cells}),
        "p.yaml": "n: 5\n",
        "run.sh": f"papermill t.ipynb o.ipynb {words}\n",
    }
    assert look(files, "bash run.sh")["epochs"][0] == epochs


def test_devices_that_a_strategy_names_are_counted():
    text = (
        "import tensorflow as tf\ns = tf.distribute.MirroredStrategy(['GPU:0', 'GPU:1'])\n"
        "with s.scope():\n    m = tf.keras.Sequential()\nm.compile('adam')\nm.fit(x, y, batch_size=64, epochs=2)\n"
    )
    found = look({"t.py": text}, "python t.py")
    assert [found[n][0] for n in ("gpus_per_node", "batch_size_per_device", "global_batch_size")] == [2, 32, 64]
