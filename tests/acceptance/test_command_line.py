"""The command line against a real `schedmate up`: every command, its JSON, its exit codes; kill -9 and Ctrl-C of the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schedmate.client import Client, ClientError
from schedmate.infra.servers.ports import free_port
from schedmate.schemas.job import JobRequest
from tests.journal_checker import check_directories
from tests.waiting import eventually_sync

CHECKOUT = Path(__file__).parent.parent.parent
SCHEDMATE = [sys.executable, "-c", "from schedmate.cli import main; main()"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Up:
    """One `schedmate up` in a directory of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SCHEDMATE_") or k == "SCHEDMATE_TEST_SEED"},
            "SCHEDMATE_STATE_DIR": str(directory / "state"),
            "SCHEDMATE_API": f"http://127.0.0.1:{port}",
            "COLUMNS": "200",
        }
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Client(
            self.environment["SCHEDMATE_API"], retry_s=0.5
        )  # polls: a process for each look would take seconds

    def start(self) -> None:
        self.client = Client(
            self.environment["SCHEDMATE_API"], retry_s=0.5
        )  # polls: a process for each look would take seconds
        with (self.directory / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *SCHEDMATE,
                    "up",
                    "--nodes",
                    "2",
                    "--gpus",
                    "4",
                    "--api-port",
                    str(self.port),
                    "--health-port",
                    "0",
                    "--llm",
                    "none",
                ],
                cwd=self.directory,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.until(lambda: self.nodes() == ["up", "up"], 60)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*SCHEDMATE, *arguments],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, check: bool = True) -> Any:
        done = self.run(arguments[0], "--json", *arguments[1:], check=check)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, condition: Any, timeout_s: float = 40) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            assert time.monotonic() < deadline, (self.directory / "up.log").read_text()[-3000:]
            time.sleep(0.1)

    def state(self, job_id: str) -> str:
        return self.client.job(job_id).state.value

    def nodes(self) -> list[str]:
        try:
            return [node.state for node in self.client.nodes()]
        except ClientError:
            return []

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.client.close()
        return code


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("up"), free_port())
    made.start()
    yield made
    assert made.end(signal.SIGINT) == 0


def test_a_job_is_submitted_watched_and_explained(up: Up) -> None:
    script = "for i in 1 2 3; do echo step $i/3 loss=0.$i; sleep 0.2; done"
    job = up.json("submit", "--gpus", "2", "--name", "hello", "--wait", "--", "/bin/sh", "-c", script)
    assert job["state"] == "SUCCEEDED"
    assert job["exit_codes"] == {"0": 0}
    shown = up.json("show", "hello")
    assert shown["job_id"] == job["job_id"]
    assert [d["state"] for d in shown["history"]] == ["QUEUED", "ASSIGNED", "RUNNING", "SUCCEEDED"]
    assert up.run("logs", job["job_id"][:8]).stdout == "step 1/3 loss=0.1\nstep 2/3 loss=0.2\nstep 3/3 loss=0.3\n"
    assert up.run("logs", "-f", "hello").stdout.endswith("step 3/3 loss=0.3\n")
    assert job["job_id"] in [j["job_id"] for j in up.json("ps", "--all")]
    assert job["job_id"] not in [j["job_id"] for j in up.json("ps")]
    for command in (
        ["show", "hello"],
        ["why", "hello"],
        ["ps", "--all"],
        ["top", "--once"],
        ["nodes"],
        ["events", "--job", "hello"],
    ):
        assert up.run(*command).stdout.strip()


def test_exit_codes_tell_done_from_failed_from_wrong_use(up: Up) -> None:
    assert up.run("submit", "--wait", "--retries", "0", "--", "/bin/false", check=False).returncode == 1
    for wrong in (
        ["show", "no-such-job"],
        ["submit", "--gpus", "0", "--", "true"],
        ["submit", "--bogus"],
        ["submit", "-f", "missing.yaml"],
        ["submit"],
        ["nonsense"],
        ["drain", "no-such-node"],
        ["cancel", "00000000-0000-0000-0000-000000000000"],
    ):
        done = up.run(*wrong, check=False)
        assert done.returncode == 2, wrong
        assert done.stdout == ""
        assert done.stderr.startswith("schedmate: "), wrong
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    away = {**up.environment, "SCHEDMATE_API": "http://127.0.0.1:9"}
    done = subprocess.run([*SCHEDMATE, "ps"], env=away, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, "does not answer" in done.stderr) == (1, True)


def test_a_waiting_job_says_why_and_a_cancel_ends_it(up: Up) -> None:
    job = up.json("submit", "--name", "huge", "--gpus", "8", "--", "true")
    up.until(lambda: up.client.why(job["job_id"]).reason == "NEVER_FITS")
    told = up.json("why", "huge")
    assert "needs 8 GPUs on one node" in told["detail"]
    assert up.json("cancel", "huge")["requested"]
    up.until(lambda: up.state(job["job_id"]) == "CANCELLED")


