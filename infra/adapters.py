"""From a setting's URL to the adapter behind a port. Only wiring, the single process and tests call these.

Each adapter is imported when it is asked for: the embedded default never loads a Kafka or a MongoDB client.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import structlog

from schedmate.infra.blobs.port import Blobs
from schedmate.infra.bus.port import EventBus
from schedmate.infra.clock import Clock
from schedmate.infra.embeddings.port import Embedder
from schedmate.infra.llm.port import LanguageModel
from schedmate.infra.settings import ServiceSettings, SettingsError
from schedmate.infra.store.port import Store
from schedmate.infra.store.traced import TracedStore

if TYPE_CHECKING:
    from collections.abc import Mapping


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SERVER: Final = re.compile(r"(?:[^\s:@/,\[\]]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


def make_bus(settings: ServiceSettings, clock: Clock) -> EventBus:
    """Return the bus that `settings.bus` names; it is not started."""
    kind, _, rest = settings.bus.partition(":")
    if kind == "sqlite":
        from schedmate.infra.bus.sqlite import SqliteBus  # noqa: PLC0415 - see the module's docstring

        return SqliteBus(_local_path(settings, rest, "bus.db"), clock)
    from schedmate.infra.bus.kafka import KafkaBus  # noqa: PLC0415 - see the module's docstring

    servers = rest.removeprefix("//").rstrip("/")
    if not all(_SERVER.fullmatch(server) for server in servers.split(",")):
        raise SettingsError(
            "SCHEDMATE_BUS: must be kafka://HOST:PORT[,HOST:PORT]; credentials go to SCHEDMATE_KAFKA_USERNAME and _PASSWORD"
        )
    return KafkaBus(
        servers, clock, client_id=f"schedmate-{settings.service_name()}", **kafka_access(settings).client_arguments()
    )


def make_store(settings: ServiceSettings) -> Store:
    """Return the store that `settings.store` names, its calls traced; it is not started."""
    kind, _, rest = settings.store.partition(":")
    if kind == "sqlite":
        from schedmate.infra.store.sqlite import SqliteStore  # noqa: PLC0415 - see the module's docstring

        return TracedStore(SqliteStore(_local_path(settings, rest, "store.db")), "sqlite")
    from schedmate.infra.store.mongo import MongoStore  # noqa: PLC0415 - see the module's docstring

    _check_mongo_files(settings)
    mongo = MongoStore(mongo_url(settings, settings.store), settings.mongo_database, client=settings.mongo_client)
    return TracedStore(mongo, "mongodb")


def make_blobs(settings: ServiceSettings, clock: Clock) -> Blobs:
    """Return the blob store that `settings.blobs` names; it is not started."""
    kind, _, rest = settings.blobs.partition(":")
    if kind == "files":
        from schedmate.infra.blobs.files import FileBlobs  # noqa: PLC0415 - see the module's docstring

        return FileBlobs(_local_path(settings, rest, "blobs"), clock)
    from schedmate.infra.blobs.gridfs import GridFsBlobs  # noqa: PLC0415 - see the module's docstring

    _check_mongo_files(settings)
    return GridFsBlobs(mongo_url(settings, rest), settings.mongo_database, clock, client=settings.mongo_client)


def make_llm(settings: ServiceSettings) -> LanguageModel:
    """Return the language model that `settings.llm` names. It connects when asked; `auto` looks for Ollama each time."""
    if settings.llm == "none":
        from schedmate.infra.llm.none import NoModel  # noqa: PLC0415 - see the module's docstring

        return NoModel()
    from schedmate.infra.llm.ollama import OllamaModel  # noqa: PLC0415 - see the module's docstring

    model, url = settings.ollama_model, settings.ollama_url
    if settings.llm != "auto":
        model, _, url = settings.llm.removeprefix("ollama:").partition("@")
    return OllamaModel(url, model, context_tokens=settings.ollama_context_tokens, threads=settings.ollama_threads)


def local_model_directory(written: str, state_dir: Path) -> Path:
    """Return where the local embedding model is looked for: where the setting names it (`local:DIR`), else below the directory of local state."""
    from schedmate.infra.embeddings.local import DIRECTORY  # noqa: PLC0415 - see the module's docstring

    kind, _, named = written.partition(":")
    return Path(named) if kind == "local" and named else state_dir / DIRECTORY


def make_embedder(written: str, state_dir: Path) -> Embedder | None:
    """Return the embedder that a setting names, None for none. It connects, or loads its model, when asked.

    `auto` is the local model where it was fetched and its libraries are there, else hashed features.

    Raises:
        SettingsError: the local model is asked for and cannot be used.
    """
    if written == "none":
        return None
    from schedmate.infra.embeddings.mixed import MixedEmbedder  # noqa: PLC0415 - see the module's docstring

    kind, _, rest = written.partition(":")
    if kind == "ollama":
        from schedmate.infra.embeddings.ollama import OllamaEmbedder  # noqa: PLC0415 - see the module's docstring

        model, _, url = rest.partition("@")
        return MixedEmbedder(OllamaEmbedder(url, model))
    if kind in {"auto", "local"}:
        from schedmate.infra.embeddings import local  # noqa: PLC0415 - see the module's docstring

        directory = local_model_directory(written, state_dir)
        try:
            return MixedEmbedder(local.LocalEmbedder(directory))
        except local.LocalModelError as error:
            if kind == "local":
                raise SettingsError(f"SCHEDMATE_EMBEDDINGS: {error}") from error
            if directory.exists():
                log.warning("the local model is left out", action="embeddings.no_local", error=str(error))
    from schedmate.infra.embeddings.hashed import HashedEmbedder  # noqa: PLC0415 - see the module's docstring

    return HashedEmbedder()


def _local_path(settings: ServiceSettings, written: str, name: str) -> Path:
    return Path(written) if written else settings.state_dir / name


# --- TLS and SASL -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How to prove who we are to Kafka, and how to know that it is Kafka."""

    security: str
    ssl_context: ssl.SSLContext | None = field(repr=False)
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def client_arguments(self) -> Mapping[str, Any]:
        """Return the arguments that aiokafka's clients take for it, none where Kafka is open."""
        if self.security == "PLAINTEXT":
            return {}
        arguments: dict[str, Any] = {"security_protocol": self.security}
        if self.ssl_context is not None:
            arguments["ssl_context"] = self.ssl_context
        if self.mechanism is not None:
            arguments |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return arguments


