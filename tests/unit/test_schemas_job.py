"""The job's one schema: what it takes, what it refuses and with which words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schedmate.schemas.job import (
    COMMAND_BYTES_MAX,
    ENV_BYTES_MAX,
    PRIORITY_RANK,
    SCRIPT_BYTES_MAX,
    JobRequest,
    JobSpec,
    PriorityClass,
)

LEAST: dict[str, Any] = {"name": "a", "command": ("true",)}
SHA = "0" * 64


def changed(**fields: object) -> dict[str, Any]:
    """Return the least job with these fields; None takes one away."""
    return {name: value for name, value in {**LEAST, **fields}.items() if value is not None}


ALLOWED = {
    "the least": changed(),
    "a script instead of a command": changed(command=None, script="echo hello\n"),
    "a script as large as allowed": changed(command=None, script="x" * SCRIPT_BYTES_MAX),
    "a command as long as allowed": changed(command=("x" * (COMMAND_BYTES_MAX - 1),)),
    "empty arguments": changed(command=("python", "", "a b", "ü\n")),
    "a gang": changed(gpus=8, nodes=64),
    "a part of a GPU": changed(gpu_milli=1),
    "all of a GPU, said so": changed(gpu_milli=1000, gpus=8, nodes=2),
    "a GPU type": changed(gpu_type="A100-SXM4-80GB"),
    "a GPU memory": changed(gpu_memory_gib=79.5),
    "a time limit of a year": changed(time_limit_s=366 * 86400),
    "each priority": changed(priority="urgent"),
    "an environment": changed(env={"_A1": "x\ny", "PATH": ""}),
    "an environment as large as allowed": changed(env={"A": "x" * (ENV_BYTES_MAX - 3)}),
    "a working directory": changed(workdir="/data/ü"),
    "a bundle with its entry": changed(bundle=SHA, entry="src/train.py"),
    "an entry in the working directory": changed(workdir="/data", entry="train.py"),
    "no retries": changed(retries=0),
    "a checkpoint directory and a flag": changed(checkpoint_dir="ckpt", resume_flag="--resume"),
    "a name of 200 characters": changed(name="ü" * 200),
    "names with dots and dashes": changed(tenant="a.b-c_d", pool="0", user="Maria Müller <m@example.org>"),
}

REFUSED = {
    "no name": (changed(name=None), "name"),
    "an empty name": (changed(name=""), "at least 1 character"),
    "a name that is too long": (changed(name="x" * 201), "at most 200 characters"),
    "a name with a line end": (changed(name="a\nb"), "pattern"),
    "a name that ends with a line end": (changed(name="a\n"), "pattern"),
    "a name with DEL": (changed(name="a\x7f"), "pattern"),
    "neither command nor script": (changed(command=None), "exactly one of command and script"),
    "both command and script": (changed(script="true"), "exactly one of command and script"),
    "an empty command": (changed(command=()), "command must name a program"),
    "an empty program": (changed(command=("", "x")), "command must name a program"),
    "a NUL in the command": (changed(command=("a\x00b",)), "pattern"),
    "a lone surrogate": (changed(command=("a\ud800",)), "as a unicode string"),
    "a command that is too long": (changed(command=("x" * COMMAND_BYTES_MAX,)), "command is longer than"),
    "a command that is too long in bytes": (changed(command=("ü" * (COMMAND_BYTES_MAX // 2),)), "command is longer than"),
    "too many arguments": (changed(command=("x",) * 1001), "at most 1000 items"),
    "a blank script": (changed(command=None, script=" \n"), "script must hold 1 to"),
    "a script that is too long": (changed(command=None, script="x" * (SCRIPT_BYTES_MAX + 1)), "at most 65536 characters"),
    "a script that is too long in bytes": (changed(command=None, script="ü" * SCRIPT_BYTES_MAX), "script must hold 1 to"),
    "no GPU": (changed(gpus=0), "greater than or equal to 1"),
    "half a GPU": (changed(gpus=0.5), "valid integer"),
    "more GPUs than a node can have": (changed(gpus=1025), "less than or equal to 1024"),
    "nothing of a GPU": (changed(gpu_milli=0), "greater than or equal to 1"),
    "more than a GPU in thousandths": (changed(gpu_milli=1001), "less than or equal to 1000"),
    "a part that is no whole number": (changed(gpu_milli=0.5), "valid integer"),
    "parts of two GPUs": (changed(gpu_milli=500, gpus=2), "gpu_milli is a part of one GPU"),
    "parts on two nodes": (changed(gpu_milli=500, nodes=2), "gpu_milli is a part of one GPU"),
    "no node": (changed(nodes=0), "greater than or equal to 1"),
    "a GPU type with a slash": (changed(gpu_type="A/100"), "pattern"),
    "GPU memory of 0": (changed(gpu_memory_gib=0), "greater than 0"),
    "GPU memory that is no number": (changed(gpu_memory_gib=float("nan")), "finite number"),
    "an infinite GPU memory": (changed(gpu_memory_gib=float("inf")), "gpu_memory_gib"),
    "a time limit of 0": (changed(time_limit_s=0), "greater than or equal to 1"),
    "another priority": (changed(priority="asap"), "'low', 'normal', 'high' or 'urgent'"),
    "a variable with an equals sign": (changed(env={"A=B": ""}), "pattern"),
    "a variable that begins with a digit": (changed(env={"1A": ""}), "pattern"),
    "a NUL in a variable": (changed(env={"A": "\x00"}), "pattern"),
    "an environment that is too large": (changed(env={"A": "x" * ENV_BYTES_MAX}), "env is larger than"),
    "an environment of too many variables": (changed(env={f"A{n}": "" for n in range(501)}), "at most 500 items"),
    "a bundle that is no sha256": (changed(bundle="abc"), "pattern"),
    "a bundle in capitals": (changed(bundle="A" * 64), "pattern"),
    "an entry in nothing": (changed(entry="train.py"), "entry needs a bundle or a workdir"),
    "negative retries": (changed(retries=-1), "greater than or equal to 0"),
    "retries for ever": (changed(retries=101), "less than or equal to 100"),
    "a tenant that is a path": (changed(tenant="../x"), "pattern"),
    "a tenant that begins with a dot": (changed(tenant=".x"), "pattern"),
    "a tenant that ends with a line end": (changed(tenant="x\n"), "pattern"),
    "a pool name that is too long": (changed(pool="x" * 64), "pattern"),
    "a user with a control character": (changed(user="a\x1b[31m"), "pattern"),
    "a field that nobody knows": (changed(gpu=1), "Extra inputs are not permitted"),
}  # fmt: skip


@pytest.mark.parametrize("fields", ALLOWED.values(), ids=ALLOWED)
def test_a_job_is_taken_and_survives_json(fields: dict[str, Any]):
    job = JobRequest(**fields)
    assert JobRequest.model_validate_json(job.model_dump_json(), strict=True) == job


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED)
def test_a_job_is_refused_and_told_why(fields: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        JobRequest(**fields)


def test_a_request_may_leave_out_what_the_token_decides_and_an_accepted_job_may_not():
    request = JobRequest(**LEAST)
    assert (request.tenant, request.user, request.pool) == (None, None, None)
    with pytest.raises(ValidationError) as caught:
        JobSpec(**LEAST)
    assert {error["loc"][0] for error in caught.value.errors()} == {"tenant", "user", "pool"}


def test_what_a_user_does_not_say_is_one_gpu_on_one_node_with_one_retry():
    job = JobRequest(**LEAST)
    assert (job.gpus, job.nodes, job.retries, job.priority, job.env) == (1, 1, 1, PriorityClass.NORMAL, {})


def test_a_whole_gpu_is_written_as_it_was_before_there_were_parts():
    assert "gpu_milli" not in JobRequest(**LEAST).model_dump()
    assert "gpu_milli" not in JobRequest(**changed(gpu_milli=1000)).model_dump_json()
    assert JobRequest(**changed(gpu_milli=250)).model_dump()["gpu_milli"] == 250


def test_gpus_are_per_node():
    assert JobSpec(**changed(gpus=4, nodes=2, tenant="t", user="u", pool="p")).gpus_total == 8


def test_priorities_are_ranked_low_normal_high_urgent():
    assert sorted(PriorityClass, key=PRIORITY_RANK.__getitem__) == ["low", "normal", "high", "urgent"]


def test_a_job_is_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        JobRequest(**LEAST).gpus = 2  # type: ignore[misc]
