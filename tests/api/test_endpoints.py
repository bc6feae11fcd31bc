"""Inbound webhooks over HTTP (HF-20): signed messages become events and jobs, once; everything else is refused."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import pytest

from holdfast import App, webhooks
from holdfast.app.internals import session_of
from tests.api.conftest import client_of
from tests.support.providers import SECRET, signed

pytestmark = pytest.mark.req("HF-20")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_HOOK", SECRET)
    monkeypatch.setenv("HOLDFAST_SECRET_acme__HOOK", SECRET[::-1])


def sent(app: App, tenant: str = "default") -> list[tuple[str, dict[str, Any]]]:
    store = session_of(app).store
    return [(each.name, each.data) for each in store.run(store.ledger.read_sent(None, 50, tenant))]


async def post(http: httpx2.AsyncClient, path: str, provider: str, body: Any, secret: str = SECRET) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = signed(provider, content, secret, now=time.time())
    return await http.post(path, content=content, headers=headers)


async def test_message_becomes_an_event_once(app: App, anonymous: httpx2.AsyncClient) -> None:
    await app.endpoints.aset("gh", provider="github", secrets="HOOK")
    body = {"ref": "refs/heads/main"}
    first = await post(anonymous, "/hooks/gh", "github", body)
    assert (first.status_code, first.json()["duplicate"]) == (200, False), first.text
    again = await post(anonymous, "/hooks/gh", "github", body)
    assert again.json() == first.json() | {"duplicate": True}
    ((name, data),) = sent(app)
    assert (name, data["body"], data["endpoint"], data["provider"]) == ("gh.push", body, "gh", "github")


async def test_message_becomes_a_job_once(app: App, anonymous: httpx2.AsyncClient) -> None:
    done: list[dict[str, Any]] = []

    @app.job
    async def invoice(event: dict[str, Any]) -> None:
        done.append(event)

    await app.endpoints.aset("stripe", provider="stripe", secrets="HOOK", kind="invoice", queue="money")
    body = {"id": "evt_1", "type": "invoice.paid", "pending_webhooks": 1}
    first = await post(anonymous, "/hooks/stripe", "stripe", body)
    assert first.status_code == 200, first.text
    again = await post(anonymous, "/hooks/stripe", "stripe", body | {"pending_webhooks": 0})
    assert (again.status_code, again.json()["duplicate"]) == (200, True), "one id is one job, whatever else differs"
    job = await app.jobs.aget(first.json()["job_id"])
    assert (job.kind, job.queue, job.enqueued_by) == ("invoice", "money", "endpoint stripe")
    await asyncio.to_thread(app.run_worker, burst=True, poll=0.02, queues=("money",))
    ((event),) = done
    assert (event["name"], event["data"]["body"]) == ("stripe.invoice.paid", body)


async def test_simultaneous_deliveries_of_a_message_are_one_event(app: App, anonymous: httpx2.AsyncClient) -> None:
    await app.endpoints.aset("std", provider="standard", secrets="WHSEC", event="shop.*")
    secret = webhooks.new_secret()
    app.endpoints._secret = lambda name, tenant: secret
    responses = await asyncio.gather(
        *(post(anonymous, "/hooks/std", "standard", {"type": "order.paid"}, secret) for _ in range(8))
    )
    assert sorted(each.json()["duplicate"] for each in responses) == [False] + [True] * 7
    assert [name for name, _ in sent(app)] == ["shop.order.paid"]


async def test_messages_that_are_not_signed_recently_or_at_all_change_nothing(
    app: App, anonymous: httpx2.AsyncClient
) -> None:
    await app.endpoints.aset("slack", provider="slack", secrets="HOOK", event="slack.*")
    body = b'{"type": "event_callback", "event_id": "Ev1", "event": {"type": "message"}}'
    fresh, old = (signed("slack", body, SECRET, now=time.time() - age) for age in (0, 400))
    for headers, content, status, code in (
        ({}, body, 400, "webhook_malformed"),
        ({"x-hub-signature-256": "sha256=x"}, body, 400, "webhook_malformed"),
        (old, body, 401, "webhook_timestamp"),
        (fresh, body.replace(b"Ev1", b"Ev2"), 401, "webhook_signature"),
        (signed("slack", body, "another secret of a stranger", now=time.time()), body, 401, "webhook_signature"),
        (fresh, b"x" * 1_100_000, 413, "body_too_large"),
    ):
        refused = await anonymous.post("/hooks/slack", content=content, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
        assert SECRET not in refused.text
    assert (await anonymous.post("/hooks/none", content=body, headers=fresh)).status_code == 404
    await app.endpoints.aset("slack", enabled=False)
    assert (await anonymous.post("/hooks/slack", content=body, headers=fresh)).status_code == 404
    assert (await anonymous.get("/hooks/slack")).status_code in (401, 404, 405)
    assert sent(app) == []


async def test_slack_challenge_is_answered_and_sends_nothing(app: App, anonymous: httpx2.AsyncClient) -> None:
    await app.endpoints.aset("slack", provider="slack", secrets="HOOK")
    answer = await post(anonymous, "/hooks/slack", "slack", {"type": "url_verification", "challenge": "3eZ"})
    assert (answer.status_code, answer.text, sent(app)) == (200, "3eZ", [])


async def test_tenant_is_the_one_whose_secret_signed(app: App, anonymous: httpx2.AsyncClient) -> None:
    with app.tenant("acme"):
        await app.endpoints.aset("gh", provider="github", secrets="HOOK")
    body = {"ref": "x"}
    assert (await post(anonymous, "/hooks/acme/gh", "github", body)).status_code == 401
    assert (await post(anonymous, "/hooks/gh", "github", body)).status_code == 404
    assert (await post(anonymous, "/hooks/acme/gh", "github", body, SECRET[::-1])).status_code == 200
    assert ([name for name, _ in sent(app, "acme")], sent(app)) == (["gh.push"], [])


async def test_missing_secret_is_temporary(app: App, anonymous: httpx2.AsyncClient) -> None:
    await app.endpoints.aset("gh", provider="github", secrets="ABSENT")
    refused = await post(anonymous, "/hooks/gh", "github", {})
    assert (refused.status_code, refused.json()["code"]) == (503, "secret_missing")


async def test_program_receives_messages_in_routes_of_its_own(app: App) -> None:
    await app.endpoints.aset("gh", provider="github", secrets="HOOK")
    body = b'{"ref": "x"}'
    first = await asyncio.to_thread(app.endpoints.receive, "gh", signed("github", body, SECRET), body)
    assert first.event_id is not None
    assert not first.duplicate

    async def provider(name: str, tenant: str) -> str:
        return SECRET

    app.endpoints._secret = provider
    assert (await app.endpoints.areceive("gh", signed("github", body, SECRET), body)).duplicate


async def test_settings_need_rights(app: App) -> None:
    async with client_of(app, role="admin") as admin:
        made = await admin.put("/api/v1/endpoints/gh", json={"provider": "github", "secrets": ["HOOK"]})
        assert (made.status_code, made.json()["tolerance"]) == (200, 300.0), made.text
        refused = await admin.put("/api/v1/endpoints/gh", json={"secrets": ["hunter2"]})
        assert refused.status_code == 422
        assert "hunter2" not in refused.text
        page = await admin.get("/endpoints", headers={"accept": "text/html"})
        assert "/hooks/gh" in page.text
        form = {"name": "st", "provider": "stripe", "secrets": "HOOK", "kind": "pay", "event": "", "queue": ""}
        saved = await admin.post("/endpoints", data=form, headers={"origin": "http://127.0.0.1:8000"})
        assert saved.status_code == 303
        assert app.endpoints.get("st").kind == "pay"
    async with client_of(app, role="viewer") as viewer:
        assert (await viewer.get("/api/v1/endpoints/gh")).json()["secrets"] == ["HOOK"]
        assert (await viewer.put("/api/v1/endpoints/gh", json={"enabled": False})).status_code == 403
        assert (await viewer.delete("/api/v1/endpoints/gh")).status_code == 403