def kafka_access(settings: ServiceSettings) -> KafkaAccess:
    """Return the access that the `kafka_*` settings give.

    Raises:
        SettingsError: a file of certificates or keys cannot be used.
    """
    security = settings.kafka_security
    context = _kafka_tls(settings) if security.endswith("SSL") else None
    if not security.startswith("SASL"):
        return KafkaAccess(security, context)
    password = settings.kafka_password
    assert password is not None  # the settings' own check
    return KafkaAccess(
        security, context, settings.kafka_sasl_mechanism, settings.kafka_username, password.get_secret_value()
    )


def _kafka_tls(settings: ServiceSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=_text(settings.kafka_ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"SCHEDMATE_KAFKA_CA_FILE: {settings.kafka_ca_file} is no file of certificates ({error})"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.kafka_certificate_file is not None:
        password = settings.kafka_key_password.get_secret_value() if settings.kafka_key_password else ""
        try:
            context.load_cert_chain(settings.kafka_certificate_file, settings.kafka_key_file, password=password)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"SCHEDMATE_KAFKA_CERTIFICATE_FILE: {settings.kafka_certificate_file} and its key cannot be used ({error.__class__.__name__}); "
                "check SCHEDMATE_KAFKA_KEY_FILE and SCHEDMATE_KAFKA_KEY_PASSWORD"
            ) from error
    return context


def mongo_url(settings: ServiceSettings, url: str) -> str:
    """Return a MongoDB URL with the user, the password and TLS of the `mongo_*` settings.

    Raises:
        SettingsError: the URL names a user and the settings do too.
    """
    parts = urlsplit(url)
    hosts, query, path = parts.netloc, parts.query, parts.path or "/"
    options: list[str] = [query] if query else []
    if settings.mongo_username is not None and settings.mongo_password is not None:
        if "@" in hosts:
            raise SettingsError(
                "SCHEDMATE_STORE: the URL names a user and SCHEDMATE_MONGO_USERNAME does too; leave one out"
            )
        password = settings.mongo_password.get_secret_value()
        hosts = f"{quote(settings.mongo_username, safe='')}:{quote(password, safe='')}@{hosts}"
        options.append(f"authSource={quote(settings.mongo_auth_source, safe='')}")
    if settings.mongo_tls:
        options.append("tls=true")
        if settings.mongo_ca_file is not None:
            options.append(f"tlsCAFile={quote(str(settings.mongo_ca_file), safe='')}")
        if settings.mongo_certificate_file is not None:
            options.append(f"tlsCertificateKeyFile={quote(str(settings.mongo_certificate_file), safe='')}")
    return urlunsplit((parts.scheme, hosts, path, "&".join(options), ""))


def _check_mongo_files(settings: ServiceSettings) -> None:
    for name in ("mongo_ca_file", "mongo_certificate_file"):
        file: Path | None = getattr(settings, name)
        if file is not None and not os.access(file, os.R_OK):
            raise SettingsError(f"SCHEDMATE_{name.upper()}: {file} cannot be read")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
