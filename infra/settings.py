"""Settings of every service: a flag over the environment (`SCHEDMATE_*`) over a TOML file over the default.

The TOML file may serve several services at once: common settings stand at the top, a service's own ones in the table of
its name, which also overrides the common ones for that service:

    bus = "kafka://kafka:9092"
    [worker]
    node = "n1"
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NoReturn, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettingError

ENV_PREFIX: Final = "SCHEDMATE_"
CONFIG_VARIABLE: Final = "SCHEDMATE_CONFIG"
CONFIG_BYTES_MAX: Final = 1024 * 1024
HIDDEN: Final = "***"

SERVICES: Final = ("ingest", "code-analyzer", "history-estimator", "log-monitor", "dispatcher", "worker")
TABLES: Final = (*SERVICES, "client", "up")
"""Tables that a TOML file may have: the services, the command line as a client, and the single process."""

S = TypeVar("S", bound="ServiceSettings")


class SettingsError(Exception):
    """Settings cannot be used. The message is one line: which setting, what is wrong, what to do."""


_file_values: ContextVar[Mapping[str, Any] | None] = ContextVar("schedmate_settings_file", default=None)


class _FileSource(PydanticBaseSettingsSource):
    """What `load` read from the TOML file: below the environment, above the defaults."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - the library's signature
        return (_file_values.get() or {}).get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(_file_values.get() or {})


def health_port_field(default: int) -> Any:
    """Return the field `health_port` with a service's own default."""
    return Field(
        default=default,
        ge=0,
        le=65535,
        description="Port of /healthz, /readyz and /metrics; 0 takes a free one and logs it.",
    )


