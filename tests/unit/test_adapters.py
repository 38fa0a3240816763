"""From a URL to an adapter: the right one, nothing loaded that was not asked for, TLS and credentials as set."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from schedmate.infra.adapters import kafka_access, make_blobs, make_bus, make_llm, make_store, mongo_url
from schedmate.infra.clock import VirtualClock
from schedmate.infra.llm.none import NoModel
from schedmate.infra.llm.ollama import OllamaModel
from schedmate.infra.settings import ServiceSettings, SettingsError
from schedmate.infra.store.memory import MemoryStore
from schedmate.infra.store.port import DuplicateKeyError, Store, scan_all
from schedmate.infra.store.traced import TracedStore
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.recorded import Edge, RecordedSpans
from schedmate.infra.telemetry.tracing import Tracing, span
from schedmate.schemas.topology import topology

ROOT = Path(__file__).resolve().parents[2]

LOADED = """
import asyncio, sys
from pathlib import Path
from schedmate.infra.adapters import make_blobs, make_bus, make_llm, make_store
from schedmate.infra.clock import SystemClock
from schedmate.infra.settings import ServiceSettings

async def main():
    settings = ServiceSettings(state_dir=Path(sys.argv[1]), llm="none")
    clock = SystemClock()
    print(*[type(made).__name__ for made in (make_bus(settings, clock), make_store(settings).inner, make_blobs(settings, clock), make_llm(settings))])
    print(*sorted(name for name in ("aiokafka", "faust", "motor", "pymongo", "ollama", "opentelemetry.exporter") if name in sys.modules))

