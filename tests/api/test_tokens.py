"""API tokens: lookup by hash, scopes, expiry, and browser sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.tokens.model import ApiToken
from holdfast.server import sessions as tokens
from holdfast.server.app import close_background, make_service
from holdfast.server.sessions import COOKIE, Tokens, tokens_of
from holdfast.stores.flow import Flow
from tests.api.conftest import HERE
from tests.support.stores import forward
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-14")

HTML = {"Accept": "text/html"}
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


@asynccontextmanager
async def service_of(
    app: App, authenticate: Tokens | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    session_of(app).make_ready()
    service = make_service(app, authenticate=authenticate or tokens_of(app, remember=0))
    transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url=HERE, headers=headers) as client:
            yield client
    finally:
        await session_of(app).store.leave_loop()


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.mark.slow
async def test_token_grants_its_scopes_until_it_expires(app: App) -> None:
    issued = await app.tokens.aissue("ci", roles=["admin"], expires="1h")
    narrow = await app.tokens.aissue("narrow", roles=["admin"], scopes=["read"])
    assert issued.text not in repr(issued)
    async with service_of(app) as http:
        listed = await http.get("/api/v1/tokens", headers=bearer(issued.text))
        assert [token["name"] for token in listed.json()["items"]] == ["narrow", "ci"]
        assert issued.text not in listed.text
        assert "hash" not in listed.text
        refused = await http.get("/api/v1/tokens", headers=bearer(narrow.text))
        assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
        for text in (issued.text[:-1] + "x", issued.text.lower(), "", "hf_", "x" * 5000, narrow.token.id):
            rejected = await http.get("/api/v1/tokens", headers=bearer(text))
            assert (rejected.status_code, rejected.json()["code"]) == (401, "unauthenticated"), text
        assert (await http.get("/api/v1/tokens", headers={"Authorization": f"Basic {issued.text}"})).status_code == 401
        assert (await http.get("/api/v1/tokens", headers={"Cookie": f"{COOKIE}={issued.text}"})).status_code == 401

        def used() -> bool:
            return any(token.last_used_at is not None for token in app.tokens.list())

        await asyncio.to_thread(until, used, "the use is recorded")
        await asyncio.to_thread(forward, session_of(app).store, 7200)
        assert (await http.get("/api/v1/tokens", headers=bearer(issued.text))).status_code == 401


@pytest.mark.slow
async def test_revoked_token_is_rejected_and_revocation_is_audited(app: App) -> None:
    first = await app.tokens.aissue("first", roles=["admin"])
    async with service_of(app) as http:
        made = await http.post(
            "/api/v1/tokens", headers=bearer(first.text), json={"name": "second", "roles": ["admin"], "expires": 60}
        )
        assert made.status_code == 201
        assert made.json()["token"]["created_by"] == "first"
        second = made.json()["text"]
        gone = await http.delete(f"/api/v1/tokens/{first.token.id}", headers=bearer(second))
        assert (gone.status_code, gone.json()["revoked_by"]) == (200, "second")
        assert (await http.get("/api/v1/tokens", headers=bearer(first.text))).status_code == 401
        again = await http.delete(f"/api/v1/tokens/{first.token.id}", headers=bearer(second))
        assert again.json()["revoked_at"] == gone.json()["revoked_at"]
        missing = await http.delete("/api/v1/tokens/0198c5b4-0000-7000-8000-000000000001", headers=bearer(second))
        assert (missing.status_code, missing.json()["code"]) == (404, "token_not_found")
    trail = [(a.actor, a.type) for a in await asyncio.to_thread(app.audit.actions) if a.subject == "token"]
    assert sorted(trail) == [("first", "add"), ("second", "revoke"), ("tester", "add")]


@pytest.mark.slow
async def test_issued_token_cannot_exceed_issuers_scopes(app: App) -> None:
    narrow = await app.tokens.aissue("keys", roles=["admin"], scopes=["admin", "read"])
    async with service_of(app, headers=bearer(narrow.text)) as http:
        wide = await http.post("/api/v1/tokens", json={"name": "wide", "roles": ["operator"]})
        assert (wide.status_code, wide.json()["code"]) == (403, "missing_scope")
        for body in (
            {"name": "x", "roles": []},
            {"name": "x", "roles": ["root"]},
            {"name": "*", "roles": ["viewer"]},
            {"name": "x", "roles": ["executor"], "scopes": ["read"]},
            {"name": "x", "roles": ["viewer"], "expires": 0},
            {"name": "x", "roles": ["viewer"], "expires": 1, "tenant": "acme"},
        ):
            refused = await http.post("/api/v1/tokens", json=body)
            assert refused.status_code == 422, (body, refused.text)
        made = await http.post("/api/v1/tokens", json={"name": "eyes", "roles": ["viewer"]})
        assert made.status_code == 201


@pytest.mark.slow
async def test_tenant_comes_from_the_token_alone(app: App) -> None:
    acme = await app.tokens.aissue("acme's", roles=["admin"], tenant="acme")
    whole = await app.tokens.aissue("ops", roles=["admin"], every_tenant=True)
    async with service_of(app) as http:
        own = await http.get("/api/v1/tokens", headers=bearer(acme.text) | {"Holdfast-Tenant": "default"})
        assert [token["name"] for token in own.json()["items"]] == ["acme's"]
        every = await http.get("/api/v1/tokens", headers=bearer(whole.text))
        assert {token["name"] for token in every.json()["items"]} == {"acme's", "ops"}
        one = await http.get("/api/v1/tokens", headers=bearer(whole.text) | {"Holdfast-Tenant": "acme"})
        assert [token["name"] for token in one.json()["items"]] == ["acme's"]
        none = await http.get("/api/v1/tokens", headers=bearer(whole.text) | {"Holdfast-Tenant": " "})
        assert (none.status_code, none.json()["code"]) == (422, "invalid_name")


async def test_browser_logs_in_with_a_token_and_out_again(app: App) -> None:
    issued = await app.tokens.aissue("ada", roles=["viewer"])
    async with service_of(app, headers=OWN_PAGE) as http:
        sent = await http.get("/", headers=HTML)
        assert (sent.status_code, sent.headers["location"]) == (303, "/login")
        page = await http.get("/login?next=/?a=1", headers=HTML)
        assert page.status_code == 200
        assert 'value="/?a=1"' in page.text
        wrong = await http.post("/login", data={"token": issued.text[:-1]})
        assert wrong.status_code == 401
        assert issued.text[:-1] not in wrong.text
        other_site = await http.post("/login", data={"token": issued.text}, headers={"Sec-Fetch-Site": "cross-site"})
        assert other_site.status_code == 403
        done = await http.post("/login", data={"token": issued.text, "next": "//evil.example/"})
        assert (done.status_code, done.headers["location"]) == (303, "/")
        cookie = done.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Secure" not in cookie
        assert issued.text not in cookie
        assert (await http.get("/", headers=HTML)).status_code == 200
        as_bearer = await http.get("/", headers=bearer(http.cookies[COOKIE]))
        assert as_bearer.status_code == 401, "a session is accepted only as a cookie"
        forged = await http.post("/logout", headers={"Sec-Fetch-Site": "cross-site"})
        assert forged.status_code == 403
        old_session = http.cookies[COOKIE]
        assert (await http.post("/logout")).status_code == 303
        assert COOKIE not in http.cookies
        assert (await http.get("/", headers={**HTML, "Cookie": f"{COOKIE}={old_session}"})).status_code == 303


async def test_session_ends_when_its_token_is_revoked(app: App) -> None:
    issued = await app.tokens.aissue("ada", roles=["viewer"])
    sessions = tokens_of(app, remember=0)
    session_of(app).make_ready()
    session = await sessions.open(issued.text)
    assert session is not None
    async with service_of(app, sessions, headers={"Cookie": f"{COOKIE}={session}"}) as http:
        assert (await http.get("/", headers=HTML)).status_code == 200
        await app.tokens.arevoke(issued.token.id)
        assert (await http.get("/", headers=HTML)).status_code == 303
    assert await sessions.open(issued.text) is None
    shown: list[ApiToken] = await app.tokens.alist(sessions=True)
    assert [token.revoked_by for token in shown] == ["tester", "tester"]


@pytest.mark.slow
async def test_token_lookup_is_cached(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = await app.tokens.aissue("busy", roles=["admin"])
    lookups: list[str] = []
    find = session_of(app).store.tokens.find

    def counted(_: object, hashed: str) -> Flow[ApiToken | None]:
        lookups.append(hashed)
        return find(hashed)

    monkeypatch.setattr(type(session_of(app).store.tokens), "find", counted)
    assert tokens.CACHE_SECONDS <= 2.0, "a revoked token is rejected after that"
    async with service_of(app, tokens_of(app, remember=60), headers=bearer(issued.text)) as http:
        for _ in range(5):
            assert (await http.get("/api/v1/tokens")).status_code == 200
    assert len(lookups) == 1


@pytest.mark.slow
async def test_token_use_is_recorded_before_the_service_stops(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that stops right after a request waits for the record, but not long."""
    issued = await app.tokens.aissue("last", roles=["admin"])
    proceed, record = asyncio.Event(), Tokens._record_use

    async def held_up(self: Tokens, hashed: str) -> None:
        await proceed.wait()
        await record(self, hashed)

    monkeypatch.setattr(Tokens, "_record_use", held_up)
    known = tokens_of(app)
    service = make_service(app, authenticate=known)
    transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HERE, headers=bearer(issued.text)) as http:
        assert (await http.get("/api/v1/tokens")).status_code == 200
        ending = asyncio.create_task(close_background(service))
        await asyncio.wait((ending,), timeout=0.05)
        assert not ending.done()
        proceed.set()
        await ending
        (used,) = await app.tokens.alist()
        assert used.last_used_at is not None
        proceed.clear()
        monkeypatch.setattr(tokens, "CLOSE_TIMEOUT", 0.05)
        monkeypatch.setattr(tokens, "RECORD_EVERY", 0.0)
        assert (await http.get("/api/v1/tokens")).status_code == 200
        await close_background(service)
        assert not known._recording, "an unresponsive database is not waited for"
    await session_of(app).store.leave_loop()
