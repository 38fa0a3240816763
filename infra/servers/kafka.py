"""Apache Kafka: one broker in KRaft mode, its jars fetched once through Maven."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from schedmate.infra.servers.cache import InstallError, cache_directory, filled, program, run_step, say
from schedmate.infra.servers.ports import HOST, free_port
from schedmate.infra.servers.process import ServerProcess
from schedmate.infra.servers.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KafkaServer"]

_FILES = Path(__file__).resolve().parent / "kafka_broker"
_JAVA_LEAST = 17
_HEAP = "512m"
#: the broker starts in half the time, for a tenth less throughput
_QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaServer(LocalServer):
    """A broker with automatic topic creation off; records of 1 MiB and their overhead pass."""

    name: ClassVar[str] = "kafka"
    ports_default: ClassVar[dict[str, int]] = {"client": 19092, "controller": 19093}

    def __init__(
        self, directory: Path, ports: Mapping[str, int] | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        """`properties` are added to the broker's and win over them."""
        super().__init__(directory, ports)
        self._properties = dict(properties or {})

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, as Kafka's clients take it."""
        return f"{HOST}:{self.port}"

    @property
    def address(self) -> str:
        """kafka://HOST:PORT, as SCHEDMATE_BUS takes it."""
        return f"kafka://{self.bootstrap}"

    def environment(self) -> dict[str, str]:
        """Where tests find the broker."""
        return {"SCHEDMATE_TEST_KAFKA": self.address}

    def processes(self) -> list[ServerProcess]:
        """The broker, its own controller."""
        return [ServerProcess(self.directory, "kafka")]

    def install(self) -> None:
        """Fetch the jars; make the class-data archive, which halves every later start."""
        archive = self._archive()
        with filled(archive) as staging:
            if staging is None:
                return
            say(self.name, "making the class-data archive, once")
            made = staging / archive.name
            scratch = _ArchivingBroker(staging / "broker", made)
            scratch.start()
            scratch.stop(timeout_s=90.0)
            if not made.exists():
                message = f"java wrote no class-data archive:\n{scratch.processes()[0].log_tail()}"
                raise InstallError(message)

    def launch(self) -> None:
        """Write the properties, format the storage at the first start, and start the broker."""
        properties = self._write_properties()
        if not (self.directory / "log" / "meta.properties").exists():
            self._format(properties)
        flags = [f"-Xmx{_HEAP}", f"-XX:ErrorFile={self.directory}/java-error.log", *self._archive_flags()]
        self.processes()[0].start(self._java(*flags, "kafka.Kafka", properties))

    def answers(self) -> bool:
        """Whether a metadata request names a broker and a controller."""
        return _answers_metadata(self.port)

    def _archive_flags(self) -> list[str]:
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={self._archive()}", "-Xlog:cds=off", "-Xlog:class+path=off"]

    def _archive(self) -> Path:
        """One archive for each Java, set of jars and flags: it is only valid for these."""
        key = _java_version() + " ".join(_QUICK_START)
        return _libraries().parent / f"classes-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"

    def _java(self, *arguments: str | Path) -> list[str | Path]:
        class_path = os.pathsep.join(str(jar) for jar in sorted(_libraries().glob("*.jar")))
        log = [
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
        ]
        return [program("java", "to run the broker"), *_QUICK_START, *log, "-cp", class_path, *arguments]

    def _write_properties(self) -> Path:
        values = {"PORT": self.port, "CONTROLLER_PORT": self.ports["controller"], "DIRECTORY": self.directory}
        text = (_FILES / "server.properties.template").read_text()
        text = re.sub(r"@([A-Z_]+)@", lambda match: str(values[match.group(1)]), text)
        path = self.directory / "server.properties"
        path.write_text(text + "".join(f"{key}={value}\n" for key, value in self._properties.items()))
        return path

    def _format(self, properties: Path) -> None:
        # The tool takes a leading "-" of the id for an option, so the id starts with a letter.
        cluster_id = "A" + secrets.token_hex(16)[:21]
        # What a broken first start left is not a cluster yet.
        shutil.rmtree(self.directory / "log", ignore_errors=True)
        run_step(
            self._java("-Xmx128m", "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", properties),
            timeout_s=90.0,
        )


class _ArchivingBroker(KafkaServer):
    """A throw-away broker that writes the class-data archive when it ends."""

    def __init__(self, directory: Path, archive: Path) -> None:
        super().__init__(directory, {"client": free_port(), "controller": free_port()})
        self._archive_made = archive

    def install(self) -> None:
        """It is part of the installation itself."""

    def _archive_flags(self) -> list[str]:
        return [f"-XX:ArchiveClassesAtExit={self._archive_made}"]


def _libraries() -> Path:
    """The folder of the jars that pom.xml names, fetched when absent."""
    pom = _FILES / "pom.xml"
    libraries = cache_directory("kafka") / hashlib.sha256(pom.read_bytes()).hexdigest()[:12] / "libs"
    if libraries.is_dir():
        return libraries
    libraries.parent.mkdir(parents=True, exist_ok=True)
    with filled(libraries) as staging:
        if staging is not None:
            say("kafka", "fetching the broker's jars, once")
            maven = program("mvn", "once, to fetch the broker's jars")
            goal = [
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={staging / libraries.name}",
            ]
            run_step([maven, "-B", "-q", "-f", pom, *goal], timeout_s=900.0)
    return libraries


def _java_version() -> str:
    """The text of `java -version`; InstallError when it is too old."""
    java = program("java", f"to run the broker; install Java {_JAVA_LEAST} or newer")
    text = run_step([java, "-version"], timeout_s=30.0)
    found = re.search(r'version "(\d+)', text)
    if found is None or int(found.group(1)) < _JAVA_LEAST:
        message = f"Kafka needs Java {_JAVA_LEAST} or newer; `java -version` says: {text.strip()}"
        raise InstallError(message)
    return text


def _answers_metadata(port: int) -> bool:
    """Ask for metadata (version 1, no topics): true when a broker is registered and has a controller."""
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((HOST, port), timeout=2.0) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            answer = _receive(connection, size)
        correlation, brokers = struct.unpack_from(">ii", answer)
        position = 8
        for _ in range(brokers):  # node id, host, port, rack
            (host_length,) = struct.unpack_from(">h", answer, position + 4)
            position += 4 + 2 + host_length + 4
            (rack_length,) = struct.unpack_from(">h", answer, position)
            position += 2 + max(rack_length, 0)
        (controller,) = struct.unpack_from(">i", answer, position)
    except (OSError, struct.error):
        return False
    return bool(correlation == 1 and brokers > 0 and controller >= 0)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            message = "the connection was closed in the middle of an answer"
            raise ConnectionError(message)
        received += part
    return received