def test_why_tells_what_a_failed_job_died_of_and_what_to_do(up: Up) -> None:
    script = "echo step 1/3; echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1"
    job = json.loads(
        up.run("submit", "--json", "--wait", "--name", "greedy", "--", "/bin/sh", "-c", script, check=False).stdout
    )
    assert job["state"] == "FAILED"
    told = up.json("why", "greedy")
    assert (told["diagnosis"]["category"], told["diagnosis"]["action"]) == ("GPU_OOM", "retry_with_changes")
    assert told["diagnosis"]["evidence"]["line"] == 2
    assert "GPU memory" in told["advice"]
    assert "halve the batch size" in told["proposed_change"]
    assert "to do: halve the batch size" in up.run("why", "greedy").stdout


def test_a_yaml_file_with_a_source_runs_a_gang_and_flags_override_it(up: Up) -> None:
    job = up.json("submit", "-f", str(CHECKOUT / "examples" / "jobs" / "gang.yaml"), "--name", "renamed", "--wait")
    assert (job["state"], job["name"], job["nodes"], job["gpus"]) == ("SUCCEEDED", "renamed", 2, 4)
    assert job["bundle"]
    assert "all agree" in up.run("logs", "renamed", "--member", "1").stdout


def test_an_idempotency_key_makes_a_repeat_the_same_job(up: Up) -> None:
    first = up.json("submit", "--idempotency-key", "k1", "--name", "once", "--", "true")
    second = up.json("submit", "--idempotency-key", "k1", "--name", "once", "--", "true")
    assert first["job_id"] == second["job_id"]
    assert up.run("submit", "--idempotency-key", "k1", "--name", "other", "--", "true", check=False).returncode == 2


def test_operators_drain_and_undrain_a_node(up: Up) -> None:
    assert up.json("drain", "n1", "--why", "new fan")["command"] == "drain"
    up.until(lambda: up.nodes()[0] == "drained")
    up.json("undrain", "n1")
    up.until(lambda: up.nodes()[0] == "up")
    up.json("cordon", "n1", "--why", "looks odd")
    up.until(lambda: up.nodes()[0] == "cordoned")
    up.json("undrain", "n1")
    up.until(lambda: up.nodes()[0] == "up")


def test_operators_reserve_a_node_and_take_it_back(up: Up) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    made = up.json("reserve", "n1", "--to", end.isoformat(timespec="seconds"), "--why", "new disks")
    up.until(lambda: up.nodes()[0] == "reserved")
    assert "new disks" in up.client.nodes()[0].why
    [listed] = up.json("reservations")
    assert (listed["reservation_id"], listed["nodes"], listed["begun"]) == (made["reservation_id"], ["n1"], True)
    assert "new disks" in up.run("reservations").stdout
    up.json("unreserve", made["reservation_id"])
    up.until(lambda: up.nodes()[0] == "up")
    now = datetime.now(UTC).timestamp()
    up.client.reserve("default", count=1, start_at=now + 1, end_at=now + 6)
    up.until(lambda: "reserved" in up.nodes())
    up.until(lambda: set(up.nodes()) == {"up"})
    assert up.run("reserve", "n1", "--to", "noon", check=False).returncode == 2


def test_operators_pin_a_job_and_say_how_long_one_runs(up: Up) -> None:
    for node in ("n1", "n2"):
        up.client.command_node(node, "drain")
    up.until(lambda: up.nodes() == ["drained", "drained"])
    asked = (JobRequest(name=name, gpus=4, command=("/bin/sleep", "0.2")) for name in ("pin-a", "pin-b", "pin-c"))
    a, b, c = (up.client.submit(one).job_id for one in asked)
    up.until(lambda: all(up.state(job) == "QUEUED" for job in (a, b, c)))
    assert (
        json.loads(up.run("job", "pin", "pin-c", "first", "--reason", "a demo waits", "--json").stdout)["job_id"] == c
    )
    up.client.pin(a, "last", "has time")
    up.run("job", "estimate", "pin-b", "--p50", "1h30m", "--p90", "2h", "--why", "as last week")
    up.until(lambda: "pinned it first: a demo waits" in up.client.why(c).detail)
    up.until(lambda: "set its estimate to 5400 s" in up.client.why(b).detail)
    up.until(lambda: up.client.job(c).pin and up.client.job(b).ordered_estimate)
    assert "pinned first by local-operator: a demo waits" in up.run("show", "pin-c").stdout
    predicted = up.client.job(b).predicted
    assert predicted is not None
    assert (predicted.p50_s, predicted.p90_s, predicted.basis) == (5400, 7200, "operator")
    up.until(lambda: [call.call for call in up.client.events(b).calls] == ["estimate"])
    up.client.clear_estimate(b)
    up.until(lambda: "estimate to" not in up.client.why(b).detail)
    up.client.command_node("n1", "undrain")
    up.until(lambda: {up.state(job) for job in (a, b, c)} == {"SUCCEEDED"})
    assert sorted((a, b, c), key=lambda job: up.client.job(job).started_at or 0.0) == [c, b, a]
    with pytest.raises(ClientError, match="has ended"):
        up.client.pin(a, "first", "too late")
    up.client.command_node("n2", "undrain")
    up.until(lambda: up.nodes() == ["up", "up"])


