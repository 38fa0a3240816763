"""Recovery: snapshot, then the recorded entries; and what can be known when records were lost (protocol §1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from schedmate.infra.store.port import Store, scan_all
from schedmate.schemas.events import JobSubmitted
from schedmate.schemas.job import JobSpec
from schedmate.schemas.wire import Envelope, Record
from schedmate.services.dispatcher.core import inputs as i
from schedmate.services.dispatcher.core.config import PoolConfig
from schedmate.services.dispatcher.core.policy import policy_named
from schedmate.services.dispatcher.core.state import PoolState
from schedmate.services.dispatcher.core.step import recover
from schedmate.services.dispatcher.intake import to_input
from schedmate.services.dispatcher.log import Entry, PoolLog
from schedmate.services.dispatcher.publication import encode_entry


@dataclass(slots=True)
class Recovered:
    """A pool as its log tells it: state, offsets to read on from, and the entries that may not have been published."""

    state: PoolState
    offsets: Mapping[str, list[int]] = field(default_factory=dict)
    bus: str = ""
    unpublished: list[tuple[int, list[Record]]] = field(default_factory=list)


async def recover_pool(pool_log: PoolLog) -> Recovered:
    """Fold the newest snapshot and every entry after it; the policy is not asked.

    Every pool begins with the default settings; others are inputs. A snapshot beyond the last published entry is passed over, so
    that everything unpublished can be told again; the one before it serves.
    """
    published = await pool_log.published()
    snapshot = await pool_log.newest_snapshot(published)
    if snapshot is not None:
        out = Recovered(PoolState.from_json(snapshot.state, policy_named), snapshot.offsets, snapshot.bus)
    else:
        out = Recovered(PoolState(pool_log.pool, PoolConfig(), policy_named(PoolConfig().policy)))
    async for entry in pool_log.entries(out.state.seq):
        fold_entry(out.state, entry)
        out.offsets, out.bus = entry.offsets, entry.bus
        if entry.seq > published:
            out.unpublished.append((entry.seq, encode_entry(entry, out.state, set(), "")))
    return out


def fold_entry(state: PoolState, entry: Entry) -> None:
    """Fold one recorded entry; it must be the next one."""
    assert entry.seq == state.seq + 1, f"the log of {entry.pool} lacks entry {state.seq + 1}"
    recover(state, entry.inputs, set(entry.refused), entry.decisions, entry.at, entry.trust)


async def missing_jobs(store: Store, state: PoolState) -> list[i.Input]:
    """Return the jobs of ingest's documents that the pool's log does not know: their events may have been lost."""
    out: list[i.Input] = []
    async for document in scan_all(store, "jobs", low="", high="\U0010ffff"):
        body = document.body
        if body.get("pool") != state.pool or document.id in state.jobs or document.id in state.ended:
            continue
        try:
            spec = JobSpec.model_validate(body["spec"])
        except (KeyError, ValidationError):
            continue
        submitted = JobSubmitted(
            job_id=document.id, pool=state.pool, spec=spec, submitted_at=float(body["submitted_at"])
        )
        value = to_input(Envelope("", "", submitted.submitted_at, submitted, body.get("traceparent")))
        if value is not None:
            out.append(value)
    return out
