"""Authentication of the API and the dashboard."""

from __future__ import annotations

from functools import partial

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.tokens.model import scopes_of
from holdfast.server.app import make_service
from holdfast.server.auth import Identity, at_this_machine
from tests.api.conftest import HERE, client_of


@pytest.mark.req("JF-14", "JF-16")
async def test_only_probes_need_no_authentication(anonymous: httpx2.AsyncClient) -> None:
    async with anonymous:
        assert (await anonymous.get("/livez")).text == "ok\n"
        assert (await anonymous.get("/readyz")).text == "ready\n"
        refused = await anonymous.get("/api/v1/jobs")
        assert refused.status_code == 401
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["code"] == "unauthenticated"
        assert "Send the header Authorization" in refused.json()["fix"]
        wrong = await anonymous.get("/api/v1/jobs", headers={"authorization": "Bearer hf_wrong"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")
        assert wrong.json()["detail"] == "the token is unknown, expired or revoked"
        assert "Send the header" not in wrong.json()["fix"]
        sent_on = await anonymous.get("/", headers={"accept": "text/html"})
        assert (sent_on.status_code, sent_on.headers["location"]) == (303, "/login")


@pytest.mark.req("JF-16")
async def test_pages_forbid_foreign_scripts_and_frames(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await http.get("/static/holdfast.css")).status_code == 200


@pytest.mark.req("JF-16")
@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {"host": "evil.example"}],
    ids=["another site", "another origin", "another name for this machine"],
)
async def test_request_from_another_site_is_refused(http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    answer = await http.post("/api/v1/jobs", json={"kind": "x"}, headers=headers)
    assert answer.status_code in (401, 403)


@pytest.mark.req("JF-16")
async def test_service_works_mounted_below_a_path(app: App) -> None:
    from starlette.applications import Starlette

    session_of(app).make_ready()
    outer = Starlette()
    outer.mount("/deep/jobs", make_service(app, authenticate=at_this_machine(app)))
    transport = httpx2.ASGITransport(outer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        page = await client.get("/deep/jobs/")
        assert page.status_code == 200
        assert 'href="/deep/jobs/static/holdfast.css?v=' in page.text
        assert (await client.get("/deep/jobs/static/holdfast.css")).status_code == 200
        assert (await client.get("/deep/jobs/livez")).text == "ok\n"


@pytest.mark.req("JF-16")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_cross_site_requests_are_refused_for_any_authentication(app: App) -> None:
    """A request without a token can only come from a browser."""
    cross_site = {"cookie": "sid=ada", "sec-fetch-site": "cross-site"}
    async with client_of(app, role="operator") as http:
        for headers in (cross_site, {"origin": "http://evil.example"}, {"sec-fetch-site": "same-site"}):
            for path in ("/jobs/act", "/theme", "/api/v1/jobs/x/cancel"):
                refused = await http.post(path, headers=headers)
                assert (refused.status_code, refused.json()["code"]) == (403, "cross_site"), (path, headers)
        for headers in (cross_site | {"authorization": "Bearer x"}, cross_site | {"sec-fetch-site": "same-origin"}, {}):
            assert (await http.post("/theme", headers=headers)).status_code == 303, headers
        assert (await http.get("/jobs", headers=cross_site)).status_code == 200


@pytest.mark.req("JF-15")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_process_metrics_are_hidden_from_users_of_one_tenant(app: App) -> None:
    """Process metrics name kinds and queues of every tenant, so one tenant's user must not see them."""
    session_of(app).make_ready()
    shown = {}
    for whose, whole in (("acme", False), ("acme", True), ("*", False)):
        known = Identity("ada", whose, scopes_of(["viewer"]), ambient=True, whole=whole)
        service = make_service(app, authenticate=partial(_always, known))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
            shown[whose, whole] = "holdfast_jobs_finished" in (await http.get("/metrics")).text
    assert shown == {("acme", False): False, ("acme", True): True, ("*", False): True}


def _always(known: Identity, _: object) -> Identity:
    return known


@pytest.mark.req("JF-16", "CX-6")
@pytest.mark.every_case
@pytest.mark.parametrize("host", ["this machine", "another application"])
async def test_presented_token_is_always_checked(app: App, host: str) -> None:
    """Where callers need no token, one that presents a token acts in its name, with its rights, or not at all."""
    text = (await app.tokens.aissue("bob", roles=["viewer"])).text
    revoked = await app.tokens.aissue("cyd", roles=["admin"])
    await app.tokens.arevoke(revoked.token.id)
    async with client_of(app, role=None if host == "this machine" else "admin") as http:

        async def answer(path: str, authorization: str | None) -> tuple[int, str]:
            headers = {} if authorization is None else {"authorization": authorization}
            method = "POST" if path == "jobs" else "GET"
            result = await http.request(method, f"/api/v1/{path}", headers=headers, json={"kind": "x"})
            return result.status_code, result.json().get("code", "")

        assert (await answer("jobs", None))[0] == 201
        assert await answer("jobs", f"Bearer {text}") == (403, "missing_scope")
        assert (await answer("approvals", f"Bearer {text}"))[0] == 200
        assert await answer("approvals", f"Bearer {revoked.text}") == (401, "unauthenticated")
        if host == "this machine":  # an application that mounts the service may have other credentials
            assert await answer("approvals", "Bearer garbage") == (401, "unauthenticated")
            assert await answer("approvals", "Basic YWRhOmFkYQ==") == (401, "unauthenticated")