def test_names_and_output_that_are_not_plain_text_do_no_harm(up: Up) -> None:
    script = r"printf 'caf\303'; sleep 0.3; printf '\251 \342\202 \033[2J\033]0;owned\007 \200 \000 end\n'"
    job = up.json("submit", "--name", "训练-résumé-🚀", "--wait", "--", "/bin/sh", "-c", script)
    assert job["state"] == "SUCCEEDED"
    text = up.run("logs", "训练-résumé-🚀").stdout
    assert text.startswith("café ")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "␛[2J" in text


def test_tokens_are_made_listed_and_revoked(up: Up) -> None:
    text = up.run(
        "tokens", "create", "--tenant", "team-a", "--subject", "ann", "--scope", "submit", "--scope", "read"
    ).stdout.strip()
    listed = json.loads(up.run("tokens", "list", "--json").stdout)
    made = next(row for row in listed if row["subject"] == "ann")
    assert text not in json.dumps(listed)
    as_ann = {**up.environment, "SCHEDMATE_API_TOKEN": text}
    done = subprocess.run(
        [*SCHEDMATE, "ps", "--all", "--json"], env=as_ann, capture_output=True, text=True, timeout=90, check=False
    )
    assert json.loads(done.stdout) == []  # another tenant's jobs are not seen
    up.run("tokens", "revoke", made["id"])
    assert up.run("tokens", "revoke", made["id"], check=False).returncode == 2


def test_a_pools_settings_are_shown_changed_and_taken_back(up: Up) -> None:
    assert json.loads(up.run("pool", "show", "default", "--json").stdout)["policy"] == "fifo"
    up.run("pool", "set", "default", "gpus_per_job_max=2")
    job_id = json.loads(up.run("submit", "--json", "--gpus", "4", "--name", "too-wide", "--", "true").stdout)["job_id"]

    def rejected() -> bool:
        if up.state(job_id) == "REJECTED":
            return True
        again = json.loads(up.run("submit", "--json", "--gpus", "4", "--name", "too-wide", "--", "true").stdout)[
            "job_id"
        ]
        up.until(lambda: up.state(again) in ("REJECTED", "SUCCEEDED"))
        return up.state(again) == "REJECTED"  # the leader looks every few seconds

    up.until(rejected)
    for wrong in ("no_such=1", "policy=nonsense", "tenant_gpus_max=many", "policy"):
        assert up.run("pool", "set", "default", wrong, check=False).returncode == 2, wrong
    up.run("pool", "set", "default", "gpus_per_job_max=")
    assert json.loads(up.run("pool", "show", "default", "--json").stdout)["gpus_per_job_max"] is None


def test_the_read_model_is_dropped_and_comes_back_whole(up: Up) -> None:
    before = {job.job_id: job.state for job in up.client.jobs()}
    assert json.loads(up.run("rebuild", "--json").stdout)["generation"] >= 1

    def whole() -> bool:
        try:
            return {job.job_id: job.state for job in up.client.jobs()} == before
        except ClientError:
            return False

    up.until(whole)


def test_setup_is_idempotent_and_replay_finds_every_decision_equal(up: Up) -> None:
    assert "schedmate.jobs" in json.loads(up.run("setup", "--json").stdout)["topics"]
    outcome = json.loads(up.run("replay", "default", "--json").stdout)
    assert outcome["equal"]
    assert outcome["decisions"] > 10


def test_shell_completion_knows_the_commands(up: Up) -> None:
    environment = {
        **up.environment,
        "_SCHEDMATE_COMPLETE": "complete_bash",
        "COMP_WORDS": "schedmate su",
        "COMP_CWORD": "1",
    }
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'schedmate'; from schedmate.cli import main; main()"]
    told = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "submit" in told.stdout.split(), told


def test_after_kill_9_runs_are_adopted_again_and_ctrl_c_stops_them(tmp_path: Path) -> None:
    up = Up(tmp_path, free_port())
    up.start()
    long = up.json(
        "submit", "--name", "long", "--", "/bin/sh", "-c", "trap 'exit 7' TERM; echo begun; while :; do sleep 0.2; done"
    )
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo over"
    short = up.json("submit", "--name", "short", "--", "/bin/sh", "-c", waits)
    up.until(lambda: up.state(long["job_id"]) == up.state(short["job_id"]) == "RUNNING")
    up.end(signal.SIGKILL)
    (tmp_path / "go").touch()
    eventually_sync(lambda: list((tmp_path / "state").rglob("exit")), 30, "`short` ends while nobody looks")
    up.start()
    up.until(lambda: up.state(short["job_id"]) == "SUCCEEDED")
    assert up.run("logs", "short").stdout == "over\n"
    again = up.json("show", long["job_id"])
    assert (again["state"], again["attempt"]) == ("RUNNING", 1)
    assert up.end(signal.SIGINT) == 0
    assert not _living(long["job_id"])
    verdict = check_directories([tmp_path / "state"])
    assert not verdict.violations, verdict.violations


def _living(job_id: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"SCHEDMATE_JOB_ID={job_id}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
