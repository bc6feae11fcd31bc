"""Endpoints over HTTP: who may, what is shown of them, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, webhooks
from holdfast.egress import EgressPolicy
from tests.api.conftest import client_of
from tests.support.web import running

pytestmark = pytest.mark.req("JF-9", "SC-15", "JF-14")

ENDPOINTS = "/api/v1/endpoints"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_an_endpoint_from_its_beginning_to_its_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = webhooks.new_secret()
    monkeypatch.setenv("HOLDFAST_SECRET_acme__OPS", secret)
    with running() as web:
        web.says("/hook", 200, b"thanks")
        app.reach.policy = EgressPolicy(ports=(web.port,), allow=("127.0.0.0/8",))
        async with client_of(app, role="admin", tenant="acme") as http:
            body: dict[str, Any] = {"name": "ops", "url": f"{web.url}/hook?key=7", "secrets": ["OPS"]}
            made = await http.post(ENDPOINTS, json=body | {"wants": ["order.paid"], "retry": {"max_attempts": 3}})
            assert made.status_code == 201, made.text
            shown = made.json()
            assert (shown["url"], shown["enabled"], shown["tenant"]) == (f"{web.url}/hook?…", True, "acme")
            assert (await http.post(ENDPOINTS, json=body)).json()["code"] == "endpoint_exists"
            for bad, status, code in (
                (body | {"secrets": [secret]}, 422, "secret_by_name"),
                (body | {"url": "ftp://x"}, 422, "invalid_endpoint"),
                (body | {"wants": ["job.nonsense"]}, 422, "invalid_pattern"),
                (body | {"tenant": "default"}, 422, "invalid_request"),
                (body | {"priority": 10**6}, 422, "invalid_request"),
            ):
                refused = await http.post(ENDPOINTS, json=bad)
                assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
                assert secret not in refused.text
            sent = await http.post(f"{ENDPOINTS}/ops/test")
            assert sent.status_code == 202
            await asyncio.to_thread(app.run_worker, burst=True, poll=0.02)
            (log,) = (await http.get(f"{ENDPOINTS}/ops/deliveries")).json()["items"]
            assert (log["status"], log["delivered"], log["excerpt"]) == (200, True, "thanks")
            assert log["job_id"] == sent.json()["job_id"]
            again = await http.post(f"{ENDPOINTS}/ops/resend", json={"message": log["message"]})
            assert again.status_code == 202
            await asyncio.to_thread(app.run_worker, burst=True, poll=0.02)
            page = (await http.get(f"{ENDPOINTS}/ops/deliveries?limit=1")).json()
            rest = (await http.get(f"{ENDPOINTS}/ops/deliveries?limit=1&after={page['next']}")).json()
            assert [each["message"] for each in page["items"] + rest["items"]] == [log["message"]] * 2
            assert rest["next"] is None
            changed = await http.patch(f"{ENDPOINTS}/ops", json={"wants": ["job.failed"], "kind": "pay*"})
            assert (changed.json()["wants"], changed.json()["kind"]) == (["job.failed"], "pay*")
            rotated = await http.post(f"{ENDPOINTS}/ops/rotate", json={"secret": "OPS_2"})
            assert rotated.json()["secrets"] == ["OPS_2", "OPS"]
            disabled = await http.post(f"{ENDPOINTS}/ops/disable", json={"reason": "moved"})
            assert (disabled.json()["enabled"], disabled.json()["disabled_by"]) == (False, "a admin")
            assert (await http.post(f"{ENDPOINTS}/ops/enable")).json()["enabled"]
            assert [each["name"] for each in (await http.get(ENDPOINTS)).json()["items"]] == ["ops"]
        async with client_of(app, role="admin", tenant="umbrella") as other:
            assert (await other.get(ENDPOINTS)).json()["items"] == []
            for call in (other.get(f"{ENDPOINTS}/ops"), other.delete(f"{ENDPOINTS}/ops")):
                assert (await call).json()["code"] == "endpoint_not_found"
        async with client_of(app, role="admin", tenant="acme") as http:
            assert (await http.delete(f"{ENDPOINTS}/ops")).status_code == 204
            assert (await http.get(f"{ENDPOINTS}/ops")).status_code == 404


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_who_may(app: App) -> None:
    app.endpoints.add("ops", "https://ops.example.com", secrets="OPS")
    calls = {
        "look": ("GET", "/ops/deliveries", None),
        "send": ("POST", "/ops/test", None),
        "change": ("POST", "/ops/rotate", {"secret": "OPS_2"}),
    }
    may = {}
    for role in ("viewer", "producer", "operator", "approver", "executor", "admin"):
        async with client_of(app, role=role) as http:
            answers = {
                name: await http.request(method, ENDPOINTS + path, json=body)
                for name, (method, path, body) in calls.items()
            }
        may[role] = {name for name, answer in answers.items() if answer.status_code < 300}
        assert {answer.status_code for answer in answers.values()} <= {200, 202, 403}
    assert may["viewer"] == may["producer"] == may["approver"] == {"look"}
    assert (may["operator"], may["executor"], may["admin"]) == ({"look", "send"}, set(), set(calls))
