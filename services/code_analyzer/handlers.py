"""A submitted job in, its analysis out: from the cache, else read in a process of its own. Bad input ends in a partial analysis."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import structlog

from schedmate.infra.blobs.port import BlobsUnavailableError
from schedmate.infra.clock import Clock
from schedmate.infra.store.port import Store
from schedmate.infra.telemetry import names
from schedmate.infra.telemetry.metrics import Metrics
from schedmate.infra.telemetry.redaction import redact
from schedmate.infra.telemetry.tracing import span
from schedmate.infra.work_pool import WorkError, WorkPool
from schedmate.schemas import ids
from schedmate.schemas.events import Basis, Event, JobAnalyzed, JobSubmitted, WorkloadField
from schedmate.schemas.job import JobSpec
from schedmate.schemas.wire import Envelope
from schedmate.services.code_analyzer import reading
from schedmate.services.code_analyzer.analysis import Analysis, Subject, content_hash
from schedmate.services.code_analyzer.bundles import BundleMissingError, BundleSource, fetch
from schedmate.services.code_analyzer.reading import Known
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.suggesting import Pending, Suggester, cluster_of

COLLECTION: Final = "analyses"
SOURCE: Final = "schedmate/code-analyzer"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """An analysis with the hash of what it depends on; `lasting` when a repeat would come to the same."""

    content_hash: str
    analysis: Analysis
    lasting: bool
    texts: Mapping[str, str] = field(default_factory=dict)
    """What a model may read to suggest open fields; empty when none is asked."""
    lineage: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)


class Analyzer:
    """Handles submitted jobs."""

    def __init__(
        self,
        store: Store,
        bundles: BundleSource,
        pool: WorkPool,
        settings: CodeAnalyzerSettings,
        clock: Clock,
        metrics: Metrics,
        suggester: Suggester | None = None,
    ) -> None:
        self._store = store
        self._bundles = bundles
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._suggester = suggester

    async def __call__(self, envelope: Envelope[Event]) -> Sequence[Envelope[Event]]:
        """Return the analysis of a submitted job."""
        event = envelope.event
        if not isinstance(event, JobSubmitted):
            return ()
        with span(names.ANALYZE, job_id=event.job_id):
            result = await self._analysis_of(event.spec)
        analyzed = JobAnalyzed(
            job_id=event.job_id,
            pool=event.pool,
            content_hash=result.content_hash,
            fields={name: _redacted(f) for name, f in result.analysis.fields.items()},
            partial_because=_text(result.analysis.partial_because),
        )
        said: Envelope[Event] = Envelope(
            id=ids.derived("analysis", event.job_id, result.content_hash),
            source=SOURCE,
            time=envelope.time,
            event=analyzed,
        )
        if result.texts and self._suggester is not None:
            cluster = cluster_of(event.spec)
            self._suggester.offer(Pending(said, result.texts, result.lineage, result.hashes, cluster))
        return [said]

    async def keep(self, pending: Pending, fields: Mapping[str, WorkloadField]) -> None:
        """Keep an analysis with what a model added: an exact repeat asks no model, nor does a resubmission about what the same files show."""
        event = pending.envelope.event
        assert isinstance(event, JobAnalyzed)
        document = await self._store.get(COLLECTION, event.content_hash)
        if document is not None:
            told = {name: f.model_dump(mode="json") for name, f in fields.items()}
            await self._store.put(COLLECTION, event.content_hash, {**document.body, "fields": told})
        last = await self._store.get(COLLECTION, pending.lineage) if pending.lineage is not None else None
        if last is not None and pending.lineage is not None:
            suggested = {
                name: {"field": f.model_dump(mode="json"), "sha256": pending.hashes[f.file]}
                for name, f in fields.items()
                if f.basis is Basis.MODEL_SUGGESTED and f.file is not None and f.file in pending.hashes
            }
            await self._store.put(COLLECTION, pending.lineage, {**last.body, "suggested": suggested})

    async def _analysis_of(self, spec: JobSpec) -> Result:
        subject = Subject.of(spec)
        known = await self._cached(content_hash(subject, spec.bundle)) if spec.bundle is not None else None
        if known is not None:
            self._metrics.count(names.ANALYSES, outcome="cached")
            return known
        started = self._clock.monotonic()
        result = await self._read(spec, subject)
        self._metrics.observe(names.ANALYSIS_S, self._clock.monotonic() - started)
        self._metrics.count(names.ANALYSES, outcome="partial" if result.analysis.partial_because else "whole")
        if result.lasting:
            await self._store.put(COLLECTION, result.content_hash, _body(result.analysis, self._clock.now()))
        return result

    async def _read(self, spec: JobSpec, subject: Subject) -> Result:
        try:
            if spec.bundle is not None:
                return await self._read_bundle(spec, subject, spec.bundle)
            if spec.workdir is not None and self._settings.read_workdirs:
                return await self._read_source(spec, subject, Path(spec.workdir), bundle=False)
            why = None if spec.workdir is None else "working directories are not read here (read_workdirs)"
            return Result(*await self._work(reading.analyze_command, subject, why), lasting=True)
        except WorkError as error:
            log.warning("an analysis failed", action="analysis.failed", job=spec.name, error=str(error))
            return await self._without_source(subject, f"the analysis failed: {error}")

    async def _read_bundle(self, spec: JobSpec, subject: Subject, sha256: str) -> Result:
        with tempfile.TemporaryDirectory(prefix="schedmate-analysis-") as directory:
            path = Path(directory) / sha256
            try:
                async with asyncio.timeout(self._settings.fetch_timeout_s):
                    await fetch(self._bundles, sha256, path, bytes_max=self._settings.bundle_bytes_max)
            except BundleMissingError as error:
                return await self._without_source(subject, str(error))
            except (TimeoutError, BlobsUnavailableError) as error:
                return await self._without_source(
                    subject, f"the bundle could not be fetched: {str(error) or 'too slow'}"
                )
            return await self._read_source(spec, subject, path, bundle=True)

    async def _read_source(self, spec: JobSpec, subject: Subject, path: Path, *, bundle: bool) -> Result:
        """Read a job's files, unless what the last analysis of the same start rests on has not changed."""
        lineage = lineage_of(spec, subject)
        last = await self._store.get(COLLECTION, lineage)
        known = _known(last.body) if last is not None else None
        work = reading.read_bundle if bundle else reading.read_directory
        read: reading.Reading = await self._pool.run(self._settings.analysis_timeout_s, work, subject, path, known)
        self._metrics.count(names.ANALYSIS_FILES, len(read.parsed), outcome="read")
        self._metrics.count(names.ANALYSIS_FILES, len(read.reused), outcome="reused")
        suggested = dict(last.body.get("suggested", {})) if last is not None else {}
        if read.analysis is None and last is not None:
            self._metrics.count(names.ANALYSES, outcome="unchanged")
            return Result(read.content_hash, _with(_analysis(last.body), suggested, read.quoted), lasting=True)
        assert read.analysis is not None
        body = _body(read.analysis, self._clock.now()) | {
            "names": read.known.names, "read": read.known.read, "rests": {n: list(r) for n, r in read.analysis.rests.items()},
            "suggested": {n: one for n, one in suggested.items() if one["field"]["file"] in read.quoted},
        }  # fmt: skip
        await self._store.put(COLLECTION, lineage, body)
        analysis = _with(read.analysis, suggested, read.quoted)
        texts: Mapping[str, str] = {}
        if self._suggester is not None and await self._suggester.wanted(analysis.fields):
            show = reading.bundle_texts if bundle else reading.directory_texts
            texts = await self._pool.run(self._settings.analysis_timeout_s, show, path)
        return Result(read.content_hash, analysis, lasting=True, texts=texts, lineage=lineage, hashes=read.hashes)

    async def _without_source(self, subject: Subject, why: str) -> Result:
        """Say what the command alone tells. Not cached: the next time the source may be there."""
        try:
            hashed, analysis = await self._work(reading.analyze_command, subject, why)
        except WorkError as error:
            hashed, analysis = content_hash(subject, why), Analysis({}, f"{why}; {error}")
        return Result(hashed, analysis, lasting=False)

    async def _work(self, work: Any, *args: Any) -> tuple[str, Analysis]:
        result: tuple[str, Analysis] = await self._pool.run(self._settings.analysis_timeout_s, work, *args)
        return result

    async def _cached(self, hashed: str) -> Result | None:
        document = await self._store.get(COLLECTION, hashed)
        if document is None:
            return None
        return Result(hashed, _analysis(document.body), lasting=False)