asyncio.run(main())
"""


def test_the_embedded_default_is_made_of_sqlite_files_and_loads_no_foreign_client(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["SqliteBus SqliteStore FileBlobs NoModel", ""]


async def test_urls_choose_the_adapters_for_production():
    settings = ServiceSettings(
        bus="kafka://k1:9092,k2:9092", store="mongodb://m:27017/?replicaSet=rs0", blobs="gridfs:mongodb://m:27017"
    )
    clock = VirtualClock()
    bus, store, blobs = make_bus(settings, clock), make_store(settings), make_blobs(settings, clock)
    assert isinstance(store, TracedStore)
    assert [type(made).__name__ for made in (bus, store.inner, blobs)] == ["KafkaBus", "MongoStore", "GridFsBlobs"]


def test_a_bus_url_with_credentials_is_refused():
    with pytest.raises(SettingsError, match="SCHEDMATE_KAFKA_USERNAME"):
        make_bus(ServiceSettings(bus="kafka://user:secret@k1:9092"), VirtualClock())


@pytest.mark.parametrize("servers", ["", "k1:port", "k1:9092:9093", "k1:9092,", "k1:9092/path", "k 1", "[::1"])
def test_a_bus_url_that_names_no_servers_is_refused(servers):
    with pytest.raises(SettingsError, match="must be kafka://HOST:PORT"):
        make_bus(ServiceSettings(bus=f"kafka://{servers}"), VirtualClock())


@pytest.mark.parametrize("setting", ["mongo_ca_file", "mongo_certificate_file"])
def test_a_certificate_for_mongodb_that_cannot_be_read_is_named(tmp_path, setting):
    settings = ServiceSettings(
        store="mongodb://m", blobs="gridfs:mongodb://m", mongo_tls=True, **{setting: tmp_path / "no.pem"}
    )
    with pytest.raises(SettingsError, match=rf"SCHEDMATE_{setting.upper()}: .*no\.pem cannot be read"):
        make_store(settings)
    with pytest.raises(SettingsError, match=rf"SCHEDMATE_{setting.upper()}: .*no\.pem cannot be read"):
        make_blobs(settings, VirtualClock())


async def test_the_language_model_is_what_the_setting_says():
    assert isinstance(make_llm(ServiceSettings(llm="none")), NoModel)
    named = make_llm(ServiceSettings(llm="ollama:llama3.1:8b@http://gpu:11434"))
    assert isinstance(named, OllamaModel)
    assert named.name == "llama3.1:8b"
    auto = make_llm(ServiceSettings(llm="auto"))
    assert auto.name == "none", "until Ollama has answered"
    for model in (named, auto):
        await model.stop()


def test_an_open_kafka_needs_no_arguments():
    assert kafka_access(ServiceSettings()).client_arguments() == {}


def test_sasl_over_tls_checks_the_brokers_name_and_hides_the_password():
    settings = ServiceSettings(kafka_security="SASL_SSL", kafka_username="worker", kafka_password=SecretStr("hunter2"))
    access = kafka_access(settings)
    arguments = dict(access.client_arguments())
    context = arguments.pop("ssl_context")
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert arguments == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "worker",
        "sasl_plain_password": "hunter2",
    }
    assert "hunter2" not in repr(access)


def test_files_that_are_no_certificates_are_named(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    with pytest.raises(SettingsError, match=r"SCHEDMATE_KAFKA_CA_FILE: .*bad\.pem"):
        kafka_access(ServiceSettings(kafka_security="SSL", kafka_ca_file=bad))
    with pytest.raises(SettingsError, match=r"SCHEDMATE_KAFKA_CERTIFICATE_FILE: .*bad\.pem"):
        kafka_access(ServiceSettings(kafka_security="SSL", kafka_certificate_file=bad, kafka_key_file=bad))


MONGO = [
    ("nothing set leaves the URL alone", {}, "mongodb://m:27017/?replicaSet=rs0", "mongodb://m:27017/?replicaSet=rs0"),
    (
        "user and password are quoted",
        {"mongo_username": "a@b", "mongo_password": SecretStr("p/w:?")},
        "mongodb://m1,m2:27017",
        "mongodb://a%40b:p%2Fw%3A%3F@m1,m2:27017/?authSource=admin",
    ),
    (
        "TLS with an authority and a client certificate",
        {"mongo_tls": True, "mongo_ca_file": Path("/c a.pem"), "mongo_certificate_file": Path("/me.pem")},
        "mongodb+srv://m/?w=majority",
        "mongodb+srv://m/?w=majority&tls=true&tlsCAFile=%2Fc%20a.pem&tlsCertificateKeyFile=%2Fme.pem",
    ),
]


@pytest.mark.parametrize(("given", "url", "wanted"), [case[1:] for case in MONGO], ids=[case[0] for case in MONGO])
def test_the_mongodb_url_gets_what_is_set(given, url, wanted):
    assert mongo_url(ServiceSettings(**given), url) == wanted


def test_two_users_for_mongodb_are_refused():
    settings = ServiceSettings(mongo_username="a", mongo_password=SecretStr("b"))
    with pytest.raises(SettingsError, match="leave one out"):
        mongo_url(settings, "mongodb://u:p@m")


# --- traced store -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def traced():
    store = TracedStore(MemoryStore(), "sqlite")
    await store.start()
    await store.setup(topology().collections.values())
    yield store
    await store.stop()


async def test_every_call_of_the_port_goes_through_with_its_arguments_and_is_a_span(traced):
    spans = RecordedSpans()
    with Tracing("dispatcher", exporter=spans, batched=False).active(), span(names.DECIDE_BATCH):
        await traced.insert("tenants", "a", {"n": 1})
        assert await traced.replace("tenants", "a", {"n": 2}, version=1)
        assert not await traced.replace("tenants", "a", {"n": 3}, version=1)
        await traced.put("tenants", "b", {"n": 4})
        await traced.put_many("tenants", {"c": {"n": 5}, "d": {"n": 6}})
        assert (await traced.get("tenants", "a")).version == 2
        assert set(await traced.get_many("tenants", ["a", "x"])) == {"a"}
        assert [d.id for d in await traced.scan("tenants", low="a", high="z", limit=2, reverse=True)] == ["d", "c"]
        assert [d.id async for d in scan_all(traced, "tenants", low="", high="z", page=2)] == ["a", "b", "c", "d"]
        assert await traced.find("jobs", "submitted_at", low=0, high=9, limit=5) == []
        assert await traced.count("tenants") == 4
        assert not await traced.delete("tenants", "a", version=9)
        assert await traced.delete("tenants", "a")
        await traced.drop("tenants")
        await traced.ping()
        with pytest.raises(DuplicateKeyError):
            await traced.insert("jobs", "j", {}) or await traced.insert("jobs", "j", {})
    calls = [dict(found.attributes) for found in spans.spans() if found.name != names.DECIDE_BATCH]
    assert {call["db.operation.name"] for call in calls} == {
        name for name in dir(Store) if not name.startswith("_") and name not in ("start", "stop", "setup", "ping")
    }
    assert {call["db.system.name"] for call in calls} == {"sqlite"}
    assert Edge("dispatcher", "decide batch", "dispatcher", "replace tenants") in spans.edges()
    assert {edge.parent for edge in spans.edges()} == {"decide batch"}
    assert [found.failed for found in spans.spans() if found.name != names.DECIDE_BATCH].count(True) == 1


async def test_calls_are_counted_for_the_service_that_the_code_runs_for(traced):
    metrics = Metrics()
    await traced.put("tenants", "a", {})
    with metrics.active():
        await traced.put("tenants", "b", {})
        with pytest.raises(DuplicateKeyError):
            await traced.insert("tenants", "b", {})
    lines = metrics.text().decode().splitlines()
    assert 'schedmate_store_calls_total{operation="put",outcome="done"} 1.0' in lines
    assert 'schedmate_store_calls_total{operation="insert",outcome="duplicate"} 1.0' in lines
    assert 'schedmate_store_call_seconds_count{operation="put"} 1.0' in lines


async def test_a_call_outside_of_a_recorded_span_opens_none(traced):
    spans = RecordedSpans()
    with Tracing("dispatcher", exporter=spans, batched=False).active():
        await traced.put("tenants", "b", {"n": 4})
    with span(names.DECIDE_BATCH):
        await traced.put("tenants", "b", {"n": 5})
    assert spans.spans() == []
