"""KafkaBus over TLS with SASL: the real broker lets in who it should, and the refusal of others is clear and quick."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedmate.infra.bus.kafka import KafkaBus
from schedmate.infra.bus.port import BusUnavailableError, Partition
from schedmate.infra.clock import SystemClock
from schedmate.infra.servers.ports import free_port
from schedmate.schemas.topology import Topic
from schedmate.schemas.wire import Record
from tests.servers import KafkaServer

pytestmark = pytest.mark.servers

STORE_PASSWORD = "not-a-secret"
USER, PASSWORD = "dispatcher", "p4ss-of-a-test"


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A key store for the broker and its certificate for clients, by the JDK's own tool."""
    store, certificate = directory / "broker.p12", directory / "broker.pem"
    common = ["-storetype", "PKCS12", "-keystore", str(store), "-storepass", STORE_PASSWORD, "-alias", "broker"]
    for arguments in (
        ["-genkeypair", "-keyalg", "EC", "-dname", "CN=127.0.0.1", "-validity", "2", "-ext", "san=ip:127.0.0.1"],
        ["-exportcert", "-rfc", "-file", str(certificate)],
    ):
        subprocess.run(["keytool", arguments[0], *common, *arguments[1:]], check=True, capture_output=True, timeout=60)
    return store, certificate


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a SASL_SSL listener, and the certificate to trust."""
    directory = tmp_path_factory.mktemp("secured")
    store, certificate = make_certificate(directory)
    ports = {"client": free_port(), "controller": free_port()}
    safe = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{ports['client']},SASL_SSL://127.0.0.1:{safe}"
    properties = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports['controller']}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
    }
    with KafkaServer(directory / "kafka", ports, properties):
        yield f"127.0.0.1:{safe}", certificate


def bus_at(address: str, *, trusts: Path | None, password: str = PASSWORD, protocol: str = "SASL_SSL") -> KafkaBus:
    return KafkaBus(
        address,
        SystemClock(),
        security_protocol=protocol,
        ssl_context=ssl.create_default_context(cafile=str(trusts) if trusts else None),
        sasl_mechanism="PLAIN",
        sasl_plain_username=USER,
        sasl_plain_password=password,
        call_timeout_s=3.0,
    )


async def test_everything_works_over_tls_with_a_password(secured: tuple[str, Path]) -> None:
    address, certificate = secured
    bus = bus_at(address, trusts=certificate)
    await bus.start()
    await bus.create_topics([Topic("secured", 2, 3600, "delete", 100_000)])
    await bus.publish([Record("secured", b"k", b"v")])
    consumer = bus.group("g", ["secured"])
    await consumer.start()
    reader = bus.reader({Partition("secured", n): 0 for n in range(2)})
    await reader.start()
    for source in (consumer, reader):
        async with asyncio.timeout(15):
            while not (found := await source.poll(10, 0.5)):
                pass
        assert [d.record.value for d in found] == [b"v"]
        await source.stop()
    assert await bus.identity()
    await bus.stop()


@pytest.mark.parametrize(
    "wrong",
    [{"password": "wrong"}, {"trusts": None}, {"protocol": "SSL"}],
    ids=["another password", "an unknown certificate", "no authentication"],
)
async def test_who_proves_nothing_is_refused_within_the_limit(secured: tuple[str, Path], wrong: dict) -> None:
    address, certificate = secured
    bus = bus_at(address, **({"trusts": certificate} | wrong))
    with pytest.raises(BusUnavailableError, match="connecting to Kafka") as caught:
        await asyncio.wait_for(bus.start(), 15)
    assert PASSWORD not in str(caught.value)
    await bus.stop()


def test_a_password_is_never_shown() -> None:
    bus = bus_at("127.0.0.1:1", trusts=None)
    assert PASSWORD not in repr(bus.access)
    assert PASSWORD not in repr(bus)
