"""What the command line says about input that cannot be right: one clear line and exit code 2, before anything is sent."""

from __future__ import annotations

import json
import sys

import httpx
import pytest

from schedmate.cli import app as command_line
from schedmate.cli import job_commands, order_commands
from schedmate.client import Client


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """Run the command line, which must fail as wrongly used; return the one line that it says."""
    monkeypatch.setattr(sys, "argv", ["schedmate", *arguments])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert said.err.startswith("schedmate: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpus: 1\ncommand: [true]\n", "command"),
        ("gpus: 1\ncommand: [1, 2]\n", "command"),
        ("gpus: 1\ncommand: 5\n", "command"),
        ("gpus: 1\ncommand: python train.py\n", "command"),
        ("gpus: 1\ncommand: {a: b}\n", "command"),
        ("gpus: 1\nscript: [a]\n", "script"),
        ("gpus: 1\nenv: [a]\ncommand: [sh]\n", "env"),
        ("gpus: 1\nenv: text\ncommand: [sh]\n", "env"),
        ("gpus: 1\ncommandd: [sh]\n", "commandd"),
        ("- gpus\n", "mapping"),
        ("", "mapping"),
    ],
)
def test_a_job_file_of_wrong_types_names_the_field(tmp_path, capsys, monkeypatch, text, names):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert names in refused(capsys, monkeypatch, "submit", "-f", str(file), "--env", "A=1")


def test_a_part_of_several_gpus_is_refused_before_anything_is_sent(tmp_path, capsys, monkeypatch):
    told = refused(capsys, monkeypatch, "submit", "--gpu-milli", "500", "--gpus", "2", "--", "true")
    assert "gpu_milli is a part of one GPU" in told
    file = tmp_path / "job.yaml"
    file.write_text("name: j\ngpu_milli: 1500\ncommand: [sh]\n")
    assert "gpu_milli" in refused(capsys, monkeypatch, "submit", "-f", str(file))


def test_a_part_of_a_gpu_is_said_by_a_flag(tmp_path):
    given, _ = job_commands._request(None, {"gpus": 1, "gpu_milli": 250}, ["true"], None, [], None)
    assert given["gpu_milli"] == 250


def test_a_command_beside_a_script_is_refused(tmp_path, capsys, monkeypatch):
    script = tmp_path / "train.sh"
    script.write_text("echo")
    assert "not both" in refused(capsys, monkeypatch, "submit", "--script", str(script), "--", "true")


def test_a_script_names_its_job(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("echo")
    given, _ = job_commands._request(None, {"gpus": 1}, None, script, [], None)
    assert given["name"] == "train"


def test_a_refusal_names_each_field_that_is_wrong(capsys, monkeypatch, tmp_path):
    problem = {
        "type": "urn:schedmate:problem:invalid", "title": "The source bundle was refused", "status": 422, "detail": "it is no archive",
        "instance": "/v1/jobs", "errors": [{"field": "bundle", "message": "no archive"}, {"field": "", "message": "whole"}],
    }  # fmt: skip
    answer = httpx.MockTransport(lambda _: httpx.Response(422, content=json.dumps(problem)))
    monkeypatch.setattr(Client, "from_environment", lambda: Client("http://server", transport=answer))
    archive = tmp_path / "x.tgz"
    archive.write_text("not an archive")
    said = refused(capsys, monkeypatch, "submit", "--source", str(archive), "--", "true")
    assert said.endswith("The source bundle was refused: it is no archive (bundle: no archive; whole)\n")


def test_links_in_a_source_are_left_out_and_said(tmp_path, capsys):
    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "link.py").symlink_to("train.py")
    with job_commands.bundle_of(tmp_path):
        pass
    assert "1 left out, the first is 'link.py'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["up"], ["serve", "ingest"], ["worker"]])
