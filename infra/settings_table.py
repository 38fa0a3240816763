"""The table of all settings, for docs/settings.md."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo

from schedmate.infra.settings import ENV_PREFIX, ServiceSettings, is_secret


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of the table of settings. `services` is empty where all services have it."""

    name: str
    variable: str
    type: str
    default: str
    services: tuple[str, ...]
    description: str
    secret: bool


def settings_table(classes: Sequence[type[ServiceSettings]]) -> list[SettingRow]:
    """Return a row for each setting: the common ones first, then each service's own in the order of `classes`."""
    rows = [_row(ServiceSettings, name, services=()) for name in ServiceSettings.model_fields if name != "health_port"]
    for cls in classes:
        service = cls.service_name()
        own = [n for n in cls.model_fields if n not in ServiceSettings.model_fields or n in cls.__annotations__]
        rows.extend(_row(cls, name, services=(service,)) for name in own)
    return rows


def _row(cls: type[ServiceSettings], name: str, services: tuple[str, ...]) -> SettingRow:
    field = cls.model_fields[name]
    return SettingRow(
        name=name,
        variable=ENV_PREFIX + name.upper(),
        type=_type_words(field),
        default=_default_words(field),
        services=services,
        description=field.description or "",
        secret=is_secret(field),
    )


def _type_words(field: FieldInfo) -> str:
    if is_secret(field):
        return "secret"
    words = str(field.annotation)
    literal = re.findall(r"'([^']*)'", words) if "Literal" in words else []
    if literal:
        return " or ".join(f"`{word}`" for word in literal)
    if isinstance(field.annotation, type):
        words = field.annotation.__name__
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Path": "path"}
    plain = words.replace("pathlib.", "").replace("typing.", "").replace(" | None", "").replace("_local.", "")
    return names.get(plain, plain.replace("|", "or"))


def _default_words(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=False)
    if default is None:
        return ""
    if isinstance(default, (str, Path)):
        return f"`{default}`" if str(default) else ""
    try:
        return f"`{json.dumps(default)}`"
    except TypeError:
        return f"`{default}`"
