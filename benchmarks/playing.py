"""What the benchmarks play: the events of ingest and of nodes, so that a dispatcher meets what it meets in a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from schedmate.schemas import events as e
from schedmate.schemas.codec import encode
from schedmate.schemas.job import JobSpec
from schedmate.schemas.wire import Envelope, Record

POOL = "default"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def submitted(job_id: str, at: float, gpus: int = 1, nodes: int = 1) -> Record:
    """Return the record of a job as ingest publishes it."""
    command = ("python", "train.py", "--epochs", "90", "--batch-size", "256")
    spec = JobSpec(
        name="resnet",
        tenant="t1",
        user="ann",
        pool=POOL,
        command=command,
        gpus=gpus,
        nodes=nodes,
        env={"DATA": "/data/imagenet"},
    )
    event = e.JobSubmitted(job_id=job_id, pool=POOL, spec=spec, submitted_at=at)
    return encode(Envelope(job_id, "schedmate/ingest", at, event, TRACE))


def reported(
    node: str,
    gpus: int,
    at: float,
    number: int = 1,
    applied: tuple[int, int] = (-1, -1),
    runs: Sequence[e.RunReport] = (),
) -> Record:
    """Return the record of a node's report; its lease outlasts every benchmark."""
    event = e.NodeReported(
        node=node, pool=POOL, boot_id="boot", session=1, report_no=number, applied_seq=applied[0], applied_index=applied[1],
        address="127.0.0.1", port_min=20000, port_max=29999, gpus=tuple(e.GpuReport(index=n, type="a100", memory_mib=40960) for n in range(gpus)),
        runs=tuple(runs), lease_s=3600.0, at=at,
    )  # fmt: skip
    return encode(Envelope(f"{node}-{number}", f"schedmate/worker/{node}", at, event, None))


def run_of(order: e.MemberAssigned, at: float) -> list[Record]:
    """Return the records of a member that started and exited 0, as its worker publishes them."""
    base = {
        "job_id": order.job_id,
        "pool": POOL,
        "run_id": order.run_id,
        "attempt": order.attempt,
        "member": order.member,
        "node": order.node,
        "session": order.session,
    }
    started = e.RunStarted(**base, pid=1, gpus=order.gpus, started_at=at)
    exited = e.RunExited(**base, cause=e.ExitCause.EXITED, exit_code=0, log_bytes=0, started_at=at, ended_at=at)
    source = f"schedmate/worker/{order.node}"
    return [
        encode(Envelope(f"{order.run_id}.{order.member}.{kind}", source, at, event, TRACE))
        for kind, event in (("started", started), ("exited", exited))
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which so large a share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
