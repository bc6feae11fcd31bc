"""Approvals over HTTP: decided by an authenticated user, or with a token."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx2
import pytest

import holdfast
from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from tests.api.conftest import HERE, client_of

APPROVALS = "/api/v1/approvals"


async def asked(app: App) -> str:
    """The id of the approval that a job waits for."""

    @app.job()
    async def pay(ctx: holdfast.Context, amount: int) -> str:
        answer = await ctx.approval(
            "release",
            summary=f"Pay {amount}?",
            form={"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
            quorum=2,
        )
        return str(answer.data)

    app.enqueue("pay", {"amount": 7})
    await asyncio.to_thread(app.run_worker, burst=True)
    return app.approvals.list()[0].id


@pytest.mark.slow
@pytest.mark.req("JF-14", "CX-5", "CX-6", "CX-7")
async def test_approval_is_decided_by_users_and_by_token_once(app: App) -> None:
    approval = await asked(app)
    async with client_of(app, role="approver") as ada:
        assert [each["id"] for each in (await ada.get(APPROVALS)).json()["items"]] == [approval]
        shown = (await ada.get(f"{APPROVALS}/{approval}")).json()
        assert (shown["approval"]["summary"], shown["job"]["kind"], shown["votes"]) == ("Pay 7?", "pay", [])
        wrong = await ada.post(f"{APPROVALS}/{approval}/approve", json={"data": {"note": 7}})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "form_invalid")
        forged = await ada.post(f"{APPROVALS}/{approval}/approve", json={"by": "bob", "data": {"note": "fine"}})
        assert forged.status_code == 422
        voted = await ada.post(f"{APPROVALS}/{approval}/approve", json={"data": {"note": "fine"}, "comment": "go"})
        assert (voted.json()["state"], voted.json()["approvals"]) == ("open", 1)
        twice = await ada.post(f"{APPROVALS}/{approval}/approve", json={"data": {"note": "fine"}})
        assert (twice.status_code, twice.json()["code"]) == (409, "already_voted")
        assert (await ada.get(f"{APPROVALS}/{approval}")).json()["votes"][0]["person"] == "a approver"
        assert (await ada.post(f"{APPROVALS}/{approval}/token")).status_code == 403
    async with client_of(app, role="admin") as admin:
        token = (await admin.post(f"{APPROVALS}/{approval}/token", json={"person": "bob", "expires_in": "1h"})).json()[
            "token"
        ]
        old = (await admin.post(f"{APPROVALS}/{approval}/token", json={"expires_in": "1s"})).json()["token"]
        session_of(app).run(session_of(app).store.clock.set(timedelta(minutes=1), None))
    service = make_service(app, authenticate=lambda _: None)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as anybody:
        link = f"/api/v1/approvals/by-token/{token}"
        question = (await anybody.get(link)).json()
        assert (question["approval"]["summary"], question["kind"]) == ("Pay 7?", "pay")
        assert "job" not in question
        expired = (await anybody.get(f"/api/v1/approvals/by-token/{old}")).json()
        assert (expired["state"], expired["expired"], expired["by"]) == ("open", True, None), (
            "an expired token shows nothing"
        )
        for _ in range(3):  # fetching the link decides nothing
            assert (await anybody.get(link)).json()["approval"]["approvals"] == 1
        almost = token[:-1] + ("A" if token[-1] != "A" else "B")
        for method in ("GET", "POST"):
            body = {"verdict": "deny"} if method == "POST" else None
            none = await anybody.request(method, f"/api/v1/approvals/by-token/{almost}", json=body)
            assert (none.status_code, none.json()["code"]) == (404, "token_unknown"), none.text
        assert (await anybody.get(f"/api/v1/approvals/by-token/{approval}")).status_code == 404
        decision = {"verdict": "approve", "data": {"note": "fine"}}
        done = await anybody.post(link, json=decision)
        assert (done.status_code, done.json()["approval"]["state"]) == (200, "approved"), done.text
        assert [vote["person"] for vote in done.json()["votes"]] == ["a approver", "bob"]
        spent = (await anybody.get(link)).json()
        assert (spent.pop("state"), spent.pop("by"), spent.pop("expired")) == ("approved", "bob", False)
        assert spent.keys() == {"decided_at", "used_at"}, "the time, but nothing of the question"
        again = await anybody.post(link, json=decision)
        assert again.json()["code"] in ("already_decided", "token_used")
        assert again.status_code in (409, 410)
        assert (await anybody.get(f"{APPROVALS}/{approval}")).status_code == 401


@pytest.mark.slow
@pytest.mark.req("CX-5", "CX-6", "JF-14")
async def test_expired_approval_cannot_be_decided_by_any_route(app: App) -> None:
    @app.job()
    async def pay(ctx: holdfast.Context) -> str:
        return str(await ctx.approval("release", summary="Pay?", expires_in="1h", not_requester=True))

    handle = app.enqueue("pay")
    await asyncio.to_thread(app.run_worker, burst=True)
    approval = app.approvals.list()[0].id
    token = app.approvals.issue_token(approval, person="bob")
    other = app.approvals.issue_token(approval)
    session_of(app).run(session_of(app).store.clock.set(timedelta(hours=2), None))
    decision = {"verdict": "approve", "comment": "late"}

    async def tried(admin: httpx2.AsyncClient, anybody: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [
            await admin.post(f"{APPROVALS}/{approval}/approve", json={}),
            await admin.post(f"{APPROVALS}/{approval}/deny", json={}),
            await anybody.post(f"/api/v1/approvals/by-token/{token}", json=decision),
            await anybody.post(f"/api/v1/approvals/by-token/{other}", json=decision | {"by": "eve"}),
            await admin.post(f"/approvals/{approval}", data=decision),
            await anybody.post(f"/decide/{other}", data=decision | {"by": "eve"}),
        ]

    service = make_service(app, authenticate=lambda _: None)
    async with (
        client_of(app, role="admin") as admin,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as anybody,
    ):
        for answer in await tried(admin, anybody):
            assert (answer.status_code, "approval_expired" in answer.text) == (410, True), answer.text
        details = app.approvals.get(approval)
        assert (details.approval.state, details.votes) == ("open", []), "no worker has expired it yet"
        assert handle.state() is State.WAITING_FOR_APPROVAL
        # A worker expires the approval. Late decisions are still refused and start no job.
        await asyncio.to_thread(app.run_worker, burst=True)
        assert app.approvals.get(approval).approval.state == "expired"
        assert (handle.state(), handle.get().error_code) == (State.FAILED, "approval_expired")
        for answer in await tried(admin, anybody):
            assert answer.status_code in (409, 410), answer.text
        shown = (await admin.get(f"{APPROVALS}/{approval}")).json()
        assert (shown["approval"]["state"], shown["votes"]) == ("expired", [])
        assert (await anybody.get(f"/api/v1/approvals/by-token/{token}")).json()["state"] == "expired"
        issued = await admin.post(f"{APPROVALS}/{approval}/token", json={})
        assert issued.is_client_error, "no token is issued for it"
    assert [event.type for event in handle.history()][-1] == "expire"
