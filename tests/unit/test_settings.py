"""Settings: flag over environment over TOML file over default; errors that name the setting; secrets never shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError

from schedmate.infra.settings import (
    ServiceSettings,
    SettingsError,
    from_command_line,
    health_port_field,
    load,
    masked,
)
from schedmate.infra.settings_table import settings_table


class ExampleSettings(ServiceSettings):
    """A service's settings as a service writes them."""

    SERVICE = "worker"

    health_port: int = health_port_field(8476)
    node: str = Field(default="n0", description="Name of the node.")
    gpus: int = Field(default=1, ge=0, description="How many GPUs.")
    hosts: tuple[str, ...] = Field(default=(), description="Names.")
    token: SecretStr | None = Field(default=None, description="A token.")


class NeedySettings(ServiceSettings):
    SERVICE = "worker"

    node: str = Field(description="Name of the node.")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("SCHEDMATE_")]:
        monkeypatch.delenv(name)


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "schedmate.toml"
    path.write_text(text)
    return path


LAYERS = [
    ("nothing set gives the default", {}, {}, "", "n0"),
    ("the file goes over the default", {}, {}, '[worker]\nnode = "file"', "file"),
    ("the environment goes over the file", {}, {"SCHEDMATE_NODE": "env"}, '[worker]\nnode = "file"', "env"),
    (
        "a flag goes over the environment",
        {"node": "flag"},
        {"SCHEDMATE_NODE": "env"},
        '[worker]\nnode = "file"',
        "flag",
    ),
    ("a flag that was not given is None and says nothing", {"node": None}, {"SCHEDMATE_NODE": "env"}, "", "env"),
    ("an empty variable says nothing", {}, {"SCHEDMATE_NODE": ""}, '[worker]\nnode = "file"', "file"),
]


