"""The read model in the store: many events at once, one compare-and-set a document.

Any number of instances may apply the same events at the same time: each document is read, folded and replaced at the
version that was read, and again when another was faster.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final, cast

import structlog

from schedmate.infra.clock import Clock, Random
from schedmate.infra.store.port import Document, DuplicateKeyError, Store, StoreUnavailableError, scan_all
from schedmate.schemas.events import DeadLettered, Event
from schedmate.schemas.wire import Envelope
from schedmate.services.ingest import submission
from schedmate.services.ingest.node_projection import dead_letter, dead_letter_id, fold_node, node_of
from schedmate.services.ingest.projection import View, fold, has_ended, is_known, job_of, restored

VIEWS: Final = "views"
NODE_VIEWS: Final = "node_views"
DEAD_LETTERS: Final = "dead_letters"
JOBS: Final = "jobs"
OFFSETS: Final = "view_offsets"
GENERATION_ID: Final = "generation"
LAST_ID: Final = "\U0010ffff"

_ROUNDS_MAX: Final = 20
_WRITES_AT_ONCE: Final = 16
_BATCH_LEN_MAX: Final = 1000
_REBUILD_PAGE: Final = 200

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_Fold = Callable[[View | None, str, Envelope[Event]], View]


class ReadModel:
    """Applies events to the documents behind the API."""

    def __init__(self, store: Store, clock: Clock, random: Random) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._writes = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def apply(self, envelopes: Sequence[Envelope[Event]]) -> None:
        """Fold events into their documents, in the order given for each document.

        Raises:
            StoreError: the store did not answer; what was applied stays, and applying again changes nothing.
        """
        jobs: dict[str, list[Envelope[Event]]] = defaultdict(list)
        nodes: dict[str, list[Envelope[Event]]] = defaultdict(list)
        letters: dict[str, Envelope[DeadLettered]] = {}
        for envelope in envelopes:
            if (job_id := job_of(envelope.event)) is not None:
                jobs[job_id].append(envelope)
            if (node := node_of(envelope.event)) is not None:
                nodes[node].append(envelope)
            if isinstance(envelope.event, DeadLettered):
                letter = cast("Envelope[DeadLettered]", envelope)
                letters[dead_letter_id(letter)] = letter
        await self._fold_into(VIEWS, jobs, fold)
        await self._fold_into(NODE_VIEWS, nodes, fold_node)
        for letter_id, letter in letters.items():
            await self._insert(DEAD_LETTERS, letter_id, dead_letter(letter))

    async def _fold_into(self, collection: str, todo: Mapping[str, list[Envelope[Event]]], folding: _Fold) -> None:
        for turn in range(_ROUNDS_MAX):
            if not todo:
                return
            if turn:
                await self._clock.sleep(self._random.uniform(0, 0.01 * min(turn, 10)))
            known = await self._store.get_many(collection, list(todo))
            missing = [doc_id for doc_id in todo if doc_id not in known] if collection == VIEWS else []
            restored = await self._restored(missing)
            writes: list[tuple[str, View, int | None]] = []
            for doc_id, envelopes in todo.items():
                document = known.get(doc_id)
                before: View | None = document.body if document is not None else None
                after = restored.get(doc_id, before)
                for envelope in envelopes:
                    after = folding(after, doc_id, envelope)
                if after is not None and after is not before:
                    writes.append((doc_id, after, document.version if document is not None else None))
            lost = await asyncio.gather(*(self._write(collection, *write) for write in writes))
            todo = {doc_id: todo[doc_id] for doc_id in lost if doc_id is not None}
        raise StoreUnavailableError(f"{len(todo)} documents of {collection} changed faster than they could be written")

    async def _restored(self, job_ids: Sequence[str]) -> dict[str, View]:
        """Return what the job documents say of jobs that have no view yet: a view need not wait for a topic."""
        documents = await self._store.get_many(JOBS, job_ids) if job_ids else {}
        return {job_id: _restored(document) for job_id, document in documents.items()}

    async def _write(self, collection: str, doc_id: str, body: View, version: int | None) -> str | None:
        """Write a document; return its id when another instance was faster."""
        async with self._writes:
            if collection == VIEWS and has_ended(body):
                await self._keep_outcome(doc_id, body)
            if version is None:
                return None if await self._insert(collection, doc_id, body) else doc_id
            return None if await self._store.replace(collection, doc_id, body, version=version) else doc_id

    async def _keep_outcome(self, job_id: str, view: View) -> None:
        """Keep an ended job's decisions with its document, before the view says so: the topic forgets them."""
        for _ in range(_ROUNDS_MAX):
            document = await self._store.get(JOBS, job_id)
            if document is None or document.body.get("decisions") == view["history"]:
                return
            body = submission.with_outcome(document.body, view["history"])
            if await self._store.replace(JOBS, job_id, body, version=document.version):
                return
        raise StoreUnavailableError(f"the document of job {job_id} changed faster than it could be written")

    async def _insert(self, collection: str, doc_id: str, body: View) -> bool:
        try:
            await self._store.insert(collection, doc_id, body)
        except DuplicateKeyError:
            return False  # somebody's, perhaps our own after a retry: the next round reads it
        return True

    # --- dropping and rebuilding --------------------------------------------------------------------------------------

    async def generation(self) -> int:
        """Return which building of the read model this is: the consumer group's name carries it."""
        document = await self._store.get(OFFSETS, GENERATION_ID)
        return int(document.body["generation"]) if document is not None else 1

    async def rebuild(self) -> int:
        """Drop the read model and begin a new generation, whose group reads every topic from the beginning.

        Job documents are folded first, so that a job whose event has left its topic is still there. Events that reach the
        new documents before they are read again change nothing when they come again. Log chunks stay as they are.
        """
        generation = await self.generation() + 1
        for collection in (VIEWS, NODE_VIEWS, DEAD_LETTERS):
            await self._store.drop(collection)
        await self._store.put(OFFSETS, GENERATION_ID, {"generation": generation, "begun_at": self._clock.now()})
        jobs = await self.fold_job_documents()
        log.info("the read model is rebuilt", action="ingest.rebuild", generation=generation, jobs=jobs)
        return generation

    async def fold_job_documents(self) -> int:
        """Make a view of every job document that has none; return how many documents there are."""
        count = 0
        page: dict[str, View] = {}
        async for document in scan_all(self._store, JOBS, low="", high=LAST_ID, page=_REBUILD_PAGE):
            count += 1
            page[document.id] = _restored(document)
            if len(page) == _REBUILD_PAGE:
                await self._insert_all(page)
                page = {}
        await self._insert_all(page)
        return count

    async def _insert_all(self, views: Mapping[str, View]) -> None:
        """Insert views; one that is there already was folded by somebody who had read the job document too."""
        known = await self._store.get_many(VIEWS, list(views))
        await asyncio.gather(
            *(self._insert(VIEWS, job_id, view) for job_id, view in views.items() if job_id not in known)
        )

    async def view(self, job_id: str) -> View | None:
        """Return a job's document, made from the job document while no event has been folded yet; None when unknown."""
        document = await self._store.get(VIEWS, job_id)
        if document is not None and is_known(document.body):
            return document.body
        job = await self._store.get(JOBS, job_id)
        return _restored(job) if job is not None else None


