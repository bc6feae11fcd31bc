"""Who gets in: authentication in front of API and pages."""

from __future__ import annotations

from functools import partial

import httpx2
import pytest

from holdfast import App
from holdfast.features.tokens.model import scopes_of
from holdfast.server.app import make_service
from holdfast.server.auth import Identity, at_this_machine
from tests.api.conftest import HERE, client_of


@pytest.mark.req("JF-14", "JF-16")
async def test_probes_are_for_everybody_and_nothing_else_is(anonymous: httpx2.AsyncClient) -> None:
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
async def test_pages_name_no_foreign_script_and_stand_in_no_frame(http: httpx2.AsyncClient) -> None:
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
async def test_a_page_of_another_site_can_do_nothing(http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    answer = await http.post("/api/v1/jobs", json={"kind": "x"}, headers=headers)
    assert answer.status_code in (401, 403)


@pytest.mark.req("JF-16")
async def test_below_a_path_of_another_program(app: App) -> None:
    from starlette.applications import Starlette

    app._session.make_ready()
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
async def test_a_program_that_forgets_to_say_that_it_goes_by_cookies_is_guarded_as_well(app: App) -> None:
    """Rule 22: what no token came with can only be the browser's doing."""
    elsewhere = {"cookie": "sid=ada", "sec-fetch-site": "cross-site"}
    async with client_of(app, role="operator") as http:
        for headers in (elsewhere, {"origin": "http://evil.example"}, {"sec-fetch-site": "same-site"}):
            for path in ("/jobs/act", "/theme", "/api/v1/jobs/x/cancel"):
                refused = await http.post(path, headers=headers)
                assert (refused.status_code, refused.json()["code"]) == (403, "cross_site"), (path, headers)
        for headers in (elsewhere | {"authorization": "Bearer x"}, elsewhere | {"sec-fetch-site": "same-origin"}, {}):
            assert (await http.post("/theme", headers=headers)).status_code == 303, headers
        assert (await http.get("/jobs", headers=elsewhere)).status_code == 200


@pytest.mark.req("JF-15")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_the_process_did_is_not_for_one_tenant(app: App) -> None:
    """It names kinds and queues of every tenant; being let in by a cookie does not make one look after all of them."""
    app._session.make_ready()
    told = {}
    for whose, whole in (("acme", False), ("acme", True), ("*", False)):
        known = Identity("ada", whose, scopes_of(["viewer"]), ambient=True, whole=whole)
        service = make_service(app, authenticate=partial(_always, known))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
            told[whose, whole] = "holdfast_jobs_finished" in (await http.get("/metrics")).text
    assert told == {("acme", False): False, ("acme", True): True, ("*", False): True}


def _always(known: Identity, _: object) -> Identity:
    return known