@pytest.mark.parametrize(
    ("flags", "environment", "text", "wanted"), [case[1:] for case in LAYERS], ids=[c[0] for c in LAYERS]
)
def test_the_nearer_source_wins(flags, environment, text, wanted, tmp_path, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert load(ExampleSettings, flags, config(tmp_path, text)).node == wanted


def test_the_file_may_be_named_by_the_environment_and_the_flag_goes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDMATE_CONFIG", str(config(tmp_path, 'bus = "sqlite:env.db"')))
    assert load(ExampleSettings).bus == "sqlite:env.db"
    other = tmp_path / "other.toml"
    other.write_text('bus = "sqlite:flag.db"')
    assert load(ExampleSettings, {}, other).bus == "sqlite:flag.db"


def test_a_services_own_table_overrides_the_top_of_the_file_and_leaves_other_services_alone(tmp_path):
    path = config(
        tmp_path,
        'log_level = "warning"\n[worker]\nlog_level = "debug"\n[dispatcher]\nlog_level = "error"\npolicy = "x"\n',
    )
    assert load(ExampleSettings, {}, path).log_level == "debug"


def test_names_may_be_written_as_in_the_environment(tmp_path):
    assert load(ExampleSettings, {}, config(tmp_path, 'SCHEDMATE_BUS = "sqlite:a.db"')).bus == "sqlite:a.db"


def test_a_file_that_was_read_once_leaves_nothing_behind(tmp_path):
    load(ExampleSettings, {}, config(tmp_path, '[worker]\nnode = "file"'))
    assert ExampleSettings().node == "n0"


REFUSED = [
    ("an unknown name at the top", 'bsu = "sqlite:"', "no setting `bsu`", "did you mean `bus`?"),
    ("an unknown name with the prefix", 'SCHEDMATE_BSU = "x"', "no setting `SCHEDMATE_BSU`", "docs/settings.md"),
    ("an unknown name in the service's table", "[worker]\ngpu = 4", "no setting `gpu`", "did you mean `gpus`?"),
    ("a service's own name at the top", 'node = "n1"', "setting of worker", "put it under [worker]"),
    ("a table that is no service", "[workers]\ngpus = 4", "no setting `workers`", "docs/settings.md"),
    ("a value of the wrong type", '[worker]\ngpus = "many"', "schedmate.toml: gpus:", "integer"),
    ("no TOML", "bus = ", "not TOML", "--config"),
]


@pytest.mark.parametrize(("text", "what", "hint"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_wrong_file_is_refused_in_one_line_that_names_the_setting(text, what, hint, tmp_path):
    with pytest.raises(SettingsError) as caught:
        load(ExampleSettings, {}, config(tmp_path, text))
    message = str(caught.value)
    assert what in message
    assert hint in message
    assert "\n" not in message


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"nothing\.toml: cannot be read \(No such file"):
        load(ExampleSettings, {}, tmp_path / "nothing.toml")


WRONG_VALUES = [
    ({"bus": "kafak://x"}, {}, "--bus: must be sqlite:FILE or kafka://HOST:PORT"),
    ({"store": "postgres://x"}, {}, "--store: must be sqlite:FILE or mongodb://HOST:PORT"),
    ({"blobs": "s3://x"}, {}, "--blobs: must be files:DIR or gridfs:mongodb://HOST:PORT"),
    ({"llm": "gpt"}, {}, "--llm: must be none, auto or ollama:MODEL@URL"),
    ({}, {"SCHEDMATE_GPUS": "-1"}, "SCHEDMATE_GPUS: input should be greater than or equal to 0"),
    ({}, {"SCHEDMATE_HOSTS": "a,b"}, "SCHEDMATE_HOSTS: "),
    ({"gpu": 1}, {}, "--gpu: there is no such setting (did you mean `gpus`?)"),
    ({}, {"SCHEDMATE_KAFKA_SECURITY": "SASL_SSL"}, "needs SCHEDMATE_KAFKA_USERNAME and SCHEDMATE_KAFKA_PASSWORD"),
    ({}, {"SCHEDMATE_MONGO_USERNAME": "u"}, "SCHEDMATE_MONGO_PASSWORD"),
    ({}, {"SCHEDMATE_KAFKA_KEY_FILE": "k.pem"}, "SCHEDMATE_KAFKA_CERTIFICATE_FILE"),
]


@pytest.mark.parametrize(("flags", "environment", "wanted"), WRONG_VALUES, ids=[case[2][:40] for case in WRONG_VALUES])
def test_a_wrong_value_is_refused_in_one_line_that_says_where_it_came_from(flags, environment, wanted, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load(ExampleSettings, flags)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_is_required_says_all_three_ways_to_give_it():
    with pytest.raises(SettingsError, match="give --node, SCHEDMATE_NODE, or `node` in the TOML file"):
        load(NeedySettings)


def test_an_error_never_shows_the_value_of_a_secret(monkeypatch):
    monkeypatch.setenv("SCHEDMATE_KAFKA_PASSWORD", "hunter2-hunter2")
    monkeypatch.setenv("SCHEDMATE_KAFKA_SECURITY", "SASL_SSL")
    with pytest.raises(SettingsError) as caught:
        load(ExampleSettings)
    assert "hunter2" not in str(caught.value)


def test_settings_are_frozen():
    settings = ExampleSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.node = "other"


def test_masked_settings_show_everything_but_secrets_and_credentials_in_urls():
    settings = ExampleSettings(
        token=SecretStr("tok-123456"),
        kafka_password=SecretStr("kafka-pass"),
        store="mongodb://user:p%40ss@mongo:27017/db",
        blobs="gridfs:mongodb://user:pa:ss@mongo/db",
        hosts=("a", "b"),
    )
    shown = masked(settings)
    text = json.dumps(shown)
    for secret in ("tok-123456", "kafka-pass", "p%40ss", "pa:ss", "user:"):
        assert secret not in text
    assert shown["store"] == "mongodb://***@mongo:27017/db"
    assert shown["token"] == "***"
    assert shown["mongo_password"] is None
    assert shown["node"] == "n0"
    assert shown["hosts"] == ["a", "b"]
    assert shown.keys() == ExampleSettings.model_fields.keys()
    assert "tok-123456" not in repr(settings)


def test_the_command_line_has_a_flag_for_each_setting_but_none_for_secrets(capsys):
    with pytest.raises(SystemExit):
        from_command_line(ExampleSettings, ["--help"])
    shown = capsys.readouterr().out
    assert "--gpus" in shown
    assert "--kafka-username" in shown
    assert "--kafka-password" not in shown
    assert "--token" not in shown


def test_the_command_line_reads_values_lists_and_switches(tmp_path):
    settings = from_command_line(
        ExampleSettings,
        [
            "--config",
            str(config(tmp_path, 'log_level = "error"')),
            "--gpus",
            "8",
            "--hosts",
            '["a","b"]',
            "--mongo-tls",
        ],
    )
    assert (settings.gpus, settings.hosts, settings.mongo_tls, settings.log_level) == (8, ("a", "b"), True, "error")


def test_the_table_has_a_described_row_for_each_setting_once():
    rows = settings_table([ExampleSettings])
    own = {row.name for row in rows if row.services == ("worker",)}
    assert own == {"health_port", "node", "gpus", "hosts", "token"}
    assert len({(row.name, row.services) for row in rows}) == len(rows)
    assert all(row.description for row in rows)
    assert {row.name for row in rows if row.secret} == {
        "kafka_key_password",
        "kafka_password",
        "mongo_password",
        "token",
    }
