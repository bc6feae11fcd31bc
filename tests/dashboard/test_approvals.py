"""Approvals in the dashboard: by form, and by a link whose GET never decides."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import kinds_of, session_of
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.api.conftest import ServiceClient, client_of
from tests.dashboard.scene import Scene, declare, is_inert, play, the
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("JF-16", "CX-5"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

FILLED = {"f:limit": "7", "f:reason": "fine", "f:urgent": "on", "comment": "go ahead"}


@pytest.fixture
async def scene(app: App) -> Scene:
    return await asyncio.to_thread(play, app)


@pytest.mark.slow
async def test_approver_decides_with_the_form_of_the_request(app: App, scene: Scene) -> None:
    page = f"/approvals/{scene.approval}"
    async with client_of(app, role="approver") as approver, client_of(app, role="viewer") as viewer:
        assert 'name="verdict"' not in (await viewer.get(page)).text
        assert "needs the scope decide" in (await viewer.get(page)).text
        assert (await viewer.post(page, data=FILLED | {"verdict": "approve"})).status_code == 403

        silent = await approver.post(page, data=FILLED)
        assert silent.status_code == 422, "a missing verdict does not approve"
        wrong = await approver.post(page, data=FILLED | {"f:limit": "5000", "verdict": "approve"})
        assert wrong.status_code == 422
        assert "limit must be at most 1000" in wrong.text
        assert 'value="5000"' in wrong.text, "the input is kept"
        assert is_inert(wrong.text)
        assert app.approvals.get(scene.approval).approval.state == "open"

        done = await approver.post(page, data=FILLED | {"verdict": "approve"})
        assert (done.status_code, done.headers["location"]) == (303, page)
        decided = await approver.get("/approvals?state=approved")
        assert "a approver (approve, by dashboard)" in decided.text
        again = await approver.post(page, data=FILLED | {"verdict": "deny"})
        assert (again.status_code, "already_decided" in again.text) == (409, True)
    (vote,) = app.approvals.get(scene.approval).votes
    assert (vote.person, vote.how, vote.comment) == ("a approver", "dashboard", "go ahead")
    assert vote.data == {"limit": 7, "reason": "fine", "urgent": True}
    await asyncio.to_thread(work_off, app)
    assert the(session_of(app).run(session_of(app).store.jobs.result(scene.job, "default"))).value == 7


async def test_requester_is_told_that_they_cannot_decide(app: App, http: httpx2.AsyncClient, scene: Scene) -> None:
    page = await http.get(f"/approvals/{scene.approval}")
    assert "You cannot decide this: the requester of the job may not decide it" in page.text
    assert 'name="verdict"' not in page.text
    refused = await http.post(f"/approvals/{scene.approval}", data=FILLED | {"verdict": "approve"})
    assert (refused.status_code, "requester_may_not_decide" in refused.text) == (403, True)


async def test_the_page_names_you_and_the_people_who_may_decide(app: App) -> None:
    @app.job(requires_approval={"approvers": ["ada", "bob"]})
    def pay(amount: int) -> None: ...

    job = await pay.aenqueue(7)
    await asyncio.to_thread(work_off, app)
    (approval,) = await app.approvals.alist(job_id=job.id)
    path = f"/approvals/{approval.id}"
    async with client_of(app) as http:
        page = (await http.get(path)).text
        assert f"You cannot decide this: only ada and bob may decide, and you are {session_of(app).actor}." in page
        assert "only ada and bob may decide" in (await http.get("/approvals")).text
    async with ServiceClient(make_service(app, authenticate=at_this_machine(app, "ada"))) as http:
        page = (await http.get(path)).text
        assert "You decide as ada.</p>" in page, "without a form, none is mentioned"
        assert (await http.post(path, data={"verdict": "approve"})).status_code == 303
    (vote,) = (await app.approvals.aget(approval.id)).votes
    assert vote.person == "ada"


async def test_link_decides_once_and_only_on_post(app: App, anonymous: httpx2.AsyncClient, scene: Scene) -> None:
    link = f"/decide/{scene.token}"
    async with anonymous:
        for method in ("HEAD", "GET", "HEAD", "GET"):  # as mail scanners do
            assert (await anonymous.request(method, link)).status_code == 200
        shown = await anonymous.get(link)
        approval = app.approvals.get(scene.approval).approval
        assert app.approvals.get(scene.approval).approval.state == "open"
        assert app.approvals.get(scene.approval).votes == []
        assert shown.headers["referrer-policy"] == "no-referrer"
        assert shown.headers["cache-control"] == "no-store"
        assert scene.token not in shown.text, "the page does not contain the token"
        assert "<nav" not in shown.text
        assert "This link is for ada." in shown.text
        assert 'name="by"' not in shown.text, "the link names the person"

        assert (await anonymous.post(link, data={"comment": "hm"})).status_code == 422
        wrong = await anonymous.post(link, data=FILLED | {"f:limit": "x", "verdict": "approve"})
        assert (wrong.status_code, "limit must be integer" in wrong.text) == (422, True)
        done = await anonymous.post(link, data=FILLED | {"verdict": "approve"})
        assert (done.status_code, "is approved" in done.text) == (200, True)
        for spent in (done, await anonymous.get(link)):
            assert "was used" in spent.text
            assert "<bdi>ada</bdi>" in spent.text, "the person of the link"
            assert approval.summary not in spent.text
            assert approval.name not in spent.text.replace(f"{approval.name} is approved", "")
            assert 'name="verdict"' not in spent.text
        twice = await anonymous.post(link, data={"verdict": "deny"})
        assert twice.status_code == 409
    (vote,) = app.approvals.get(scene.approval).votes
    assert (vote.person, vote.how, vote.verdict) == ("ada", "link", "approve")


async def test_invalid_token_shows_and_decides_nothing(app: App, anonymous: httpx2.AsyncClient, scene: Scene) -> None:
    forged = scene.token[:-6] + ("aaaaaa" if not scene.token.endswith("aaaaaa") else "bbbbbb")
    late = app.approvals.issue_token(scene.approval, person="bob", expires_in="1s")
    async with anonymous:
        for credential in (forged, scene.approval, "hfa_x", "%2e%2e"):
            for answer in (
                await anonymous.get(f"/decide/{credential}"),
                await anonymous.post(f"/decide/{credential}", data=FILLED | {"verdict": "approve"}),
            ):
                assert answer.status_code in (404, 405), credential
                assert "onerror" not in answer.text, "the question is not shown"
        session_of(app).run(session_of(app).store.clock.set(timedelta(minutes=1), None))
        refused = await anonymous.post(f"/decide/{late}", data=FILLED | {"verdict": "approve"})
        assert (refused.status_code, "token_expired" in refused.text) == (410, True)
    assert app.approvals.get(scene.approval).votes == []


async def test_link_works_for_its_tenant_only(app: App, anonymous: httpx2.AsyncClient) -> None:
    declare(app)
    with app.tenant("acme"):
        kinds_of(app)["pay"].kind.enqueue()
        await asyncio.to_thread(work_off, app)
        (approval,) = app.approvals.list()
        token = app.approvals.issue_token(approval.id)
    async with anonymous:
        unnamed = await anonymous.post(f"/decide/{token}", data={"verdict": "deny"})
        assert (unnamed.status_code, "person_required" in unnamed.text) == (422, True)
        done = await anonymous.post(f"/decide/{token}", data={"verdict": "deny", "by": "eve"})
        assert (done.status_code, "is denied" in done.text) == (200, True)
    async with client_of(app, role="admin") as other:
        assert (await other.get(f"/approvals/{approval.id}")).status_code == 404
        assert approval.id not in (await other.get("/approvals?state=denied")).text
    async with client_of(app, role="admin", tenant="*") as every_tenant:
        assert "tenant acme" in (await every_tenant.get("/approvals?state=denied")).text
