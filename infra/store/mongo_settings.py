"""What `setup` asks a MongoDB server before it trusts it with writes that must last.

Writes ask for a majority and the journal themselves; these are the settings under which a server would grant that
without keeping it. What a server does not tell (an older one, one whose rights forbid it, the development server) is
not held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
from pymongo.errors import OperationFailure

_SILENT: Final = frozenset({13, 59, 76, 93, 115})
"""Unauthorized, CommandNotFound, NoReplicationEnabled, InvalidReplicaSetConfig, CommandNotSupported."""
_BODY_BYTES: Final = 16 * 1024 * 1024

_log = structlog.get_logger(__name__)


async def weaknesses(admin: Any) -> list[str]:
    """Return what is wrong with the server's settings, each with what to do about it."""
    hello = await admin.command("hello")
    found = weaknesses_in(
        hello=hello,
        defaults=await _asked(admin, "getDefaultRWConcern"),
        options=await _asked(admin, "getCmdLineOpts"),
        status=await _asked(admin, "serverStatus"),
        replication=await _asked(admin, "replSetGetConfig"),
    )
    if not found and "setName" not in hello and hello.get("msg") != "isdbgrid":
        _log.warning(
            "MongoDB is no replica set: a majority is this one server, and its disk is all there is",
            action="mongodb.standalone",
        )
    return found


def weaknesses_in(
    *,
    hello: Mapping[str, Any],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    status: Mapping[str, Any],
    replication: Mapping[str, Any],
) -> list[str]:
    """Judge the answers of a server; an answer that could not be had is an empty mapping."""
    found: list[str] = []
    written = defaults.get("defaultWriteConcern", {}).get("w", "majority")
    if isinstance(written, int) and written < _majority(replication):
        found.append(
            f"its default write concern is w: {written}; run db.adminCommand({{setDefaultRWConcern: 1, "
            'defaultWriteConcern: {w: "majority"}})'
        )
    if options.get("parsed", {}).get("storage", {}).get("journal", {}).get("enabled") is False:
        found.append("its journal is off; start it without --nojournal (storage.journal.enabled: true)")
    engine = status.get("storageEngine", {})
    if engine.get("persistent") is False:
        found.append(f"its storage engine {engine.get('name')!r} keeps nothing; use wiredTiger")
    if replication.get("config", {}).get("writeConcernMajorityJournalDefault") is False:
        found.append(
            "its replica set acknowledges majority writes from memory; set writeConcernMajorityJournalDefault: true "
            "with rs.reconfig()"
        )
    if hello.get("maxBsonObjectSize", _BODY_BYTES) < _BODY_BYTES:
        found.append(f"it takes documents of {hello['maxBsonObjectSize']} bytes only; 16 MiB are needed")
    return found


def _majority(replication: Mapping[str, Any]) -> int:
    members = [m for m in replication.get("config", {}).get("members", []) if m.get("votes", 1)]
    return len(members) // 2 + 1 if members else 2


async def _asked(admin: Any, command: str) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = await admin.command(command)
    except OperationFailure as error:
        if error.code not in _SILENT:
            raise
        _log.debug("MongoDB does not tell this setting", action="mongodb.setting_unknown", command=command)
        return {}
    return answer