def test_a_flag_that_there_is_not_is_one_line_that_names_the_command(capsys, monkeypatch, command):
    monkeypatch.setattr(sys, "argv", ["schedmate", *command, "--nonsense"])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    said = capsys.readouterr()
    assert (stopped.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "--nonsense" in said.err
    assert f"`schedmate {' '.join(command)} --help`" in said.err


@pytest.mark.parametrize("command", [["up"], ["setup"], ["pool", "show"]])
def test_a_state_directory_that_cannot_be_made_is_one_line(tmp_path, capsys, monkeypatch, command):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("SCHEDMATE_STATE_DIR", str(in_the_way))
    assert str(in_the_way) in refused(capsys, monkeypatch, *command)


def test_a_pool_without_a_log_is_not_called_equal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SCHEDMATE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["schedmate", "setup"])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 0
    capsys.readouterr()
    assert "no log of a pool 'nowhere'" in refused(capsys, monkeypatch, "replay", "nowhere")


def test_serve_tells_which_services_there_are(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["schedmate", "serve", "--help"])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 0
    assert "history-estimator" in capsys.readouterr().out
    assert "log-monitor" in refused(capsys, monkeypatch, "serve", "nonsense")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["estimate", "j", "--p50", "soon"], "--p50 'soon' is no duration"),
        (["estimate", "j", "--p50", "0"], "--p50 '0' is no duration"),
        (["estimate", "j", "--p50", "2h", "--p90", "nan"], "--p90 'nan' is no duration"),
        (["estimate", "j", "--p50", "2h", "--clear"], "say --p50"),
        (["estimate", "j", "--p10", "2h", "--clear"], "say --p50"),
        (["estimate", "j"], "say --p50"),
        (["pin", "j", "first"], "--reason"),
        (["pin", "j", "last", "--reason", " "], "--reason"),
        (["pin", "j", "second", "--reason", "x"], "second"),
    ],
)
def test_an_order_about_a_job_that_makes_no_sense_is_one_line(capsys, monkeypatch, arguments, names):
    assert names in refused(capsys, monkeypatch, "job", *arguments)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("1.5h", 5400.0), ("1h30m", 5400.0), ("1d12h", 129_600.0)]
)
def test_a_duration_is_seconds_or_parts_with_units(text, seconds):
    assert order_commands.seconds_of(text, "--p50") == seconds


def test_orders_about_a_job_are_sent_as_they_were_said(capsys, monkeypatch):
    job_id, sent = "11111111-1111-5111-8111-111111111111", []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            view = {
                "job_id": job_id, "name": "j", "tenant": "t", "user": "u", "pool": "p", "state": "QUEUED", "reason": "FRAGMENTED",
                "detail": "", "attempt": 0, "submitted_at": 0, "wait_s": 0, "gpus": 1, "nodes": 1, "gpus_total": 1,
                "priority": "normal", "retries": 0,
            }  # fmt: skip
            return httpx.Response(200, json=view)
        sent.append((request.url.path.rpartition("/")[2], json.loads(request.content)))
        return httpx.Response(202, json={"job_id": job_id, "state": "QUEUED"})

    def client() -> Client:
        return Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer))

    monkeypatch.setattr(order_commands.Client, "from_environment", client)
    for arguments in (
        ["estimate", job_id, "--p50", "2h", "--p10", "1h", "--why", "known"],
        ["estimate", job_id, "--clear"],
        ["pin", job_id, "first", "--reason", "a demo"],
        ["pin", job_id, "none", "--json"],
    ):
        monkeypatch.setattr(sys, "argv", ["schedmate", "job", *arguments])
        with pytest.raises(SystemExit) as stopped:
            command_line.main()
        assert stopped.value.code == 0
    assert sent == [
        ("estimate", {"p10_s": 3600.0, "p50_s": 7200.0, "p90_s": None, "why": "known"}),
        ("estimate", {"clear": True, "why": ""}),
        ("pin", {"place": "first", "why": "a demo"}),
        ("pin", {"place": "none", "why": ""}),
    ]
    out = capsys.readouterr().out
    assert "an estimate of 2h00m requested" in out
    assert "to be pinned first" in out
