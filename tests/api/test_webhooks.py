"""Webhooks over HTTP: rights, and what is shown of their settings."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from holdfast import App, webhooks
from holdfast.features.tokens.model import scopes_of
from holdfast.outgoing import EgressPolicy
from holdfast.server.api import every_route, scope_of
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from tests.api.conftest import HERE
from tests.support.http_server import running

pytestmark = pytest.mark.req("JF-9", "SC-15", "JF-14")

WEBHOOKS = "/api/v1/webhooks"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_webhook_is_added_tested_changed_and_removed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = webhooks.new_secret()
    monkeypatch.setenv("HOLDFAST_SECRET_acme__OPS", secret)
    with running() as web:
        web.says("/hook", 200, b"thanks")
        app._outbound.policy = EgressPolicy(ports=(web.port,), allow=("127.0.0.0/8",))
        who = [Identity("a admin", "acme", scopes_of(["admin"]))]
        service = make_service(app, authenticate=lambda _: who[0])
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
            body: dict[str, Any] = {"name": "ops", "url": f"{web.url}/hook?key=7", "secrets": ["OPS"]}
            made = await http.post(WEBHOOKS, json=body | {"wants": ["order.paid"], "retry": {"max_attempts": 3}})
            assert made.status_code == 201, made.text
            shown = made.json()
            assert (shown["url"], shown["enabled"], shown["tenant"]) == (f"{web.url}/hook?…", True, "acme")
            assert (await http.post(WEBHOOKS, json=body)).json()["code"] == "webhook_exists"
            for bad, status, code in (
                (body | {"secrets": [secret]}, 422, "secret_by_name"),
                (body | {"url": "ftp://x"}, 422, "invalid_webhook"),
                (body | {"wants": ["job.nonsense"]}, 422, "invalid_pattern"),
                (body | {"tenant": "default"}, 422, "invalid_request"),
                (body | {"priority": 10**6}, 422, "invalid_request"),
            ):
                refused = await http.post(WEBHOOKS, json=bad)
                assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
                assert secret not in refused.text
            sent = await http.post(f"{WEBHOOKS}/ops/test")
            assert sent.status_code == 202
            await asyncio.to_thread(app.run_worker, burst=True, poll=0.02)
            (log,) = (await http.get(f"{WEBHOOKS}/ops/deliveries")).json()["items"]
            assert (log["status"], log["delivered"], log["excerpt"]) == (200, True, "thanks")
            assert log["job_id"] == sent.json()["job_id"]
            again = await http.post(f"{WEBHOOKS}/ops/resend", json={"message": log["message"]})
            assert again.status_code == 202
            await asyncio.to_thread(app.run_worker, burst=True, poll=0.02)
            page = (await http.get(f"{WEBHOOKS}/ops/deliveries?limit=1")).json()
            rest = (await http.get(f"{WEBHOOKS}/ops/deliveries?limit=1&after={page['next']}")).json()
            assert [each["message"] for each in page["items"] + rest["items"]] == [log["message"]] * 2
            assert rest["next"] is None
            changed = await http.put(f"{WEBHOOKS}/ops", json={"wants": ["job.failed"], "kind": "pay*"})
            assert (changed.json()["wants"], changed.json()["kind"]) == (["job.failed"], "pay*")
            changes = {"queue": "hooks", "retry": {"max_attempts": 8}, "priority": 3}
            options = (await http.put(f"{WEBHOOKS}/ops", json=changes)).json()["job_options"]
            assert (options["queue"], options["max_attempts"], options["priority"]) == ("hooks", 8, 3)
            kept = (await http.put(f"{WEBHOOKS}/ops", json={"queue": "other", "retry": None})).json()
            assert (kept["job_options"], kept["wants"]) == ({"queue": "other", "priority": 3}, ["job.failed"])
            for wrong in ({"queue": ""}, {"retry": "often"}, {"priority": 10**6}):
                assert (await http.put(f"{WEBHOOKS}/ops", json=wrong)).status_code == 422
            (subscription,) = [row for row in app.subscriptions.list(tenant="acme") if row.name == "webhook:ops"]
            assert subscription.job_options["queue"] == "other", "later deliveries use this queue"
            rotated = await http.post(f"{WEBHOOKS}/ops/rotate-secret", json={"secret": "OPS_2"})
            assert rotated.json()["secrets"] == ["OPS_2", "OPS"]
            disabled = await http.post(f"{WEBHOOKS}/ops/disable", json={"reason": "moved"})
            assert (disabled.json()["enabled"], disabled.json()["disabled_by"]) == (False, "a admin")
            assert (await http.post(f"{WEBHOOKS}/ops/enable")).json()["enabled"]
            assert [each["name"] for each in (await http.get(WEBHOOKS)).json()["items"]] == ["ops"]
            who[0] = Identity("another", "umbrella", scopes_of(["admin"]))
            assert (await http.get(WEBHOOKS)).json()["items"] == []
            for call in (http.get(f"{WEBHOOKS}/ops"), http.delete(f"{WEBHOOKS}/ops")):
                assert (await call).json()["code"] == "webhook_not_found"
            who[0] = Identity("a viewer", "acme", scopes_of(["viewer"]))
            assert (await http.post(f"{WEBHOOKS}/ops/test")).status_code == 403
            assert (await http.delete(f"{WEBHOOKS}/ops")).status_code == 403
            who[0] = Identity("a admin", "acme", scopes_of(["admin"]))
            assert (await http.delete(f"{WEBHOOKS}/ops")).status_code == 204
            assert (await http.get(f"{WEBHOOKS}/ops")).status_code == 404


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_webhook_routes_need_read_operate_or_admin(app: App) -> None:
    service = make_service(app, authenticate=lambda _: None)
    routes: dict[str, set[str]] = {}
    for route in every_route(service):
        if route.path_format.startswith(WEBHOOKS):
            routes.setdefault(str(scope_of(route)), set()).add(route.name)
    assert routes == {
        "read": {"list_webhooks", "show_webhook", "list_webhook_deliveries"},
        "operate": {"test_webhook", "resend_webhook"},
        "admin": {
            *("add_webhook", "set_webhook", "remove_webhook", "rotate_secret"),
            *("disable_webhook", "enable_webhook"),
        },
    }
