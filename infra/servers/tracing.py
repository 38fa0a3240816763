"""Tracing: an OTel Collector that takes OTLP, built once from its Go modules, and Zipkin, which stores and shows the traces."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

from schedmate.infra.servers.cache import cache_directory, filled, program, run_step, say
from schedmate.infra.servers.ports import HOST, answers_http, answers_tcp
from schedmate.infra.servers.process import ServerProcess
from schedmate.infra.servers.server import LocalServer

__all__ = ["TracingServer"]

_FILES = Path(__file__).resolve().parent / "tracing_collector"
_ZIPKIN = "3.5.1"
_SPANS_MAX = 200_000

_COLLECTOR_CONFIGURATION = """\
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "{host}:{grpc}"}}
      http: {{endpoint: "{host}:{http}"}}
processors:
  batch: {{timeout: 200ms}}
exporters:
  zipkin: {{endpoint: "http://{host}:{zipkin}/api/v2/spans"}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], processors: [batch], exporters: [zipkin]}}
"""


class TracingServer(LocalServer):
    """OTLP in over HTTP and gRPC; traces in memory, the newest 200,000 spans, by Zipkin's API and web page."""

    name: ClassVar[str] = "tracing"
    ports_default: ClassVar[dict[str, int]] = {"zipkin": 19411, "grpc": 19412, "http": 19413}

    @property
    def otlp_address(self) -> str:
        """The base URL for OTLP over HTTP, as OTEL_EXPORTER_OTLP_ENDPOINT takes it."""
        return f"http://{HOST}:{self.ports['http']}"

    @property
    def address(self) -> str:
        """Zipkin's base URL; the page is at /zipkin/, the API at /api/v2/."""
        return f"http://{HOST}:{self.port}"

    def environment(self) -> dict[str, str]:
        """Where tests send traces, and where they find them."""
        return {"SCHEDMATE_TEST_OTLP": self.otlp_address, "SCHEDMATE_TEST_ZIPKIN": self.address}

    def processes(self) -> list[ServerProcess]:
        """Zipkin, then the collector that sends to it."""
        return [ServerProcess(self.directory, "zipkin"), ServerProcess(self.directory, "collector")]

    def install(self) -> None:
        """Build the collector and fetch Zipkin."""
        program("java", "to run Zipkin")
        _zipkin_jar()
        _collector_binary()

    def launch(self) -> None:
        """Start both; Zipkin takes some seconds."""
        zipkin, collector = self.processes()
        configuration = self.directory / "collector.yaml"
        configuration.write_text(_COLLECTOR_CONFIGURATION.format(host=HOST, **self.ports))
        memory = [
            "-Xms64m",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-XX:ErrorFile={self.directory}/java-error.log",
        ]
        settings = {"STORAGE_TYPE": "mem", "MEM_MAX_SPANS": str(_SPANS_MAX), "QUERY_PORT": str(self.port)}
        zipkin.start([program("java", "to run Zipkin"), *memory, "-jar", _zipkin_jar()], settings)
        collector.start([_collector_binary(), "--config", f"file:{configuration}"])

    def answers(self) -> bool:
        """Whether the collector takes connections and Zipkin says that it is well."""
        return answers_tcp(self.ports["http"]) and answers_http(self.port, "/health")


def _collector_binary() -> Path:
    sources = (_FILES / "go.mod").read_bytes() + (_FILES / "main.go").read_bytes()
    binary = cache_directory("tracing") / f"otelc-{hashlib.sha256(sources).hexdigest()[:12]}"
    if binary.exists():
        return binary
    with filled(binary) as staging:
        if staging is not None:
            say("tracing", "building the collector, once")
            go: list[str | Path] = [
                program("nice", "to leave the processors to others"),
                program("go", "once, to build the collector"),
                "build",
            ]
            flags: list[str | Path] = [
                "-mod=readonly",
                "-buildvcs=false",
                "-trimpath",
                "-ldflags",
                "-s -w",
                "-o",
                staging / binary.name,
            ]
            run_step([*go, *flags, "."], cwd=_FILES, environment={"CGO_ENABLED": "0"}, timeout_s=1800.0)
    return binary


def _zipkin_jar() -> Path:
    jar = cache_directory("tracing") / f"zipkin-server-{_ZIPKIN}-exec.jar"
    if jar.exists():
        return jar
    with filled(jar) as staging:
        if staging is not None:
            say("tracing", "getting Zipkin from its Maven package, once")
            maven = [program("mvn", "once, to fetch Zipkin"), "-q", "-B"]
            artifact = f"-Dartifact=io.zipkin:zipkin-server:{_ZIPKIN}:jar:exec"
            run_step([*maven, "dependency:get", artifact, "-Dtransitive=false"], timeout_s=600.0)
            run_step([*maven, "dependency:copy", artifact, f"-DoutputDirectory={staging}"], timeout_s=600.0)
    return jar