class ServiceSettings(BaseSettings):
    """What all services share. Each service adds its own in a subclass; all are frozen."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, validate_default=True
    )

    SERVICE: ClassVar[str] = ""
    """The service's name where it does not follow from the module (`schedmate.services.NAME.settings`)."""

    bus: str = Field(
        default="sqlite:",
        description="Event bus: `sqlite:FILE` (`sqlite:` is STATE_DIR/bus.db) or `kafka://HOST:PORT[,HOST:PORT]`.",
    )
    store: str = Field(
        default="sqlite:",
        description="Document store: `sqlite:FILE` (`sqlite:` is STATE_DIR/store.db) or `mongodb://…`.",
    )
    blobs: str = Field(
        default="files:",
        description="Bundles and log chunks: `files:DIR` (`files:` is STATE_DIR/blobs) or `gridfs:mongodb://…`.",
    )
    llm: str = Field(
        default="auto",
        description="Language model: `none`, `ollama:MODEL@URL`, or `auto` (Ollama when it answers).",
    )
    state_dir: Path = Field(default=Path(".schedmate"), description="Directory of all local state.")

    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT",
        description="How to talk to Kafka; production wants SASL_SSL or SSL with a client certificate.",
    )
    kafka_ca_file: Path | None = Field(default=None, description="PEM file of the authority of Kafka's certificates.")
    kafka_certificate_file: Path | None = Field(
        default=None, description="PEM file of the client certificate for Kafka."
    )
    kafka_key_file: Path | None = Field(default=None, description="PEM file of the client certificate's key.")
    kafka_key_password: SecretStr | None = Field(default=None, description="Password of the key file.")
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="SASL mechanism, with SASL_PLAINTEXT and SASL_SSL."
    )
    kafka_username: str | None = Field(default=None, description="SASL user: the service's own principal.")
    kafka_password: SecretStr | None = Field(default=None, description="SASL password.")

    mongo_client: Literal["motor", "pymongo"] = Field(
        default="motor", description="Client class of the MongoDB adapter."
    )
    mongo_database: str = Field(
        default="schedmate", min_length=1, max_length=63, description="Name of the MongoDB database."
    )
    mongo_tls: bool = Field(default=False, description="Use TLS to MongoDB.")
    mongo_ca_file: Path | None = Field(default=None, description="PEM file of the authority of MongoDB's certificates.")
    mongo_certificate_file: Path | None = Field(
        default=None, description="PEM file with the client certificate and its key for MongoDB."
    )
    mongo_username: str | None = Field(default=None, description="MongoDB user: the service's own principal.")
    mongo_password: SecretStr | None = Field(default=None, description="MongoDB password; better here than in the URL.")
    mongo_auth_source: str = Field(default="admin", description="Database that knows the MongoDB user.")

    ollama_url: str = Field(default="http://127.0.0.1:11434", description="Where `auto` looks for Ollama.")
    ollama_model: str | None = Field(
        default=None, description="Model that `auto` uses; without it, the first one that the server lists."
    )
    ollama_context_tokens: int = Field(
        default=8192, ge=256, le=1_048_576, description="Context size asked of Ollama (num_ctx)."
    )
    ollama_threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Threads that Ollama may use per call (num_thread); its own choice if unset.",
    )

    health_host: str = Field(default="127.0.0.1", description="Address of /healthz, /readyz and /metrics.")
    health_port: int = health_port_field(8471)
    start_timeout_s: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="How long a start is tried again while the bus or the store does not answer.",
    )
    drain_timeout_s: float = Field(
        default=15.0, gt=0, le=3600, description="How long work in hand may take to finish after SIGTERM."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="One JSON object a line, or text for people."
    )

    @classmethod
    def service_name(cls) -> str:
        """Return the service's name, e.g. `code-analyzer`."""
        if cls.SERVICE:
            return cls.SERVICE
        parts = cls.__module__.split(".")
        if len(parts) > 2 and parts[:2] == ["schedmate", "services"]:  # noqa: PLR2004 - schedmate.services.NAME
            return parts[2].replace("_", "-")
        return "schedmate"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flag, environment, TOML file; the default is what the field says."""
        return init_settings, env_settings, _FileSource(settings_cls)

    @field_validator("bus")
    @classmethod
    def _known_bus(cls, value: str) -> str:
        return _checked(value, ("sqlite:", "kafka://"), "sqlite:FILE or kafka://HOST:PORT")

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        return _checked(value, ("sqlite:", "mongodb://", "mongodb+srv://"), "sqlite:FILE or mongodb://HOST:PORT")

    @field_validator("blobs")
    @classmethod
    def _known_blobs(cls, value: str) -> str:
        return _checked(
            value, ("files:", "gridfs:mongodb://", "gridfs:mongodb+srv://"), "files:DIR or gridfs:mongodb://HOST:PORT"
        )

    @field_validator("llm")
    @classmethod
    def _known_llm(cls, value: str) -> str:
        if value in ("none", "auto"):
            return value
        if re.fullmatch(r"ollama:[^@\s]+@https?://\S+", value) is None:
            raise ValueError("must be none, auto or ollama:MODEL@URL, e.g. ollama:llama3.1:8b@http://127.0.0.1:11434")
        return value

    @model_validator(mode="after")
    def _whole_credentials(self) -> Self:
        if self.kafka_security.startswith("SASL") and (self.kafka_username is None or self.kafka_password is None):
            raise ValueError(
                f"kafka_security={self.kafka_security} needs SCHEDMATE_KAFKA_USERNAME and SCHEDMATE_KAFKA_PASSWORD"
            )
        if (self.mongo_username is None) != (self.mongo_password is None):
            raise ValueError("set both SCHEDMATE_MONGO_USERNAME and SCHEDMATE_MONGO_PASSWORD, or neither")
        if (self.kafka_certificate_file is None) != (self.kafka_key_file is None):
            raise ValueError("set both SCHEDMATE_KAFKA_CERTIFICATE_FILE and SCHEDMATE_KAFKA_KEY_FILE, or neither")
        return self


def _checked(value: str, starts: tuple[str, ...], wanted: str) -> str:
    if not value.startswith(starts):
        raise ValueError(f"must be {wanted}")
    return value


def load(cls: type[S], argv_overrides: Mapping[str, Any] | None = None, config: Path | None = None) -> S:
    """Return the settings of a service from flags, environment and TOML file.

    An override of None is a flag that was not given. Without `config`, SCHEDMATE_CONFIG names the file.

    Raises:
        SettingsError: one line that names the setting and says what to do.
    """
    if config is None and (named := os.environ.get(CONFIG_VARIABLE)):
        config = Path(named)
    values = {} if config is None else read_config(cls, config)
    overrides = {name: value for name, value in (argv_overrides or {}).items() if value is not None}
    with _file(values):
        try:
            return cls(**overrides)
        except ValidationError as error:
            raise SettingsError(_one_line(cls, error, overrides, values, config)) from error
        except UnreadableSettingError as error:
            raise SettingsError(
                f"{_env_name_in(cls, str(error))}: {error}; lists and tables are written as JSON"
            ) from error


def make_state_dir(settings: ServiceSettings) -> None:
    """Make the directory of all local state.

    Raises:
        SettingsError: it cannot be made, or not written to.
    """
    path = settings.state_dir
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"SCHEDMATE_STATE_DIR={path}: cannot be made ({error.strerror})") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(f"SCHEDMATE_STATE_DIR={path}: cannot be written to; name another directory")


def read_config(cls: type[ServiceSettings], config: Path) -> dict[str, Any]:
    """Return what a TOML file says to this service: the top of the file, overridden by the service's own table.

    Raises:
        SettingsError: the file cannot be read, or names a setting or a table that does not exist.
    """
    try:
        content = config.read_bytes()
    except OSError as error:
        raise SettingsError(f"--config {config}: cannot be read ({error.strerror}); name a TOML file") from error
    if len(content) > CONFIG_BYTES_MAX:
        raise SettingsError(f"--config {config}: larger than {CONFIG_BYTES_MAX} bytes; name a TOML file of settings")
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {config}: not TOML ({error})") from error
    common: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, value in table.items():
        if name in TABLES and isinstance(value, dict):
            if name == cls.service_name():
                own = {_known(cls, key, f"{config} [{name}]"): given for key, given in value.items()}
            else:
                _check_names_of_others(name, value, config)
        else:
            common[_known(ServiceSettings, name, str(config), own=cls)] = value
    return common | own


def _known(cls: type[ServiceSettings], written: str, where: str, own: type[ServiceSettings] | None = None) -> str:
    name = written.removeprefix(ENV_PREFIX).lower()
    if name in cls.model_fields:
        return name
    if own is not None and name in own.model_fields:
        raise SettingsError(
            f"{where}: `{written}` is a setting of {own.service_name()}; put it under [{own.service_name()}]"
        )
    raise SettingsError(
        f"{where}: there is no setting `{written}`; docs/settings.md lists them all{_similar(cls, name)}"
    )


def _check_names_of_others(table: str, values: Mapping[str, Any], config: Path) -> None:
    for name in values:
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is None:
            raise SettingsError(f"{config} [{table}]: `{name}` is no name of a setting")


def _similar(cls: type[ServiceSettings], name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - for an error message only

    close = get_close_matches(name, cls.model_fields, n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


@contextmanager
def _file(values: Mapping[str, Any]) -> Iterator[None]:
    token = _file_values.set(values)
    try:
        yield
    finally:
        _file_values.reset(token)


def _one_line(
    cls: type[ServiceSettings],
    error: ValidationError,
    overrides: Mapping[str, Any],
    values: Mapping[str, Any],
    config: Path | None,
) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ")
    if not name:
        return message
    variable = ENV_PREFIX + name.upper()
    if first["type"] == "extra_forbidden":
        return f"--{name.replace('_', '-')}: there is no such setting{_similar(cls, name)}"
    if first["type"] == "missing":
        return f"{variable} is not set: give --{name.replace('_', '-')}, {variable}, or `{name}` in the TOML file"
    if name in overrides:
        source = f"--{name.replace('_', '-')}"
    elif variable in {key.upper() for key in os.environ}:
        source = variable
    elif name in values:
        source = f"{config}: {name}"
    else:
        source = variable
    return f"{source}: {message[:1].lower()}{message[1:]}"


def _env_name_in(cls: type[ServiceSettings], message: str) -> str:
    for name in cls.model_fields:
        if f'"{name}"' in message:
            return ENV_PREFIX + name.upper()
    return ENV_PREFIX + "*"


def is_secret(field: FieldInfo) -> bool:
    """Tell whether a field holds a secret."""
    return "SecretStr" in str(field.annotation) or "SecretBytes" in str(field.annotation)


def masked(settings: ServiceSettings) -> dict[str, Any]:
    """Return all settings as plain JSON values, for the log line at start: secrets and URL credentials hidden."""
    plain = settings.model_dump(mode="json")
    return {name: _shown(field, plain[name]) for name, field in type(settings).model_fields.items()}


def _shown(field: FieldInfo, value: Any) -> Any:
    if is_secret(field):
        return None if value is None else HIDDEN
    if isinstance(value, str):
        return hide_url_credentials(value)
    if isinstance(value, (list, dict)):
        return json.loads(hide_url_credentials(json.dumps(value)))
    return value


def hide_url_credentials(text: str) -> str:
    """Return the text with the user part of every URL hidden."""
    return re.sub(r"(?<=://)[^\s/?#\"]{0,1000}@", f"{HIDDEN}@", text)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of settings: one line."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; `{self.prog} --help` lists the settings")


def from_command_line(cls: type[S], argv: Sequence[str] | None = None) -> S:
    """Return the settings of `python -m schedmate.services.NAME [--config FILE] [--setting VALUE …]`.

    Every setting but the secrets is a flag: a process's arguments can be read by everybody on the machine.

    Raises:
        SettingsError: one line that names the setting and says what to do.
        SystemExit: `--help`.
    """
    parser = _Parser(prog=_program(cls.service_name()), allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help="TOML file of settings")
    for name, field in cls.model_fields.items():
        if is_secret(field):
            continue
        flag = "--" + name.replace("_", "-")
        described = (field.description or "").replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(flag, dest=name, default=None, action=argparse.BooleanOptionalAction, help=described)
        else:
            parser.add_argument(flag, dest=name, default=None, metavar="VALUE", help=described)
    given = vars(parser.parse_args(argv))
    config = given.pop("config")
    return load(cls, {name: _flag_value(cls, name, value) for name, value in given.items()}, config)


def _program(service: str) -> str:
    return f"schedmate {service}" if service in {"up", "worker"} else f"schedmate serve {service}"


def _flag_value(cls: type[ServiceSettings], name: str, value: Any) -> Any:
    """Decode lists and tables, which flags carry as JSON, as the environment does."""
    annotation = str(cls.model_fields[name].annotation)
    if isinstance(value, str) and re.search(r"\b(tuple|list|dict|set|frozenset|Sequence|Mapping)\[", annotation):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise SettingsError(f"--{name.replace('_', '-')}: must be JSON ({error})") from error
    return value
