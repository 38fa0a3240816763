"""Traces of every kind are read, by their columns; what cannot be read is said with its line and column."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from schedmate.simulator.cluster import from_list, from_table, uniform
from schedmate.simulator.generate import HEADER, philly_like, rows
from schedmate.simulator.readers import read_trace
from schedmate.simulator.runs import Setting, run_one, usable
from schedmate.simulator.trace import TraceError

PHILLY = "job_id,vc,submit_s,submit_local,num_gpus,duration_s,in_pollux_subset\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
ACME = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
MURI = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0\n"
PAI = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
SACCT = "JobID|User|Account|Partition|Submit|Start|End|State|AllocTRES\n"

FORMATS = [
    ("philly", PHILLY + "a,vc1,5,2017-10-01 00:00:05,2,60,1\n", ("a", 5, 2, 60, "vc1")),
    ("csv", "job_id,submit_s,num_gpus,duration_s\na,5,2,60\n", ("a", 5, 2, 60, "default")),
    ("csv", "order,job_id,submit_s,num_gpus,duration_s,pred_noise_s\n0,a,5,2,60,-7\n", ("a", 5, 2, 60, "default")),
    ("muri", MURI + "a,2,5000,1,m,8,60000,1,1,1\n", ("a", 5, 2, 60, "default")),
    ("tiresias", "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\na,2,5,1,m,60,0\n", ("a", 5, 2, 60, "default")),
    ("openb", OPENB + "c,1,1,0,0,,LS,Running,0,9,0\na,1,1,2,1000,V100,LS,Running,5,70,10\n", ("a", 5, 2, 60, "default")),
    ("helios-acme", HELIOS + "c,u,v,0,4,1,COMPLETED,2020-04-01 00:00:00,x,x,5,0\n"
                             "a,u,v,2,4,1,COMPLETED,2020-04-01 00:00:05,2020-04-01 00:00:06,2020-04-01 00:01:06,60,1\n", ("a", 0, 2, 60, "v")),
    ("helios-acme", ACME + "a,u,1,2.0,4,Other,CANCELLED,2023-03-01 00:00:05+08:00,x,x,60.0,0,120\n", ("a", 0, 2, 60, "default")),
    ("pai", PAI + "a,w,2,Terminated,5,65,600,30,100,V100\n", ("a/w", 5, 2, 60, "default")),
    ("pai", "a,w,2,Terminated,5,65,600,30,100,V100\nb,w,1,Waiting,,,600,30,100,\n", ("a/w", 5, 2, 60, "default")),
    ("sacct", SACCT.replace("AllocTRES", "AllocTRES|") + "7|u||gpu|2024-01-01T00:00:05|2024-01-01T00:00:06|2024-01-01T00:01:06|CANCELLED by 1000|"
                      "billing=9,cpu=4,gres/gpu:a100=1,gres/gpu:v100=1,gres/gpu=2,mem=9G,node=1|\n", ("7", 0, 2, 60, "gpu")),
    ("sacct", SACCT.replace("AllocTRES", "NNodes|ReqGRES") + "7_4|u|acc|gpu|2024-01-01T00:00:05|2024-01-01T00:00:06|2024-01-01T00:01:06|TIMEOUT|2|gpu:a100:1(S:0-1)\n",
                      ("7_4", 0, 2, 60, "gpu")),
    ("sacct", SACCT + "7|u|acc|gpu|2024-01-01T00:00:05|2024-01-01T00:00:06|2024-01-01T00:01:06|COMPLETED|cpu=4,gres/gpu=2,node=1\n"
                      "7.batch|u|acc|gpu|2024-01-01T00:00:05|2024-01-01T00:00:06|2024-01-01T00:01:06|COMPLETED|cpu=4\n"
                      "8|u|acc|gpu|2024-01-01T00:00:05|Unknown|Unknown|CANCELLED|gres/gpu:a100=2\n", ("7", 0, 2, 60, "gpu")),
]  # fmt: skip


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(("kind", "text", "expected"), FORMATS)
def test_a_published_format_is_known_by_its_columns(tmp_path: Path, kind: str, text: str, expected: tuple):
    trace = read_trace(written(tmp_path, text))
    job = trace.jobs[0]
    assert (trace.kind, len(trace.jobs)) == (kind, 1)
    assert (job.id, job.submit_s, job.gpus, job.duration_s, job.pool) == expected


def test_the_published_philly_log_is_read_from_its_json(tmp_path: Path):
    attempt = {
        "start_time": "2017-10-01 00:01:00",
        "end_time": "2017-10-01 00:02:00",
        "detail": [{"ip": "m1", "gpus": ["g0", "g1"]}],
    }
    given = [
        {"jobid": "a", "vc": "v", "user": "u", "status": "Pass", "submitted_time": "2017-10-01 00:00:10", "attempts": [attempt, attempt]},
        {"jobid": "b", "vc": "v", "user": "u", "status": "Killed", "submitted_time": "2017-10-01 00:00:00", "attempts": []},
    ]  # fmt: skip
    trace = read_trace(written(tmp_path, json.dumps(given), "cluster_job_log"))
    assert [(j.id, j.gpus, j.duration_s, j.local) for j in trace.jobs] == [("a", 2, 120.0, "2017-10-01 00:00:10")]


def test_kalos_of_acme_has_more_columns_and_jobs_that_never_ran_are_skipped(tmp_path: Path):
    head = "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time\n"
    ran = "dlc1,u1,2,16,120,900,100,Pretrain,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:02:08+00:00,x,,60.0,10.0,960.0\n"
    never = "dlc2,u1,0,8,120,900,100,Other,CANCELLED,2023-05-17 11:00:00+00:00,,,,,,,\n"
    trace = read_trace(written(tmp_path, head + never + ran, "trace_kalos.csv"))
    assert [(j.id, j.gpus, j.duration_s, j.tenant, j.local) for j in trace.jobs] == [
        ("dlc1", 16, 60, "u1", "2023-05-17 11:00:58")
    ]
    assert trace.skipped == 1


PAI_JOBS = "j1,i1,u1,Terminated,100.0,400.0\nj2,i2,u2,Failed,0.0,\n"
PAI_TASKS = (
    "j1,ps,1.0,Terminated,150.0,400.0,600.0,29.3,,\n"
    "j1,worker,2.0,Terminated,150.0,400.0,600.0,29.3,50.0,T4\n"
    "j2,worker,1.0,Running,160.0,,600.0,29.3,100.0,MISC\n"
    "j3,tensorflow,3.0,Failed,200.0,260.0,600.0,29.3,200.0,MISC\n"
)
PAI_INSTANCES = (
    "j1,worker,n1,w1,i1,Terminated,180.0,390.0,m1\nj1,worker,n2,w2,i1,Failed,190.0,395.0,m2\nj1,ps,n0,w0,i1,Terminated,150.0,400.0,m2\n"
    "j3,tensorflow,n3,w3,i3,Waiting,,,m1\n"
)


def test_pai_tasks_arrive_when_their_job_was_submitted_where_the_table_of_jobs_lies_beside(tmp_path: Path):
    alone = read_trace(written(tmp_path, PAI_TASKS, "pai_task_table.csv"))
    assert [(j.id, j.submit_s, j.gpus, j.duration_s, j.gpu_milli, j.gpu_types) for j in alone.jobs] == [
        ("j1/worker", 150, 2, 250, 500, ("T4",)), ("j3/tensorflow", 200, 6, 60, 1000, ()),
    ]  # fmt: skip
    written(tmp_path, "job_name,inst_id,user,status,start_time,end_time\n" + PAI_JOBS, "pai_job_table.csv")
    beside = read_trace(tmp_path / "pai_task_table.csv")
    assert [(j.id, j.submit_s, j.tenant) for j in beside.jobs] == [
        ("j1/worker", 100, "u1"),
        ("j3/tensorflow", 200, "default"),
    ]
    assert (beside.kind, beside.skipped) == ("pai", 2)
    with pytest.raises(TraceError, match="tells no GPUs: give pai_task_table"):
        read_trace(tmp_path / "pai_job_table.csv")


def test_pai_instances_tell_the_run_time_of_their_task(tmp_path: Path):
    path = written(tmp_path, PAI_INSTANCES, "pai_instance_table.csv")
    with pytest.raises(TraceError, match=r"needs pai_task_table\.csv beside it"):
        read_trace(path)
    written(tmp_path, PAI_TASKS, "pai_task_table.csv")
    written(tmp_path, PAI_JOBS, "pai_job_table.csv")
    assert [(j.id, j.submit_s, j.duration_s) for j in read_trace(path).jobs] == [("j1/worker", 100, 215)]


def test_an_untyped_cluster_takes_jobs_of_every_gpu_type(tmp_path: Path):
    trace = read_trace(
        written(tmp_path, "job_id,submit_s,num_gpus,duration_s,gpu_type\na,0,1,10,a100\nb,0,1,10,v100|a100\n")
    )
    assert [job.gpu_types for job in trace.jobs] == [("a100",), ("v100", "a100")]
    assert [job.gpu_types for job in usable(trace, uniform(1, 8)).jobs] == [(), ()]
    typed = from_list(written(tmp_path, "node,gpus,gpu_type\nn,8,v100\n", "nodes.csv"))
    assert usable(trace, typed).jobs == trace.jobs
    assert run_one(trace, typed, Setting("fifo-skip", "none"))["finished"] == 1


BAD = [
    (PHILLY + "a,vc1,x,2017-10-01 00:00:05,2,60,1\n", r"trace.csv, line 2: submit_s is 'x', not a number"),
    (PHILLY + "a,vc1,5,yesterday,2,60,1\n", r"line 2: submit_local is 'yesterday', not a date"),
    (PHILLY + "a,vc1,5,2017-10-01 00:00:05,0,60,1\n", r"line 2: num_gpus is '0', it must be a number from 1 on"),
    (PHILLY + "a,vc1,5,2017-10-01 00:00:05,1.5,60,1\n", r"num_gpus is '1.5', not a whole number"),
    (PHILLY + "a,vc1,5,2017-10-01 00:00:05,1,nan,1\n", r"duration_s is 'nan'"),
    (PHILLY + "a,vc1,5,2017-10-01 00:00:05,1,-1,1\n", r"duration_s is '-1'"),
    (PHILLY + "a,vc1,5\n", r"line 2: 3 values where the header has 7 names"),
    (PHILLY + ",vc1,5,2017-10-01 00:00:05,1,1,1\n", r"job_id is '', it must not be empty"),
    ("job_id,submit_s,num_gpus,duration_s\na,1,1,1\na,2,1,1\n", r"line 3: job a stands twice"),
    (HELIOS + "a,u,v,2.5,4,1,COMPLETED,2020-04-01 00:00:05,x,x,60,1\n", r"line 2: gpu_num is '2.5', not a whole number"),
    (HELIOS + "a,u,v,2,4,1,COMPLETED,April,x,x,60,1\n", r"line 2: submit_time is 'April', not a date"),
    (PAI + "a,w,2,Terminated,soon,65,600,30,100,V100\n", r"line 2: start_time is 'soon', not a number"),
    (OPENB + "a,1,1,2,1000,V100,LS,Running,5,,10\n", r"line 2: deletion_time is '', not a number"),
    (MURI + "a,2,5000,1,m,8,-60000,1,1,1\n", r"line 2: duration is '-60000'"),
    (SACCT + "7|u|a|g|2024-13-01T00:00:05|2024-01-01T00:02:06|2024-01-01T00:03:06|COMPLETED|gres/gpu=2\n", r"line 2: Submit is '2024-13-01T00:00:05', not a date"),
    ("job_id,submit_s,num_gpus,duration_s\n", r"has no GPU job"),
    ("", r"is empty"),
    ("job_id,submit_s,num_gpus,duration_s,priority\na,0,1,5,huge\n", r"line 2: priority is 'huge', it must be low, normal, high, urgent"),
    ("job_id,submit_s,num_gpus,duration_s,resumable\na,0,1,5,1\n", r"line 2: resumable is '1', it must be yes or no"),
    ("vc,node num\na,3\n", r"no job trace of a known kind \(columns: vc, node num\)"),
    ("[{}]", r"job 1: it has no 'attempts'"),
    ('[{"jobid": 1, "vc": "v", "submitted_time": "x", "attempts": [{"start_time": "y", "end_time": "z", "detail": [{"gpus": ["g"]}]}]}]', r"job 1: Invalid isoformat"),
    ('{"jobid": 1}', r"a list of jobs is expected"),
    ("{", r"is no JSON"),
    ("name,time,application,num_replicas,batch_size\na,1,bert,2,12\n", r"needs the folder of measured profiles"),
    (SACCT + "7|u|a|g|2024-01-01T00:00:05|2024-01-01T00:02:06|2024-01-01T00:01:06|COMPLETED|gres/gpu=2\n", r"ended before it started"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, text: str, said: str):
    with pytest.raises(TraceError, match=said):
        read_trace(written(tmp_path, text))


def test_our_own_format_tells_classes_and_who_can_resume(tmp_path: Path):
    text = "job_id,submit_s,num_gpus,duration_s,priority,resumable\na,0,1,5,urgent,no\nb,0,1,5,,\nc,0,1,5,low,yes\n"
    told = [(j.priority, j.resumable) for j in read_trace(written(tmp_path, text)).jobs]
    assert told == [(3, False), (1, True), (0, True)]


def test_a_window_takes_the_start_and_leaves_the_end(tmp_path: Path):
    days = "".join(f"j{d},v,{d},2017-10-0{d} 00:00:00,1,1,0\n" for d in (1, 2, 3))
    trace = read_trace(written(tmp_path, PHILLY + days))
    assert [j.id for j in trace.window("2017-10-01", "2017-10-03").jobs] == ["j1", "j2"]
    assert trace.window("2017-10-02", None).columns["job_id"] == ["j2", "j3"]
    with pytest.raises(TraceError, match="no job submitted from 2018"):
        trace.window("2018-01-01", None)
    with pytest.raises(TraceError, match="is no date"):
        trace.window("soon", None)


def test_a_table_of_pools_has_enough_nodes_for_the_largest_job(tmp_path: Path):
    jobs = "a,v1,0,2017-10-01 00:00:00,40,1,0\nb,v2,0,2017-10-01 00:00:00,1,1,0\n"
    trace = read_trace(written(tmp_path, PHILLY + jobs))
    cluster = from_table(written(tmp_path, "vc,node num\nv1,4\nv2,7\n", "vc.csv"), 0.5, trace)
    assert {name: len(nodes) for name, nodes in cluster.pools.items()} == {"v1": 5, "v2": 4}
    assert (cluster.nodes, cluster.gpus) == (9, 72)


CLUSTERS = [
    ("sn,cpu_milli,memory_mib,gpu,model\nn1,1,1,2,P100\nn2,1,1,8,V100\nn3,1,1,0,\n", 2, 10),
    ("node,gpus\nn1,4\nn2,8\n", 2, 12),
    ("num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,4,4,40,256\n", 8, 32),
]


@pytest.mark.parametrize(("text", "nodes", "gpus"), CLUSTERS)
def test_a_list_of_nodes_is_known_by_its_columns(tmp_path: Path, text: str, nodes: int, gpus: int):
    cluster = from_list(written(tmp_path, text))
    assert (cluster.nodes, cluster.gpus) == (nodes, gpus)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node,gpus\nn1,4\nn1,4\n", "stands twice"),
        ("a,b\n1,2\n", "no list of nodes"),
        ("node,gpus\nn1,0\n", "no node with GPUs"),
    ],
)
def test_a_list_of_nodes_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str):
    with pytest.raises(TraceError, match=said):
        from_list(written(tmp_path, text))
    with pytest.raises(TraceError, match="at least one node"):
        uniform(0, 8)


def test_the_same_seed_generates_the_same_trace_and_it_can_be_read(tmp_path: Path):
    def text(seed: int) -> str:
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(HEADER)
        writer.writerows(rows(philly_like(300, seed)))
        return out.getvalue()

    assert text(7) == text(7) != text(8)
    trace = read_trace(written(tmp_path, text(7)))
    assert (trace.kind, len(trace.jobs)) == ("csv", 300)
    assert trace.window("2026-01-05", "2026-01-06").jobs
