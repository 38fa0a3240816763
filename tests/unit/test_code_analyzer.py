"""code-analyzer's domain: launch commands, arguments and their defaults, the syntax tree, and hostile input."""

from __future__ import annotations

import pytest

from schedmate.schemas.events import WORKLOAD_FIELDS, Basis
from schedmate.services.code_analyzer.analysis import Subject, analyze, content_hash, tree_hash
from schedmate.services.code_analyzer.source import Tree, bounded

TRAIN = b"""
import argparse
import torch, wandb
from torch.utils.tensorboard import SummaryWriter

STEPS = 2 * 500
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--max-steps", type=int, default=STEPS)
parser.add_argument("--model", default="resnet50")
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--resume", default=None)
parser.add_argument("--save-every", type=int, default=100)
args = parser.parse_args()
optimizer = torch.optim.AdamW([], lr=1e-3)
torch.save({}, "x.pt")
"""


def look(command=None, files=None, **given):
    command = tuple(command.split()) if isinstance(command, str) else command
    return analyze(Subject(command=command, **given), bounded(files or {}))


def values(analysis):
    return {name: field.value for name, field in analysis.fields.items()}


def test_the_last_launch_of_a_script_counts_and_has_its_line():
    script = "#!/bin/sh\nset -e\npython prepare.py --epochs 1\nGPUS=2\ntorchrun --nproc_per_node=$GPUS train.py --epochs 7\necho done\n"
    found = look(None, {"train.py": TRAIN}, script=script)
    assert values(found)["epochs"] == 7
    assert (found.fields["epochs"].file, found.fields["epochs"].line) == ("script", 5)
    assert values(found)["gpus_per_node"] == 2


def test_a_script_of_the_bundle_is_followed_with_its_arguments():
    files = {"run.sh": b"python train.py --epochs $1 $EXTRA\n", "train.py": TRAIN}
    found = look("bash run.sh 9", files, environment={"EXTRA": "--fp16"})
    assert (values(found)["epochs"], values(found)["precision"]) == (9, "fp16")
    assert found.fields["epochs"].file == "run.sh"


def test_scripts_that_run_each_other_for_ever_end():
    assert look("bash a.sh", {"a.sh": b"bash b.sh", "b.sh": b"bash a.sh"}).partial_because is not None


# --- arguments -------------------------------------------------------------------------------------------------------


def test_the_programs_defaults_are_taken_with_their_lines():
    found = look("python train.py", {"train.py": TRAIN})
    assert values(found).items() >= {
        "framework": "pytorch", "model_name": "resnet50", "batch_size_per_device": 32, "epochs": 3, "max_steps": 1000,
        "total_steps": 1000, "optimizer": "adamw", "launcher": "python", "saves_checkpoints": True, "resume_supported": True,
        "precision": "fp32", "grad_accum": 1, "grad_checkpointing": False,
    }.items()  # fmt: skip
    epochs = found.fields["epochs"]
    assert (epochs.basis, epochs.file, epochs.line) == (Basis.EXPLICIT, "train.py", 8)
    assert found.partial_because is None


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--epochs 9", "epochs", 9),
        ("--epochs=9", "epochs", 9),
        ("--epo 9", "epochs", 9),
        ("-b 64", "batch_size_per_device", 64),
        ("--fp16", "precision", "fp16"),
        ("--max-steps 1e4", "max_steps", 10000),
        ("--trainer.max_epochs=12", "epochs", 12),
        ("trainer.max_epochs=12", "epochs", 12),
        ("--report_to wandb", "logging", ("wandb",)),
        ("--gradient_checkpointing true", "grad_checkpointing", True),
        ("--gradient_checkpointing false", "grad_checkpointing", False),
        ("--gradient-accumulation-steps 8", "grad_accum", 8),
        ("--per_device_train_batch_size 2", "batch_size_per_device", 2),
        ("--dataset_name openwebtext", "dataset", "openwebtext"),
        ("--bf16", "precision", "bf16"),
        ("--save-every 0", "saves_checkpoints", True),
    ],
)
def test_what_the_command_gives_overrides_the_default(flags, name, value):
    found = look(f"python train.py {flags}", {"train.py": TRAIN})
    assert values(found)[name] == value
    if name != "saves_checkpoints":
        assert found.fields[name].file == "command"


