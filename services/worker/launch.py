"""What a member is started with: its command and its environment, built and never inherited (design §9). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedmate.schemas.events import MemberAssigned, MemberAssignedV2
from schedmate.services.worker.holding import is_share

SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Base:
    """What the node gives every job."""

    path: str
    home: str
    lang: str
    tz: str
    user: str


def command(assigned: MemberAssigned) -> tuple[str, ...]:
    """Return argv. A resume flag that the job declares is appended, with the checkpoint, when there is one."""
    spec = assigned.spec
    argv = spec.command if spec.command is not None else (SHELL, "-e", "-c", spec.script or "", SHELL)
    if assigned.resume_from is None or spec.resume_flag is None:
        return argv
    if spec.resume_flag.endswith("="):
        return (*argv, f"{spec.resume_flag}{assigned.resume_from}")
    return (*argv, spec.resume_flag, assigned.resume_from)


def environment(assigned: MemberAssigned, base: Base, checkpoint_dir: str) -> dict[str, str]:
    """Return the whole environment: the node's, then the job's, then what the job must not change."""
    env = {
        "PATH": base.path,
        "HOME": base.home,
        "USER": base.user,
        "LOGNAME": base.user,
        "LANG": base.lang,
        "TZ": base.tz,
        "PYTHONUNBUFFERED": "1",  # output to a file is block-buffered otherwise, and progress would come minutes late
    }
    env |= assigned.spec.env
    env |= _schedmate(assigned, checkpoint_dir)
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, assigned.gpus))
    held = MemberAssignedV2.of(assigned)
    if is_share(held):  # nothing bounds what the program takes of the GPU: it is told what it may
        env["SCHEDMATE_GPU_MILLI"] = str(held.gpu_milli)
    if assigned.members > 1:
        env |= _gang(assigned)
    return env


def _schedmate(assigned: MemberAssigned, checkpoint_dir: str) -> Mapping[str, str]:
    env = {
        "SCHEDMATE_JOB_ID": assigned.job_id,
        "SCHEDMATE_RUN_ID": assigned.run_id,
        "SCHEDMATE_ATTEMPT": str(assigned.attempt),
        "SCHEDMATE_MEMBER": str(assigned.member),
        "SCHEDMATE_NODE": assigned.node,
        "SCHEDMATE_CHECKPOINT_DIR": checkpoint_dir,
    }
    if assigned.resume_from is not None:
        env["SCHEDMATE_RESUME_FROM"] = assigned.resume_from
    return env


def _gang(assigned: MemberAssigned) -> Mapping[str, str]:
    """Return the variables that torchrun and its like read. WORLD_SIZE counts processes: one a GPU."""
    gpus = len(assigned.gpus)
    env = {
        "MASTER_ADDR": assigned.master_addr,
        "MASTER_PORT": str(assigned.master_port),
        "NNODES": str(assigned.members),
        "NODE_RANK": str(assigned.member),
        "GROUP_RANK": str(assigned.member),
        "NPROC_PER_NODE": str(gpus),
        "LOCAL_WORLD_SIZE": str(gpus),
        "WORLD_SIZE": str(gpus * assigned.members),
    }
    if gpus == 1:
        env |= {"RANK": str(assigned.member), "LOCAL_RANK": "0"}
    return env
