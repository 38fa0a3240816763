"""The Python client of the API: synchronous, typed, small. The command line is built on it.

    with Client.from_environment() as client:
        job = client.submit({"name": "train", "command": ["python", "train.py"], "gpus": 2})
        for told in client.follow(job.job_id):
            print(told.text, end="")

Calls that may be repeated safely are repeated within `retry_s` while the server does not answer; a submit always bears an
Idempotency-Key, so it is one of them.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from opentelemetry import trace
from pydantic import BaseModel, ValidationError

from schedmate.infra.clock import SystemIds
from schedmate.infra.telemetry.tracing import current_traceparent
from schedmate.schemas.job import JobRequest
from schedmate.schemas.states import TERMINAL, JobState
from schedmate.services.ingest.access import host_of, is_loopback
from schedmate.services.ingest.models import (
    BundleAnswer,
    CancelAnswer,
    CommandAnswer,
    DeadLetterView,
    JobHistory,
    JobPage,
    JobView,
    LogPage,
    NodeList,
    NodeView,
    OrderAnswer,
    PoolView,
    ResendAnswer,
    ReservationAnswer,
    ReservationList,
    ReservationView,
    Why,
)
from schedmate.services.ingest.models import DeadLetterPage as _DeadLetterPage
from schedmate.services.ingest.problems import ProblemDetails

__all__ = ["ApiError", "Client", "ClientError", "Decision", "LogPart", "UnreachableError"]

DEFAULT_URL: Final = "http://127.0.0.1:8470"
API_VARIABLE: Final = "SCHEDMATE_API"
TOKEN_VARIABLE: Final = "SCHEDMATE_API_TOKEN"  # noqa: S105 - the variable's name
TOKEN_FILE_VARIABLE: Final = "SCHEDMATE_API_TOKEN_FILE"  # noqa: S105 - the variable's name
STATE_DIR_VARIABLE: Final = "SCHEDMATE_STATE_DIR"
_PAUSE_FIRST_S: Final = 0.2
_PAUSE_MAX_S: Final = 3.0
_SILENCE_MAX_S: Final = 60.0
_AGAIN: Final = frozenset({429, 503})

M = TypeVar("M", bound=BaseModel)


class ClientError(Exception):
    """Base of what the client raises; the message is one line that says what to do."""


class UnreachableError(ClientError):
    """The server did not answer."""


class ApiError(ClientError):
    """The server refused; `problem` is its RFC 9457 document."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.problem = problem

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status