@pytest.mark.parametrize(
    "flags", ["--epochs ten", "--epochs -3", "--epochs 0", "--epochs 1e99", "--epochs $N", "--lr 0.1"]
)
def test_what_is_no_value_of_the_field_is_not_taken(flags):
    assert "epochs" not in values(look(f"python unknown.py {flags}"))


def test_without_source_the_command_alone_tells_and_says_so():
    found = look("python train.py --epochs 4", gpus=2, nodes=1)
    assert values(found) == {"epochs": 4, "launcher": "python", "gpus_per_node": 2, "nodes": 1}
    assert found.partial_because == "there is no source to read"
    assert found.fields["gpus_per_node"].basis is Basis.INFERRED


def test_a_program_we_do_not_know_is_read_by_its_well_known_flags():
    found = look("fairseq-train data --max-update 1000 --update-freq 4")
    assert (
        values(found).items()
        >= {"framework": "fairseq", "max_steps": 1000, "total_steps": 1000, "grad_accum": 4}.items()
    )


def test_the_global_batch_is_computed_from_its_parts():
    found = look(
        "torchrun --nproc_per_node 4 --nnodes 2 t.py --per_device_train_batch_size 8 --gradient_accumulation_steps 2"
    )
    field = found.fields["global_batch_size"]
    assert (field.value, field.basis) == (128, Basis.COMPUTED)


def test_arguments_keywords_and_constants_of_imported_files_count_in_their_order():
    files = {
        "train.py": b"from options import args\nEPOCHS = 2\nmodel.fit(epochs=5)\nTrainer(max_steps=50)\n",
        "options.py": b"import click\n@click.option('--num-epochs', default=4)\ndef main(num_epochs): ...\n",
    }
    found = look("python train.py", files)
    assert (values(found)["epochs"], found.fields["epochs"].file) == (5, "train.py")  # what `fit` is given
    assert values(found)["max_steps"] == 50


# --- what may not do harm --------------------------------------------------------------------------------------------

