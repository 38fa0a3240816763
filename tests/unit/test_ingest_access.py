"""Who may do what: tokens, tenants, scopes, hosts, rates."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from schedmate.infra.clock import VirtualClock
from schedmate.infra.health import StartError
from schedmate.infra.store.memory import MemoryStore
from schedmate.schemas.events import CallAudited
from schedmate.schemas.states import JobState
from schedmate.schemas.topology import topology
from schedmate.services.ingest.access import Scope, is_loopback, is_our_host, is_our_origin
from schedmate.services.ingest.limits import RateLimiter
from schedmate.services.ingest.tokens import create_token, find_token, list_tokens, revoke_token
from tests.ingesting import JOB, chunk, decided, ingesting, reported, started, submitted

JOB_ID = "11111111-1111-5111-8111-111111111111"


# --- tokens -----------------------------------------------------------------------------------------------------------


async def token_store() -> MemoryStore:
    store = MemoryStore()
    await store.setup(topology().collections.values())
    return store


async def test_a_token_is_kept_as_a_hash_and_found_by_its_text_alone() -> None:
    store = await token_store()
    made = await create_token(store, VirtualClock(), tenant="red", subject="ann", scopes=[Scope.READ])
    [kept] = await list_tokens(store)
    document = await store.get("tokens", kept.id)
    assert document is not None
    assert made.text not in repr(document)
    assert await find_token(store, made.text) == kept
    for wrong in ("", "smt_", made.text[:-1], made.text + "x", made.text.swapcase(), "smt_" + "x" * 500, "smt_ü"):
        assert await find_token(store, wrong) is None


async def test_a_revoked_token_is_none() -> None:
    store = await token_store()
    made = await create_token(store, VirtualClock(), tenant="red", subject="ann", scopes=[Scope.READ])
    assert await revoke_token(store, made.token.id)
    assert not await revoke_token(store, made.token.id)
    assert await find_token(store, made.text) is None


async def test_no_two_tokens_are_alike() -> None:
    store = await token_store()
    made = [await create_token(store, VirtualClock(), tenant="t", subject="s", scopes=[]) for _ in range(50)]
    assert len({token.text for token in made}) == 50
    assert all(len(token.text) == len("smt_") + 43 for token in made)


async def test_a_revoked_token_stops_working_within_the_caches_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with ingesting(tmp_path, api_tokens_required=True, token_cache_s=5, clock=clock) as under_test:
        made = await create_token(under_test.store, clock, tenant="red", subject="ann", scopes=[Scope.READ])
        headers = {"authorization": f"Bearer {made.text}"}
        assert (await under_test.http.get("/v1/nodes", headers=headers)).status_code == 200
        await revoke_token(under_test.store, made.token.id)
        clock.advance(5.1)
        assert (await under_test.http.get("/v1/nodes", headers=headers)).status_code == 401


# --- tenants and scopes -----------------------------------------------------------------------------------------------

CALLS = [
    ("GET", "/v1/jobs", {Scope.READ}),
    ("POST", "/v1/jobs", {Scope.SUBMIT}),
    ("GET", f"/v1/jobs/{JOB_ID}", {Scope.READ}),
    ("GET", f"/v1/jobs/{JOB_ID}/log", {Scope.READ}),
    ("GET", f"/v1/jobs/{JOB_ID}/why", {Scope.READ}),
    ("GET", f"/v1/jobs/{JOB_ID}/events", {Scope.READ}),
    ("POST", f"/v1/jobs/{JOB_ID}/cancel", {Scope.SUBMIT}),
    ("GET", "/v1/nodes", {Scope.READ}),
    ("GET", "/v1/pools/default", {Scope.READ}),
    ("POST", "/v1/nodes/n1/drain", {Scope.OPERATE}),
    ("POST", "/v1/nodes/n1/declare-dead", {Scope.OPERATE}),
    ("GET", "/v1/pools/default/reservations", {Scope.READ}),
    ("POST", "/v1/pools/default/reservations", {Scope.OPERATE}),
    ("POST", "/v1/pools/default/reservations/r1/withdraw", {Scope.OPERATE}),
    ("GET", "/v1/dead-letters", {Scope.OPERATE}),
    ("POST", "/v1/dead-letters/x/resend", {Scope.OPERATE}),
    ("GET", f"/v1/bundles/{'0' * 64}", {Scope.READ, Scope.SUBMIT, Scope.BUNDLES}),
    ("PUT", f"/v1/bundles/{'0' * 64}", {Scope.SUBMIT}),
]


@pytest.mark.parametrize(("method", "path", "scopes"), CALLS)
async def test_each_call_needs_a_token_with_its_scope(
    tmp_path: Path, method: str, path: str, scopes: set[Scope]
) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        await under_test.fold(
            submitted(JOB_ID, tenant="red"), decided(JOB_ID, JobState.ASSIGNED, 1), started(JOB_ID), reported()
        )
        none = await under_test.http.request(method, path)
        assert none.status_code == 401
        assert none.headers["www-authenticate"].startswith("Bearer")
        bad = await under_test.http.request(method, path, headers={"authorization": "Bearer smt_" + "a" * 43})
        assert bad.status_code == 401
        for scope in Scope:
            headers = await under_test.token("red", scope)
            answer = await under_test.http.request(method, path, headers=headers)
            assert (answer.status_code == 403) == (scope not in scopes), (scope, answer.text)
            assert answer.status_code != 401


async def test_another_tenants_job_is_not_there(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        await under_test.fold(submitted(JOB_ID, tenant="red"), decided(JOB_ID, JobState.ASSIGNED, 1), started(JOB_ID))
        await under_test.context.logs.add(chunk(JOB_ID, 0, b"secret"))
        red = await under_test.token("red", Scope.READ, Scope.SUBMIT)
        blue = await under_test.token("blue", Scope.READ, Scope.SUBMIT)
        operator = await under_test.token("ops", Scope.READ, Scope.SUBMIT, Scope.OPERATE)
        for path in ("", "/log", "/log/follow", "/why", "/events"):
            url = f"/v1/jobs/{JOB_ID}{path}"
            unknown = f"/v1/jobs/{JOB_ID.replace('1', '9')}{path}"
            stranger = await under_test.http.get(url, headers=blue)
            nothing = await under_test.http.get(unknown, headers=blue)
            assert stranger.status_code == nothing.status_code == 404
            assert stranger.json()["detail"] == nothing.json()["detail"]  # the two look the same
        assert (await under_test.http.post(f"/v1/jobs/{JOB_ID}/cancel", headers=blue)).status_code == 404
        assert under_test.published("schedmate.commands") == []
        for headers, count in ((red, 1), (blue, 0), (operator, 1)):
            listed = (await under_test.http.get("/v1/jobs", headers=headers)).json()["jobs"]
            assert len(listed) == count
        forced = (await under_test.http.get("/v1/jobs", params={"tenant": "red"}, headers=blue)).json()["jobs"]
        assert forced == []
        assert (await under_test.http.get(f"/v1/jobs/{JOB_ID}", headers=operator)).status_code == 200


async def test_a_job_belongs_to_the_tokens_tenant(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        red = await under_test.token("red", Scope.SUBMIT, subject="ann")
        operator = await under_test.token("ops", Scope.SUBMIT, Scope.OPERATE)
        mine = await under_test.http.post("/v1/jobs", json=JOB, headers=red)
        assert (mine.json()["tenant"], mine.json()["user"]) == ("red", "ann")
        theirs = await under_test.http.post("/v1/jobs", json={**JOB, "tenant": "blue"}, headers=red)
        assert theirs.status_code == 403
        assert "tenant red" in theirs.json()["detail"]
        for_them = await under_test.http.post("/v1/jobs", json={**JOB, "tenant": "blue"}, headers=operator)
        assert for_them.json()["tenant"] == "blue"


async def test_the_same_key_of_two_tenants_is_two_jobs(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        made = set()
        for tenant in ("red", "blue"):
            headers = await under_test.token(tenant, Scope.SUBMIT) | {"Idempotency-Key": "k"}
            made.add((await under_test.http.post("/v1/jobs", json=JOB, headers=headers)).json()["job_id"])
        assert len(made) == 2


async def test_the_pool_is_the_requests_then_the_tenants_then_the_default(tmp_path: Path) -> None:
    async with ingesting(tmp_path, default_pool="common") as under_test:
        await under_test.store.put("tenants", "red", {"pool": "red-pool"})
        assert (await under_test.submit(tenant="red", pool="special"))["pool"] == "special"
        assert (await under_test.submit(tenant="red"))["pool"] == "red-pool"
        assert (await under_test.submit())["pool"] == "common"


async def test_refused_operators_calls_are_audited(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        await under_test.fold(reported())
        red = await under_test.token("red", Scope.READ, Scope.SUBMIT, subject="mallory")
        assert (await under_test.http.post("/v1/nodes/n1/declare-dead", headers=red)).status_code == 403
        [audited] = [one.event for one in under_test.published("schedmate.audit")]
        assert isinstance(audited, CallAudited)
        assert (audited.principal, audited.call, audited.target, audited.outcome) == (
            "mallory",
            "declare-dead",
            "node/n1",
            "refused",
        )
        assert under_test.published("schedmate.commands") == []


# --- hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8470", True), ("localhost", True), ("LOCALHOST:1", True), ("[::1]:8470", True), ("127.9.9.9", True),
        ("evil.example:8470", False), ("127.0.0.1.evil.example", False), ("", False), (None, False), ("10.0.0.1", False),
        ("gpu-box:8470", True),
    ],
)  # fmt: skip
def test_only_this_machines_names_are_served(host: str | None, ours: bool) -> None:
    assert is_our_host(host, ["gpu-box"]) is ours


@pytest.mark.parametrize(
    ("origin", "ours"),
    [
        (None, True), ("http://localhost:3000", True), ("http://127.0.0.1", True), ("http://[::1]:9", True),
        ("https://evil.example", False), ("null", False), ("http://127.0.0.1.evil.example", False), ("http://[", False),
    ],
)  # fmt: skip
def test_no_page_of_elsewhere_is_served(origin: str | None, ours: bool) -> None:
    assert is_our_origin(origin, []) is ours


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("10.1.2.3", False)],
)
def test_what_is_the_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_a_page_that_rebinds_its_name_or_posts_a_form_is_refused(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as under_test:
        rebound = await under_test.http.get("/v1/jobs", headers={"host": "evil.example:8470"})
        posted = await under_test.http.post("/v1/jobs", json=JOB, headers={"origin": "https://evil.example"})
        assert rebound.status_code == posted.status_code == 400
        assert rebound.json()["type"] == "urn:schedmate:problem:wrong-host"
        assert under_test.published("schedmate.jobs") == []
        assert (await under_test.http.get("/openapi.json", headers={"host": "evil.example"})).status_code == 400


# --- where it listens -------------------------------------------------------------------------------------------------


@pytest.mark.localhost
async def test_an_open_address_without_tokens_refuses_to_start(tmp_path: Path) -> None:
    async with ingesting(tmp_path, api_host="0.0.0.0") as under_test:
        with pytest.raises(StartError, match="there are no tokens"):
            await under_test.ingest.start()
        await under_test.token("red", Scope.READ)
        await under_test.ingest.start()
        assert (await under_test.http.get("/v1/jobs")).status_code == 401


@pytest.mark.localhost
async def test_on_the_loopback_a_private_token_file_is_made_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "api-token"
    async with ingesting(tmp_path, api_tokens_required=True) as under_test:
        await under_test.ingest.start()
        text = path.read_text().strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        operator = {"authorization": f"Bearer {text}"}
        assert (await under_test.http.get("/v1/dead-letters", headers=operator)).status_code == 200
    async with ingesting(
        tmp_path, api_tokens_required=True
    ) as under_test:  # another store: the file's token holds there too
        await under_test.ingest.start()
        assert path.read_text().strip() == text
        assert (await under_test.http.get("/v1/dead-letters", headers=operator)).status_code == 200


@pytest.mark.localhost
async def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "api-token").write_text("smt_" + "a" * 43)
    (tmp_path / "api-token").chmod(0o644)
    async with ingesting(tmp_path) as under_test:
        with pytest.raises(StartError, match="only its owner"):
            await under_test.ingest.start()


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    limiter = RateLimiter(rate_per_s=2, burst=3)
    assert [limiter.take("t", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.take("t", 0.25) == pytest.approx(0.25)
    assert limiter.take("t", 0.5) == 0
    assert limiter.take("other", 0.5) == 0
    assert [limiter.take("t", 1000.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_limiter_remembers_boundedly_many_keys() -> None:
    limiter = RateLimiter(rate_per_s=1, burst=1, keys_max=10)
    for n in range(100):
        assert limiter.take(str(n), 0.0) == 0
    assert len(limiter._buckets) == 10
    assert limiter.take("99", 0.0) > 0


async def test_a_tenant_beyond_its_rate_is_told_when_to_come_back_and_holds_up_no_other(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with ingesting(tmp_path, api_tokens_required=True, rate_per_s=1, rate_burst=2, clock=clock) as under_test:
        red = await under_test.token("red", Scope.READ)
        blue = await under_test.token("blue", Scope.READ)
        statuses = [(await under_test.http.get("/v1/nodes", headers=red)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = await under_test.http.get("/v1/nodes", headers=red)
        assert refused.headers["retry-after"] == "1"
        assert (await under_test.http.get("/v1/nodes", headers=blue)).status_code == 200
        clock.advance(1.0)
        assert (await under_test.http.get("/v1/nodes", headers=red)).status_code == 200


async def test_who_guesses_tokens_is_slowed_down(tmp_path: Path) -> None:
    async with ingesting(
        tmp_path, api_tokens_required=True, rate_per_s=0.1, rate_burst=3, clock=VirtualClock()
    ) as under_test:
        guesses = [
            (await under_test.http.get("/v1/nodes", headers={"authorization": f"Bearer smt_{n}"})).status_code
            for n in range(5)
        ]
        assert guesses == [401, 401, 401, 429, 429]


def test_a_limiter_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="rate above 0"):
        RateLimiter(0, 1)