@dataclass(frozen=True, slots=True)
class LogPart:
    """Output [offset, end) of an attempt, or a gap in it; the last part of all has a `state` and no text."""

    attempt: int | None
    offset: int
    end: int
    text: str = ""
    gap: bool = False
    state: JobState | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision as it was told: `kind` is its CloudEvents type, `fields` its JSON."""

    kind: str
    fields: Mapping[str, Any]


class Client:
    """One server's API. Safe to use from one thread at a time.

    `user` is whose jobs are submitted where they name nobody; without a token it is whoever runs this.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        user: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self._user = user if user is not None or token is not None else _local_user()
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._sleep = sleep
        self._monotonic = monotonic
        headers = {"Accept": "application/json, application/problem+json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, transport=transport)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the client that SCHEDMATE_API and SCHEDMATE_API_TOKEN name.

        Without a token, that of the token file is used where the server is on this machine and the file can be read.
        """
        url = environment.get(API_VARIABLE) or DEFAULT_URL
        if token := environment.get(TOKEN_VARIABLE):
            return cls(url, token=token)
        return cls(url, token=_token_of_file(url, environment), user=_local_user())

    def __enter__(self) -> Self:
        """Return the client; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def submit(
        self, job: JobRequest | Mapping[str, Any], *, bundle: Path | None = None, idempotency_key: str | None = None
    ) -> JobView:
        """Submit a job, with its source bundle if it has one; return it as it was accepted.

        The user is the one that the job names, else that of the client, else the token's subject.
        """
        body = job.model_dump(mode="json", exclude_none=True) if isinstance(job, JobRequest) else dict(job)
        if self._user is not None:
            body.setdefault("user", self._user)
        key = {"Idempotency-Key": idempotency_key or SystemIds().new()}
        if bundle is None:
            return self._call(JobView, "POST", "/v1/jobs", json=body, headers=key)
        part = (None, json.dumps(body), "application/json")
        with bundle.open("rb") as archive:
            files = {"job": part, "bundle": (bundle.name, archive, "application/octet-stream")}
            return self._call(JobView, "POST", "/v1/jobs", files=files, headers=key, before=lambda: archive.seek(0))

    def jobs(self, *, limit: int | None = None, **filters: Any) -> Iterator[JobView]:
        """Yield jobs, newest first. Filters: state (one or several), tenant, pool, user, name, unfinished."""
        asked = {name: value for name, value in filters.items() if value is not None}
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = {"limit": min(left, 500)} if left is not None else {}
            page = self._call(
                JobPage, "GET", "/v1/jobs", params={**asked, **size, **({"cursor": cursor} if cursor else {})}
            )
            yield from page.jobs
            left = None if left is None else left - len(page.jobs)
            cursor = page.next_cursor
            if cursor is None:
                return

    def job(self, job_id: str) -> JobView:
        """Return a job."""
        return self._call(JobView, "GET", f"/v1/jobs/{_part(job_id)}")

    def events(self, job_id: str) -> JobHistory:
        """Return what was decided about a job."""
        return self._call(JobHistory, "GET", f"/v1/jobs/{_part(job_id)}/events")

    def why(self, job_id: str) -> Why:
        """Return why a job stands where it stands."""
        return self._call(Why, "GET", f"/v1/jobs/{_part(job_id)}/why")

    def cancel(self, job_id: str, why: str = "") -> CancelAnswer:
        """Ask to cancel a job."""
        return self._call(CancelAnswer, "POST", f"/v1/jobs/{_part(job_id)}/cancel", json={"why": why})

    def order_estimate(
        self, job_id: str, p50_s: float, p10_s: float | None = None, p90_s: float | None = None, *, why: str = ""
    ) -> OrderAnswer:
        """Say how long a job runs, in place of every estimate. For operators."""
        told = {"p10_s": p10_s, "p50_s": p50_s, "p90_s": p90_s, "why": why}
        return self._call(OrderAnswer, "POST", f"/v1/jobs/{_part(job_id)}/estimate", json=told)

    def clear_estimate(self, job_id: str, *, why: str = "") -> OrderAnswer:
        """Let estimates count again. For operators."""
        return self._call(OrderAnswer, "POST", f"/v1/jobs/{_part(job_id)}/estimate", json={"clear": True, "why": why})

    def pin(self, job_id: str, place: str, why: str = "") -> OrderAnswer:
        """Put a job `first` or `last` in its priority class, or (`none`) back. For operators."""
        return self._call(OrderAnswer, "POST", f"/v1/jobs/{_part(job_id)}/pin", json={"place": place, "why": why})

    # --- output -------------------------------------------------------------------------------------------------------

    def log(
        self, job_id: str, *, attempt: int | None = None, member: int = 0, offset: int = 0, limit: int = 65536
    ) -> LogPage:
        """Return a piece of a member's output; a negative offset counts from the end."""
        asked: dict[str, Any] = {"member": member, "offset": offset, "limit": limit}
        if attempt is not None:
            asked["attempt"] = attempt
        return self._call(LogPage, "GET", f"/v1/jobs/{_part(job_id)}/log", params=asked)

    def follow(self, job_id: str, *, attempt: int | None = None, member: int = 0, offset: int = 0) -> Iterator[LogPart]:
        """Yield a member's output as it comes: all attempts until the job's end, or one attempt until its end.

        A broken connection is taken up again where it broke.

        Raises:
            UnreachableError: the server did not answer for `retry_s`.
        """
        asked, current = attempt, attempt
        while True:
            params: dict[str, Any] = {"member": member, "offset": offset}
            if current is not None:
                params["attempt"] = current
            for kind, told in self._events(f"/v1/jobs/{_part(job_id)}/log/follow", params):
                if kind == "attempt":
                    if current != told["attempt"]:
                        offset = 0 if current is not None else offset
                    current = int(told["attempt"])
                elif kind == "log":
                    offset = told["end"]
                    yield LogPart(current, told["offset"], offset, text=told["text"])
                elif kind == "gap":
                    offset = max(offset, told["end"])
                    yield LogPart(current, told["start"], told["end"], gap=True)
                elif kind == "end":
                    state = JobState(told["state"])
                    if asked is not None or state in TERMINAL:
                        yield LogPart(current, told["offset"], told["offset"], state=state)
                        return
                    current, offset = (current or 0) + 1, 0  # of one attempt only: it had been taken up again
            self._sleep(_PAUSE_FIRST_S)

    def decisions(self, *, pool: str | None = None, job_id: str | None = None) -> Iterator[Decision]:
        """Yield decisions as they are made, from now on; what is made while the connection is down is missed."""
        asked = {name: value for name, value in (("pool", pool), ("job_id", job_id)) if value is not None}
        while True:
            for kind, told in self._events("/v1/events", asked):
                if kind == "overrun":
                    raise UnreachableError(str(told["detail"]))
                if kind != "ready":
                    yield Decision(kind, told)
            self._sleep(_PAUSE_FIRST_S)

    # --- nodes and pools ----------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeView]:
        """Return all nodes."""
        return self._call(NodeList, "GET", "/v1/nodes").nodes

    def pool(self, pool: str = "default") -> PoolView:
        """Return a pool at a glance."""
        return self._call(PoolView, "GET", f"/v1/pools/{_part(pool)}")

    def command_node(self, node: str, command: str, why: str = "") -> CommandAnswer:
        """Ask for `drain`, `undrain`, `cordon` or `declare-dead`; needs the scope operate. Repeating it does no harm."""
        return self._call(CommandAnswer, "POST", f"/v1/nodes/{_part(node)}/{_part(command)}", json={"why": why})

    def reserve(
        self,
        pool: str,
        *,
        end_at: float,
        start_at: float | None = None,
        nodes: Sequence[str] = (),
        count: int = 0,
        why: str = "",
    ) -> ReservationAnswer:
        """Ask that nodes be free for maintenance, those named or so many, times in Unix seconds; needs the scope operate."""
        body = {"nodes": list(nodes), "count": count, "start_at": start_at, "end_at": end_at, "why": why}
        return self._call(ReservationAnswer, "POST", f"/v1/pools/{_part(pool)}/reservations", json=body)

    def reservations(self, pool: str = "default") -> list[ReservationView]:
        """Return the reservations of a pool that have not ended, in the order of their beginnings."""
        return self._call(ReservationList, "GET", f"/v1/pools/{_part(pool)}/reservations").reservations

    def withdraw_reservation(self, pool: str, reservation_id: str, why: str = "") -> ReservationAnswer:
        """Take a reservation back; needs the scope operate."""
        path = f"/v1/pools/{_part(pool)}/reservations/{_part(reservation_id)}/withdraw"
        return self._call(ReservationAnswer, "POST", path, json={"why": why})

    # --- bundles and dead letters -------------------------------------------------------------------------------------

    def put_bundle(self, sha256: str, archive: Path) -> BundleAnswer:
        """Upload a source bundle under its hash."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(archive.stat().st_size)}
        with archive.open("rb") as content:
            return self._call(
                BundleAnswer,
                "PUT",
                f"/v1/bundles/{_part(sha256)}",
                content=content,
                headers=headers,
                before=lambda: content.seek(0),
            )

    def get_bundle(self, sha256: str, target: Path) -> None:
        """Fetch a source bundle into a file; the caller checks its hash."""
        answer = self._answering(lambda: self._stream("GET", f"/v1/bundles/{_part(sha256)}"))
        with contextlib.closing(answer), target.open("wb") as file:
            for chunk in answer.iter_bytes():
                file.write(chunk)

    def dead_letters(self, *, limit: int = 200) -> list[DeadLetterView]:
        """Return the newest dead letters; needs the scope operate."""
        return self._call(_DeadLetterPage, "GET", "/v1/dead-letters", params={"limit": limit}).dead_letters

    def resend(self, letter_id: str) -> ResendAnswer:
        """Send a dead letter back; needs the scope operate."""
        return self._call(ResendAnswer, "POST", f"/v1/dead-letters/{_part(letter_id)}/resend")

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(
        self,
        model: type[M],
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        before: Callable[[], object] | None = None,
        **request: Any,
    ) -> M:
        """Return the answer to a call, which is made again while the server does not answer."""

        def send() -> httpx.Response:
            if before is not None:
                before()
            return self._http.request(method, path, headers={**_trace(), **(headers or {})}, **request)

        answer = self._answering(send)
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            raise ClientError(f"{self.url} answers {path} with something else; is SCHEDMATE_API right?") from error

    def _stream(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> httpx.Response:
        timeout = httpx.Timeout(self._timeout_s, read=_SILENCE_MAX_S)
        asking = self._http.build_request(method, path, params=params, headers=_trace(), timeout=timeout)
        return self._http.send(asking, stream=True)

    def _answering(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Return an answer that is no refusal; ask again while there is none, within `retry_s`."""
        give_up_at = self._monotonic() + self._retry_s
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                answer = send()
                if answer.is_success:
                    return answer
                answer.read()
                error: ClientError = _refusal(answer)
                wait_s = (
                    max(pause_s, _seconds(answer.headers.get("Retry-After"))) if answer.status_code in _AGAIN else None
                )
                cause: Exception | None = None
            except httpx.TransportError as failed:
                error = UnreachableError(
                    f"{self.url} does not answer ({type(failed).__name__}); start it, or set {API_VARIABLE}"
                )
                wait_s, cause = pause_s, failed
            if wait_s is None or self._monotonic() + wait_s > give_up_at:
                raise error from cause
            self._sleep(wait_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _events(self, path: str, params: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield server-sent events until the stream ends or breaks."""
        answer = self._answering(lambda: self._stream("GET", path, params))
        try:
            kind = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))
        except httpx.TransportError:
            return  # taken up again by the caller, within its budget
        finally:
            answer.close()


def _part(text: str) -> str:
    return quote(text, safe="")


def _trace() -> dict[str, str]:
    """Return the trace to go on with, where a span is recorded here; otherwise the server's span is the root."""
    return {"traceparent": current_traceparent()} if trace.get_current_span().is_recording() else {}


def _refusal(answer: httpx.Response) -> ClientError:
    try:
        return ApiError(ProblemDetails.model_validate_json(answer.content))
    except ValidationError:
        return ClientError(f"{answer.request.url} answers {answer.status_code}; is {API_VARIABLE} right?")


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdigit() else 0.0


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "local"


def _token_of_file(url: str, environment: Mapping[str, str]) -> str | None:
    if not is_loopback(host_of(httpx.URL(url).netloc.decode())):
        return None
    written = environment.get(TOKEN_FILE_VARIABLE)
    path = Path(written) if written else Path(environment.get(STATE_DIR_VARIABLE) or ".schedmate") / "api-token"
    try:
        return path.read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