HOSTILE = {
    "syntax": b"def f(:\n",
    "nested": b"x = " + b"(" * 5000 + b")" * 5000,
    "deep": b"x = " + b"-" * 50_000 + b"1",
    "attributes": b"x" + b".a" * 50_000,
    "nul": b"x = 1\x00\n",
    "bytes": bytes(range(256)) * 10,
    "power": b"EPOCHS = 9**9**9**9\nmax_steps = 10**60\n",
    "number": b"EPOCHS = " + b"9" * 5000,
    "import": b"__import__('os').system('touch /tmp/schedmate-was-run')\n",
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_source_ends_in_a_partial_analysis(kind):
    found = look("python train.py --epochs 2", {"train.py": HOSTILE[kind]})
    assert values(found)["epochs"] == 2
    assert "max_steps" not in values(found)


@pytest.mark.parametrize(
    "script",
    ["'" * 1000, '"$(' * 500, "\\\n" * 5000, "A=$A$A\n" * 100 + "python t.py --x $A", "${" * 2000, 'python t.py "unclosed', "#" * 70000],
)  # fmt: skip
def test_a_hostile_script_is_read_to_an_end(script):
    analyze(Subject(script=script), Tree())


def test_only_known_fields_come_out_and_unknown_ones_are_absent():
    found = look("python train.py", {"train.py": TRAIN})
    assert set(found.fields) <= set(WORKLOAD_FIELDS)
    assert all(field.value is not None for field in found.fields.values())


def test_the_hash_changes_with_everything_that_an_analysis_depends_on():
    base = Subject(command=("python", "t.py"), gpus=1, nodes=1)
    same = Subject(command=("python", "t.py"), gpus=1, nodes=1)
    others = [
        Subject(command=("python", "u.py"), gpus=1, nodes=1), Subject(command=("python", "t.py"), gpus=2, nodes=1),
        Subject(command=("python", "t.py"), gpus=1, nodes=1, environment={"A": "1"}),
    ]  # fmt: skip
    assert content_hash(base, "s") == content_hash(same, "s")
    assert len({content_hash(s, "s") for s in [base, *others]} | {content_hash(base, "t")}) == 5
    assert tree_hash(Tree({"a": b"1"})) != tree_hash(Tree({"a": b"2"}))


def test_a_tree_is_bounded_and_says_what_it_left_out():
    tree = bounded({"a.py": b"x" * (2 << 20), "b.py": b"y", "data/c.bin": b"z"})
    assert list(tree.files) == ["b.py"]
    assert "a.py is larger" in tree.left_out[0]


# --- what the code shows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("model = torchvision.models.resnet18()", "model_name", "resnet18"),
        ("model = AutoModel.from_pretrained('bert-base-uncased')", "model_name", "bert-base-uncased"),
        ("data = load_dataset('wikitext')", "dataset", "wikitext"),
        ("data = torchvision.datasets.CIFAR10('d')", "dataset", "CIFAR10"),
        ("model = DDP(model)", "strategy", "ddp"),
        ("model = FullyShardedDataParallel(model)", "strategy", "fsdp"),
        ("model.gradient_checkpointing_enable()", "grad_checkpointing", True),
        ("scaler = torch.cuda.amp.GradScaler()", "precision", "fp16"),
        ("from torch.optim import SGD\nopt = SGD([])", "optimizer", "sgd"),
        ("opt = keras.optimizers.RMSprop()", "optimizer", "rmsprop"),
        ("model.save_pretrained('x')", "saves_checkpoints", True),
        ("s = torch.load('c'); model.load_state_dict(s)", "resume_supported", True),
        ("args = TrainingArguments(num_train_epochs=3)", "epochs", 3),
        ("batch_size: int = 4 * 8", "batch_size_per_device", 32),
        ("import jax", "framework", "jax"),
        ("import pytorch_lightning as pl\nimport torch", "framework", "lightning"),
        ("model_name = 'mistral-7b'", "model_params", 7e9),
    ],
)
def test_a_line_of_code_shows_a_field(line, name, value):
    assert values(look("python t.py", {"t.py": line.encode()}))[name] == value


def test_a_batch_scripts_directives_and_an_inline_shell_are_read():
    script = b'#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nN=2\nsrun bash -c "torchrun --nproc_per_node=$N t.py --epochs 3"\n'
    found = analyze(Subject(entry="run.sbatch"), bounded({"run.sbatch": script, "t.py": b""}))
    assert {k: values(found)[k] for k in ("nodes", "gpus_per_node", "epochs", "launcher")} == {
        "nodes": 4, "gpus_per_node": 2, "epochs": 3, "launcher": "torchrun",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "files", "epochs"),
    [
        ("python -m pkg.train", {"pkg/train.py": TRAIN}, 3),
        ("python -m pkg", {"pkg/__main__.py": TRAIN}, 3),
        ("python deep/train.py", {"src/deep/train.py": TRAIN}, 3),
        ("python gone.py", {"a/train.py": TRAIN, "b/train.py": TRAIN}, None),
    ],
)
def test_the_program_is_found_among_the_source(command, files, epochs):
    assert values(look(command, files)).get("epochs") == epochs


def test_the_entry_serves_where_no_launch_is_recognised():
    found = look("./mystery", {"t.py": TRAIN}, entry="t.py")
    assert values(found)["epochs"] == 3
    assert look("./mystery", {"t.py": TRAIN}).partial_because == "no command that starts a program we know was found"
    assert values(analyze(Subject(entry="t.py"), bounded({"t.py": TRAIN})))["launcher"] == "python"


def test_all_processes_of_a_job_are_shared_among_its_nodes():
    found = look("accelerate launch --num_processes 8 --num_machines 2 --mixed_precision bf16 t.py")
    assert (values(found)["gpus_per_node"], values(found)["nodes"], values(found)["precision"]) == (4, 2, "bf16")


def test_plain_python_on_several_gpus_claims_no_global_batch():
    assert "global_batch_size" not in values(look("python t.py --per_device_train_batch_size 8", gpus=4, nodes=1))