def lineage_of(spec: JobSpec, subject: Subject) -> str:
    """Return the key of a job's line of resubmissions: the same user, name, working directory and start, whatever its files hold."""
    return content_hash(subject, f"line of {spec.tenant}/{spec.user}/{spec.name}/{spec.workdir}")


def _known(body: Mapping[str, Any]) -> Known:
    quoted = {one["field"]["file"]: one["sha256"] for one in body.get("suggested", {}).values()}
    return Known(body["names"], dict(body["read"]), quoted)


def _with(analysis: Analysis, suggested: Mapping[str, Any], quoted: frozenset[str]) -> Analysis:
    """Return an analysis with what a model said of fields that are still open, where the file that it quoted has not changed."""
    said = {
        name: WorkloadField.model_validate(one["field"])
        for name, one in suggested.items()
        if name not in analysis.fields and one["field"]["file"] in quoted
    }
    return replace(analysis, fields=analysis.fields | said) if said else analysis


def _analysis(body: Mapping[str, Any]) -> Analysis:
    fields = {name: WorkloadField.model_validate(f) for name, f in body["fields"].items()}
    return Analysis(fields, body["partial_because"])


def _body(analysis: Analysis, at: float) -> dict[str, Any]:
    return {
        "fields": {name: f.model_dump(mode="json") for name, f in analysis.fields.items()},
        "partial_because": analysis.partial_because,
        "at": at,
    }


def _redacted(one: WorkloadField) -> WorkloadField:
    if isinstance(one.value, str):
        return one.model_copy(update={"value": redact(one.value)})
    return one


def _text(why: str | None) -> str | None:
    return None if why is None else redact(why)[:500]