def _restored(document: Document) -> View:
    event = submission.submitted_event(document.id, document.body)
    return restored(document.id, event, document.body.get("decisions", ()))


@dataclass(slots=True, eq=False)
class _Waiting:
    envelope: Envelope[Event]
    done: asyncio.Future[None]


class Coalescer:
    """Gathers what concurrent handlers bring while a write is under way, and applies it in one go.

    There is no timer: the first event is applied at once, whatever arrives meanwhile goes with the next write.
    """

    def __init__(self, apply: Callable[[Sequence[Envelope[Event]]], Awaitable[None]]) -> None:
        self._apply = apply
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task[None] | None = None
        self._context = copy_context()  # what many events share is no part of one event's trace

    async def add(self, envelope: Envelope[Event]) -> None:
        """Return when the event has been applied.

        Raises:
            Exception: whatever applying it (with those beside it) raised; it may be added again.
        """
        waiting = _Waiting(envelope, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work(), context=self._context)
        await waiting.done

    async def _work(self) -> None:
        await asyncio.sleep(0)  # let the handlers that are ready now bring theirs
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH_LEN_MAX], self._waiting[_BATCH_LEN_MAX:]
            batch = [w for w in batch if not w.done.done()]
            error = await self._try([w.envelope for w in batch])
            if error is not None and len(batch) > 1 and not isinstance(error, StoreUnavailableError):
                for waiting in batch:  # one of them is poison: find out which
                    self._settle(waiting, await self._try([waiting.envelope]))
            else:
                for waiting in batch:
                    self._settle(waiting, error)

    async def _try(self, envelopes: Sequence[Envelope[Event]]) -> Exception | None:
        try:
            await self._apply(envelopes)
        except Exception as error:  # noqa: BLE001 - handed to whoever brought the event
            return error
        return None

    @staticmethod
    def _settle(waiting: _Waiting, error: Exception | None) -> None:
        if waiting.done.done():
            return
        if error is None:
            waiting.done.set_result(None)
        else:
            waiting.done.set_exception(error)
