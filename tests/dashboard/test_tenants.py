"""Operators of all tenants see all of them, and choose one with ``?tenant=``. Other callers cannot."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from holdfast import App, PayloadPolicy, Retry, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import Refused
from tests.api.conftest import HERE, client_of
from tests.app.conftest import NewApp
from tests.support.stores import put, spec
from tests.support.workers import work_off

pytestmark = [
    pytest.mark.req("JF-16", "CX-14"),
    pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True),
]

PAGES = ("/", "/jobs", "/approvals", "/dead-letters", "/workflows", "/schedules", "/queues", "/workers", "/limits")
LISTS = ("jobs", "approvals", "schedules", "workflows", "limits", "queues", "tokens", "retention", "webhooks", "agents")

PAUSE = {"what": "queue", "name": "mail", "back": "/limits", "reason": "test", "confirmed": "yes"}


def fill(app: App, **tenants: int) -> None:
    session_of(app).make_ready()
    for tenant, count in tenants.items():
        put(session_of(app).store, *(spec(kind=f"of_{tenant}") for _ in range(count)), tenant=tenant)


def paused(app: App) -> set[str]:
    return {pause.tenant for pause in session_of(app).store.run(session_of(app).store.pauses.list("*"))}


def local_links(text: str) -> set[str]:
    return {link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"]*)"', text) if "/static/" not in link}


async def test_pages_show_all_tenants_at_first(app: App, http: httpx2.AsyncClient) -> None:
    fill(app, default=1, acme=3)
    overview = (await http.get("/")).text
    assert 'href="/?tenant=acme"' in overview
    assert "all tenants" in overview
    jobs = (await http.get("/jobs")).text
    assert "of_default" in jobs
    assert "of_acme" in jobs
    assert 'href="/jobs?tenant=acme"' in jobs


async def test_only_tenant_is_shown_as_before(app: App, http: httpx2.AsyncClient) -> None:
    fill(app, default=1)
    text = (await http.get("/schedules")).text
    assert "New schedule" in text
    assert "All tenants" not in text


async def test_chosen_tenant_is_kept_on_every_link(app: App, http: httpx2.AsyncClient) -> None:
    fill(app, default=1, acme=3)
    for page in PAGES:
        answer = await http.get(page, params={"tenant": "acme"})
        assert answer.status_code == 200
        assert "of_default" not in answer.text
        lost = {link for link in local_links(answer.text) if "tenant=" not in link}
        assert not lost, page
        for form in re.findall(r'<form class="filters" method="get".*?</form>', answer.text, re.S):
            assert '<input type="hidden" name="tenant" value="acme">' in form
    sent = await http.post(
        "/pause?tenant=acme",
        data=PAUSE,
    )
    assert sent.headers["location"] == "/limits?tenant=acme"
    assert paused(app) == {"acme"}


@pytest.fixture
def stored(new_app: NewApp, tmp_path: Path) -> App:
    return new_app(artifacts=tmp_path / "store")


@pytest.fixture
def reports(stored: App) -> list[str]:
    """A dead letter with a log and an artifact, a queued job and a scheduled one."""

    @stored.job("report", retry=Retry(max_attempts=1), payload_rules=PayloadPolicy(replaceable=True))
    def report(ctx: SyncContext) -> None:
        ctx.log.info("a line")
        ctx.artifact("a/b c", data=b"x")
        raise ValueError("no paper")

    failed = report.enqueue()
    work_off(stored)
    return [failed.id, report.enqueue().id, report.using(delay=60).enqueue().id]


async def test_forms_and_links_of_a_job_work_with_a_chosen_tenant(stored: App, reports: list[str]) -> None:
    seen = set()
    async with client_of(stored) as http:
        http.headers["origin"] = HERE
        for job in reports:
            page = (await http.get(f"/jobs/{job}", params={"tenant": "default"})).text.partition("<main")[2]
            actions = set(re.findall(r'<form[^>]* action="(/jobs/[^"]*)"', page))
            links = {link for link in local_links(page) if job in link}
            for link in links:
                assert link.partition("#")[0].endswith("tenant=default")
                assert (await http.get(link)).status_code == 200, link
            for action in actions:
                assert action.endswith("?tenant=default")
                answer = await http.post(action, data={"to": "first"})
                assert answer.status_code not in (404, 405), action
                back = re.search(r'href="([^"]*)"[^>]*>Go back', answer.text)
                assert back is None or back[1].endswith("?tenant=default")
            seen |= {re.sub(r"^/jobs/[^/]*|\?.*", "", each) for each in {*actions, *links}}
    assert seen >= {"/log", "/artifacts/a%2Fb%20c", "/edit", "/cancel", "/move", "/run-now", "/redrive", "/discard"}


async def test_limit_of_a_tenant_belongs_to_the_operator(app: App, http: httpx2.AsyncClient) -> None:
    session_of(app).make_ready()
    app.tenants.set("acme", max_running=5)
    form = {"scope": "tenant", "name": "acme", "concurrency": "100000", "confirmed": "yes"}
    async with client_of(app, role="admin", tenant="acme") as acme:
        acme.headers["origin"] = HERE
        assert (await acme.put("/api/v1/limits", json={"tenant": "acme", "concurrency": 9})).status_code == 422
        assert (await acme.delete("/api/v1/limits", params={"tenant": "acme"})).status_code == 404
        for path in ("/limits", "/limits/remove"):
            assert (await acme.post(path, data=form)).status_code == 403
        page = (await acme.get("/limits")).text
        assert "tenant acme" in page
        assert 'value="tenant"' not in page
    with app.tenant("acme"):
        with pytest.raises(Refused, match="cannot change limits on tenants"):
            app.limits.set(tenant="acme", concurrency=9)
        with pytest.raises(Refused, match="cannot change limits on tenants"):
            app.limits.remove(tenant="acme")
    assert app.tenants.get("acme").max_running == 5
    for path in ("/limits", "/limits/remove"):
        assert (await http.post(path, params={"tenant": "*"}, data=form)).status_code == 303
    assert app.tenants.get("acme").max_running == 5


async def test_limits_of_a_chosen_tenant_over_http(http: httpx2.AsyncClient) -> None:
    chosen = {"tenant": "acme"}
    made = await http.put("/api/v1/limits", params=chosen, json={"queue": "mail", "concurrency": 2})
    assert (made.status_code, made.json()["tenant"]) == (200, "acme")
    shown = await http.get("/api/v1/limits/one", params=chosen | {"queue": "mail"})
    assert (shown.status_code, shown.json()["concurrency"]) == (200, 2)
    assert (await http.delete("/api/v1/limits", params=chosen | {"queue": "mail"})).status_code == 204


async def test_overview_of_one_tenant_names_the_work_of_others(app: App, http: httpx2.AsyncClient) -> None:
    fill(app, default=1, acme=103)
    text = (await http.get("/", params={"tenant": "default"})).text
    assert re.search(r'Waiting jobs of other tenants: <a href="/\?tenant=acme">acme</a> 103', text)
    assert 'href="/?tenant=%2A"' in text


async def test_lists_of_the_api_take_a_tenant(app: App, http: httpx2.AsyncClient) -> None:
    fill(app, default=1, acme=2)

    async def kinds(**query: str) -> list[str]:
        items = (await http.get("/api/v1/jobs", params=query)).json()["items"]
        return sorted(item["kind"] for item in items)

    assert await kinds() == ["of_default"]
    assert await kinds(tenant="acme") == ["of_acme", "of_acme"]
    assert await kinds(tenant="*") == ["of_acme", "of_acme", "of_default"]
    for name in LISTS:
        assert (await http.get(f"/api/v1/{name}", params={"tenant": "acme"})).status_code == 200
    refused = await http.get("/api/v1/jobs", params={"tenant": "a\nb"})
    assert refused.status_code == 422


async def test_caller_of_one_tenant_cannot_choose(app: App) -> None:
    fill(app, default=1, acme=2)
    async with client_of(app, role="admin") as http:
        http.headers["origin"] = HERE
        for page in (*PAGES, "/tenants"):
            for query in ({"tenant": "acme"}, {"tenant": "*"}, {"of": "acme"}):
                text = (await http.get(page, params=query)).text
                assert "of_acme" not in text, page
                assert "other tenants" not in text
                assert 'name="tenant"' not in text
        listed = (await http.get("/api/v1/jobs", params={"tenant": "acme"})).json()["items"]
        assert [item["kind"] for item in listed] == ["of_default"]
        await http.post(
            "/pause?tenant=acme&of=acme",
            data=PAUSE,
        )
        assert paused(app) == {"default"}


async def test_program_of_one_tenant_shows_it(app: App, http: httpx2.AsyncClient) -> None:
    fill(app, default=1, acme=2)
    one = App(session_of(app).store.url, tenant="acme", name="acme")
    try:
        async with client_of(one) as client:
            text = (await client.get("/jobs")).text
            assert "of_acme" in text
            assert "of_default" not in text
    finally:
        await one.aclose()
